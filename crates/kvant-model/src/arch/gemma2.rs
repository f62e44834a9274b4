//! Gemma 2: norms before and after both parts of a layer, soft caps on scores and logits, a window on every
//! other layer, and a scale of scores of its own.

use crate::arch::{Scope, common, gemma};
use crate::config::{Dims, Key, ModelConfig, RopeKeys};
use crate::description::{Attention, Branch, Description, Ffn, Layer, Mixer, Mlp, Pairing, Residual};
use crate::error::Result;

/// A layer with four norms: `x += norm(attention(norm(x))); x += norm(mlp(norm(x)))`.
pub fn sandwich(layer: &Scope<'_>, dims: &Dims, eps: f32, attention: Attention, mlp: Mlp) -> Result<Layer> {
    let part = |before, mixer, after| {
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, gemma::NORM_OFFSET).map(Some);
        Ok(Residual::of(Branch::new(norm(before)?, mixer, norm(after)?)))
    };
    let residuals = vec![
        part(
            ("input_layernorm", "attn_norm"),
            Mixer::Attention(Box::new(attention)),
            ("post_attention_layernorm", "post_attention_norm"),
        )?,
        part(
            ("pre_feedforward_layernorm", "ffn_norm"),
            Mixer::Ffn(Ffn::Dense(mlp)),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        )?,
    ];
    Ok(Layer::new(residuals))
}

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let inner = config.size(common::INNER)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = gemma::activation(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let score_scale = score_scale(config, &dims, 46)?;
    let score_cap = config.positive_if(Key("attn_logit_softcapping", "attn_logit_softcapping"))?;
    let windows = common::windows(config, dims.layers, |layer| layer.is_multiple_of(2))?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        attention.rope = Some(rope);
        attention.scale = score_scale;
        attention.soft_cap = score_cap.map(|cap| cap as f32);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        sandwich(layer, &dims, eps, attention, mlp)
    })?;
    let mut description = common::decoder(scope, &dims, layers, gemma::NORM_OFFSET)?;
    description.embedding.scale = (dims.hidden as f32).sqrt();
    description.head.soft_cap = final_cap(config)?;
    Ok(description)
}

/// The cap on logits.
pub fn final_cap(config: &ModelConfig<'_>) -> Result<Option<f32>> {
    let cap = config.positive_if(Key("final_logit_softcapping", "final_logit_softcapping"))?;
    Ok(cap.map(|cap| cap as f32))
}

/// The multiplier of scores. GGUF files rarely store it; there the family's largest model, known by its number
/// of layers, uses the hidden size per head and the others the head's own size.
pub fn score_scale(config: &ModelConfig<'_>, dims: &Dims, layers_of_the_largest: usize) -> Result<f32> {
    if let Some(scale) = config.positive_if(Key("", "attention.scale"))? {
        return Ok(scale as f32);
    }
    let scalar = match config.positive_if(Key("query_pre_attn_scalar", ""))? {
        Some(scalar) => scalar,
        None if config.is_gguf() && dims.layers == layers_of_the_largest => {
            dims.hidden as f64 / dims.heads as f64
        }
        None if config.is_gguf() => dims.head_dim as f64,
        None => 256.0,
    };
    Ok((1.0 / scalar.sqrt()) as f32)
}
