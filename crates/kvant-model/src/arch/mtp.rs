//! Heads that guess further tokens (MTP), where checkpoints keep them behind their last layer.
//!
//! DeepSeek V3, GLM, the Qwen hybrids, MiMo and MiniMax have the same head under other names; GGUF calls all of them `blk.N.nextn.…`. A
//! file may have several heads in a row: the first is used, for further guesses with what it left itself.

use crate::arch::{Name, Scope, common};
use crate::config::Dims;
use crate::description::{Description, Layer, Mtp, MtpLayer};
use crate::error::Result;

/// What a family calls the parts of its head.
pub struct Names {
    /// Where the head lies in a Hugging Face checkpoint, and where its layer does; `{}` stands for the number of the model's layers.
    places: (&'static str, &'static str),
    combine: Name,
    embedding_norm: Name,
    hidden_norm: Name,
    /// Before the output, in a Hugging Face checkpoint; empty where that is the model's own.
    norm: &'static str,
    /// What files leave out of the weights of norms.
    norm_offset: f32,
    sees_normed: bool,
    hands_on_normed: bool,
    /// Whether Hugging Face checkpoints have the columns of what the model left first; GGUF files have those of the embedding first.
    hidden_first: bool,
}

/// DeepSeek V3 and GLM.
pub const NEXTN: Names = Names {
    places: ("model.layers.{}", "model.layers.{}"),
    combine: ("eh_proj", "nextn.eh_proj"),
    embedding_norm: ("enorm", "nextn.enorm"),
    hidden_norm: ("hnorm", "nextn.hnorm"),
    norm: "shared_head.norm",
    norm_offset: 0.0,
    sees_normed: true,
    hands_on_normed: false,
    hidden_first: false,
};

/// Qwen3-Next and Qwen 3.5.
pub const QWEN: Names = Names {
    places: ("mtp", "mtp.layers.0"),
    combine: ("fc", "nextn.eh_proj"),
    embedding_norm: ("pre_fc_norm_embedding", "nextn.enorm"),
    hidden_norm: ("pre_fc_norm_hidden", "nextn.hnorm"),
    norm: "norm",
    norm_offset: 1.0,
    sees_normed: true,
    hands_on_normed: true,
    hidden_first: false,
};

/// MiMo-7B.
pub const MIMO: Names = Names {
    places: ("model.mtp_layers.0", "model.mtp_layers.0"),
    combine: ("input_proj", "nextn.eh_proj"),
    embedding_norm: ("token_layernorm", "nextn.enorm"),
    hidden_norm: ("hidden_layernorm", "nextn.hnorm"),
    norm: "final_layernorm",
    norm_offset: 0.0,
    sees_normed: false,
    hands_on_normed: false,
    hidden_first: true,
};

/// MiMo-V2.
pub const MIMO_V2: Names = Names {
    places: ("model.mtp.layers.0", "model.mtp.layers.0"),
    combine: ("eh_proj", "nextn.eh_proj"),
    embedding_norm: ("enorm", "nextn.enorm"),
    hidden_norm: ("hnorm", "nextn.hnorm"),
    hidden_first: false,
    ..MIMO
};

/// MiniMax-M2. Released checkpoints announce heads and do not have them; the names are those that SGLang reads.
pub const MINIMAX: Names = Names {
    places: ("model.mtp_layers.0", "model.mtp_layers.0"),
    combine: ("linear_projection", "nextn.eh_proj"),
    embedding_norm: ("e_norm", "nextn.enorm"),
    hidden_norm: ("h_norm", "nextn.hnorm"),
    norm: "",
    norm_offset: 0.0,
    sees_normed: true,
    hands_on_normed: true,
    hidden_first: true,
};

/// The norm before the output in GGUF files, which may leave it out where it is the model's own.
const GGUF_NORMS: [&str; 2] = ["nextn.shared_head_norm", "layer_output_norm"];

/// A copy of the embeddings, and of the output, that the head of a file may have for itself.
const TABLE: Name = ("embed_tokens", "nextn.embed_tokens");
const OUTPUT: Name = ("shared_head.head", "nextn.shared_head_head");

/// The same model with its head, where the file has one; `layer` describes the head's layer, with a slot of its own.
///
/// # Errors
/// If the directory cannot be read. A head that is there and cannot be described is no reason to refuse the model.
pub fn described(
    scope: &Scope<'_>,
    description: Description,
    names: &Names,
    layer: impl FnOnce(&Scope<'_>, usize) -> Result<Layer>,
) -> Result<Description> {
    let count = Dims::layers(scope.config())?;
    let place = |hf: &str| scope.inside((&hf.replace("{}", &count.to_string()), &format!("blk.{count}")));
    let head = place(names.places.0);
    if !scope.has_weights() || !head.has(names.combine)? {
        return Ok(description);
    }
    let described = || {
        let (hidden, vocabulary) = (description.hidden, description.vocabulary);
        let eps = scope.config().positive(common::RMS_EPS)? as f32;
        let norm = |name| head.rms_norm(name, hidden, eps, names.norm_offset);
        let has_output = head.has(OUTPUT)?;
        let mut own_norm = None;
        for name in GGUF_NORMS.map(|gguf| (names.norm, gguf)) {
            if own_norm.is_none() && head.has(name)? {
                own_norm = Some(norm(name)?);
            }
        }
        let is_models = names.norm.is_empty() || scope.config().is_gguf();
        Ok(MtpLayer {
            table: match head.has(TABLE)? {
                true => head.weight(TABLE, &[vocabulary, hidden])?,
                false => description.embedding.table.clone(),
            },
            embedding_norm: norm(names.embedding_norm)?,
            hidden_norm: norm(names.hidden_norm)?,
            combine: head.linear(names.combine, hidden, 2 * hidden, false)?,
            layer: layer(&place(names.places.1), count)?,
            norm: match own_norm {
                Some(norm) => norm,
                None if is_models => description.head.norm.clone(),
                None => norm((names.norm, ""))?,
            },
            output: has_output.then(|| head.linear(OUTPUT, vocabulary, hidden, false)).transpose()?,
            hidden_first: names.hidden_first && !scope.config().is_gguf(),
            sees_normed: names.sees_normed,
            hands_on_normed: names.hands_on_normed,
        })
    };
    // Those of the model were taken, so what is there now is the head's.
    let layer: Result<MtpLayer> = described();
    let (slots, _) = scope.take_draft();
    let mtp = layer.map(|layer| Box::new(Mtp { layer, slots })).map_err(|error| error.to_string());
    Ok(Description { mtp: Some(mtp), ..description })
}
