//! Heads that guess further tokens (MTP), where checkpoints keep them behind their last layer.
//!
//! DeepSeek V3, GLM and the Qwen hybrids have the same head under other names; GGUF calls all of them `blk.N.nextn.…`. A file may have
//! several heads in a row: the first is used, for further guesses with what it left itself.

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
    norm: Name,
    /// What files leave out of the weights of norms.
    norm_offset: f32,
    hands_on_normed: bool,
}

/// DeepSeek V3 and GLM.
pub const NEXTN: Names = Names {
    places: ("model.layers.{}", "model.layers.{}"),
    combine: ("eh_proj", "nextn.eh_proj"),
    embedding_norm: ("enorm", "nextn.enorm"),
    hidden_norm: ("hnorm", "nextn.hnorm"),
    norm: ("shared_head.norm", "nextn.shared_head_norm"),
    norm_offset: 0.0,
    hands_on_normed: false,
};

/// Qwen3-Next and Qwen 3.5.
pub const QWEN: Names = Names {
    places: ("mtp", "mtp.layers.0"),
    combine: ("fc", "nextn.eh_proj"),
    embedding_norm: ("pre_fc_norm_embedding", "nextn.enorm"),
    hidden_norm: ("pre_fc_norm_hidden", "nextn.hnorm"),
    norm: ("norm", "nextn.shared_head_norm"),
    norm_offset: 1.0,
    hands_on_normed: true,
};

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
        Ok(MtpLayer {
            table: match head.has(TABLE)? {
                true => head.weight(TABLE, &[vocabulary, hidden])?,
                false => description.embedding.table.clone(),
            },
            embedding_norm: norm(names.embedding_norm)?,
            hidden_norm: norm(names.hidden_norm)?,
            combine: head.linear(names.combine, hidden, 2 * hidden, false)?,
            layer: layer(&place(names.places.1), count)?,
            norm: norm(names.norm)?,
            output: has_output.then(|| head.linear(OUTPUT, vocabulary, hidden, false)).transpose()?,
            hands_on_normed: names.hands_on_normed,
        })
    };
    // Those of the model were taken, so what is there now is the head's.
    let layer: Result<MtpLayer> = described();
    let (slots, _) = scope.take_draft();
    let mtp = layer.map(|layer| Box::new(Mtp { layer, slots })).map_err(|error| error.to_string());
    Ok(Description { mtp: Some(mtp), ..description })
}
