//! ModernBERT: norms before blocks, rotated queries and keys, a gated MLP, and layers that see only their neighbourhood.

use crate::arch::encoder::{self, Sizes};
use crate::arch::{Name, Scope, common};
use crate::config::{Key, RopeKeys};
use crate::description::{
    Activation, Classifier, Description, Encoder, EncoderLayer, Inner, Mlp, Pairing, Projection,
};
use crate::error::{LoadError, Result};

/// Layers that see everything.
const GLOBAL: RopeKeys = RopeKeys {
    theta: Key("global_rope_theta|rope_theta", "rope.freq_base"),
    default_theta: 160_000.0,
    ..RopeKeys::usual(Pairing::Halves)
};
/// Layers that see their neighbourhood.
const LOCAL: RopeKeys = RopeKeys {
    layer_type: "sliding_attention",
    theta: Key("local_rope_theta", "rope.freq_base_swa"),
    default_theta: 10_000.0,
    scaled: false,
    ..RopeKeys::usual(Pairing::Halves)
};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    encoder::refuse_decoder(scope)?;
    let config = scope.config();
    let Sizes { dims, inner, eps } = Sizes::read(scope)?;
    let hidden = dims.hidden;
    let activation = config.activation(common::ACTIVATION, Activation::Gelu)?;
    let flag = |name| config.flag(Key(name, ""), false);
    let (norm_bias, attention_bias, mlp_bias) =
        (flag("norm_bias")?, flag("attention_bias")?, flag("mlp_bias")?);
    let word = ("embeddings.tok_embeddings", "token_embd");
    let body = if scope.inside(("model", "")).has(word)? {
        scope.inside(("model", ""))
    } else {
        scope.inside(("", ""))
    };
    let ropes = [body.rope(&GLOBAL, dims.head_dim)?, body.rope(&LOCAL, dims.head_dim)?];
    let is_local = local_layers(scope, dims.layers)?;
    // Half of it before a token, and half of it after.
    let reach = config.size_if(Key("local_attention", "attention.sliding_window"))?.unwrap_or(128) / 2;

    let layer = |index: usize| {
        let layer = body.inside((&format!("layers.{index}"), &format!("blk.{index}")));
        let norm = |name: Name| encoder::norm(&layer, name, hidden, eps, norm_bias);
        let seen = if is_local[index] { (Some(reach), Some(ropes[1])) } else { (None, Some(ropes[0])) };
        let qkv = layer.linear(("attn.Wqkv", "attn_qkv"), 3 * hidden, hidden, attention_bias)?;
        let output = layer.linear(("attn.Wo", "attn_output"), hidden, hidden, attention_bias)?;
        let both = layer.linear(("mlp.Wi", "ffn_up"), 2 * inner, hidden, mlp_bias)?;
        let down = layer.linear(("mlp.Wo", "ffn_down"), hidden, inner, mlp_bias)?;
        // The embeddings that the first layer reads are normed already.
        let attention_norm = (index > 0).then(|| norm(("attn_norm", "attn_norm"))).transpose()?;
        Ok(EncoderLayer {
            attention_norm,
            attention: encoder::attention(&dims, seen, Projection::Fused(qkv), output),
            after_attention: None,
            mlp_norm: Some(norm(("mlp_norm", "ffn_norm"))?),
            mlp: Mlp::new(Inner::GatedFused(both), activation, down),
            after_mlp: None,
        })
    };
    let layers = (0..dims.layers).map(layer).collect::<Result<_>>()?;
    let table = common::token_table(&body, word.0, &dims)?;
    let norm = |name: Name| encoder::norm(&body, name, hidden, eps, norm_bias);
    let encoder = Encoder {
        first_position: 0,
        segments: None,
        embedding_norm: Some(norm(("embeddings.norm", "token_embd_norm"))?),
        layers,
        norm: Some(norm(("final_norm", "output_norm"))?),
        classifier: classifier(scope, hidden, eps, norm_bias)?.map(Box::new),
    };
    encoder::description(scope, &dims, (table, None), encoder)
}

/// Which layers see their neighbourhood alone.
fn local_layers(scope: &Scope<'_>, layers: usize) -> Result<Vec<bool>> {
    let config = scope.config();
    const TYPES: Key = Key("layer_types", "");
    if let Some(types) = config.texts(TYPES, layers)? {
        let is_local = |kind: String| match kind.as_str() {
            "full_attention" => Ok(false),
            "sliding_attention" => Ok(true),
            other => Err(LoadError::unsupported(format!("key \"layer_types\": {other:?} is not supported"))),
        };
        return types.into_iter().map(is_local).collect();
    }
    let every = config.size_if(Key("global_attn_every_n_layers", ""))?.unwrap_or(3);
    Ok((0..layers).map(|layer| layer % every != 0).collect())
}

fn classifier(scope: &Scope<'_>, hidden: usize, eps: f32, norm_bias: bool) -> Result<Option<Classifier>> {
    const OUTPUT: Name = ("classifier", "cls.output");
    let Some(classes) = encoder::rows(scope, OUTPUT)? else { return Ok(None) };
    let config = scope.config();
    const POOLING: Key = Key("classifier_pooling", "");
    let of_mean = match config.text(POOLING)?.as_deref() {
        None | Some("cls") => false,
        Some("mean") => true,
        Some(other) => {
            return Err(config.refused(POOLING, format!("{other:?} is not supported; cls and mean are")));
        }
    };
    let activation = config.activation(Key("classifier_activation", ""), Activation::Gelu)?;
    let biased = config.flag(Key("classifier_bias", ""), false)?;
    let dense = scope.linear(("head.dense", "cls"), hidden, hidden, biased)?;
    let norm = encoder::norm(scope, ("head.norm", "cls.norm"), hidden, eps, norm_bias)?;
    let output = scope.linear(OUTPUT, classes, hidden, true)?;
    Ok(Some(encoder::classifier((dense, Some(activation)), (of_mean, Some(norm)), output)))
}
