//! Gemma 1: embeddings scaled by the root of the hidden size, norms stored less one, a gated GELU.

use crate::arch::{Scope, common};
use crate::config::{Dims, ModelConfig, RopeKeys};
use crate::description::{Activation, Description, Ffn, Pairing};
use crate::error::Result;

/// What Hugging Face checkpoints of the family leave out of their norms.
pub const NORM_OFFSET: f32 = 1.0;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let inner = config.size(common::INNER)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = activation(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, None, (bias, bias))?;
        attention.rope = Some(rope);
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, NORM_OFFSET);
        let attention_norm = norm(("input_layernorm", "attn_norm"))?;
        let ffn_norm = norm(("post_attention_layernorm", "ffn_norm"))?;
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        Ok(common::pre_normed(attention_norm, attention, ffn_norm, Ffn::Dense(mlp)))
    })?;
    let mut description = common::decoder(scope, &dims, layers, NORM_OFFSET)?;
    description.embedding.scale = (dims.hidden as f32).sqrt();
    Ok(description)
}

/// The activation of the family. Its first configurations said `gelu` for what had been trained as the tanh
/// approximation.
pub fn activation(config: &ModelConfig<'_>) -> Result<Activation> {
    Ok(match config.activation(common::ACTIVATION, Activation::GeluTanh)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    })
}
