//! Gemma 1: embeddings scaled by the root of the hidden size, norms stored less one, a gated GELU.

use crate::arch::{Network, Parts, usual};
use crate::blocks::{Activation, Ffn, Pairing, PreNorm};
use crate::config::{Dims, Hyper, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

/// What Hugging Face checkpoints of the family leave out of their norms.
pub const NORM_OFFSET: f32 = 1.0;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let inner = hyper.size(usual::INNER)?;
    let eps = hyper.positive(usual::RMS_EPS)? as f32;
    let activation = activation(hyper)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.rope = Some(rope.clone());
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, NORM_OFFSET);
        Ok(PreNorm {
            attention_norm: norm(("input_layernorm", "attn_norm"))?,
            attention,
            ffn_norm: norm(("post_attention_layernorm", "ffn_norm"))?,
            ffn: Ffn::Dense(usual::gated_mlp(layer, dims.hidden, inner, activation, false)?),
            residual_scale: 1.0,
        })
    })?;
    let mut decoder = usual::decoder(parts, &dims, blocks, NORM_OFFSET)?;
    decoder.embedding = decoder.embedding.scaled((dims.hidden as f32).sqrt());
    usual::boxed(decoder)
}

/// The activation of the family. Its first configurations said `gelu` for what had been trained as the tanh
/// approximation.
pub fn activation(hyper: &Hyper<'_>) -> Result<Activation> {
    Ok(match hyper.activation(usual::ACTIVATION, Activation::GeluTanh)? {
        Activation::Gelu => Activation::GeluTanh,
        other => other,
    })
}
