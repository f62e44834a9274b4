//! Gemma 2: norms before and after both parts of a layer, soft caps on scores and logits, a window on every
//! other layer, and a scale of scores of its own.

use crate::arch::{Network, Parts, gemma, usual};
use crate::blocks::{Attention, Block, Mlp, Norm, Pairing, Pass, Rows};
use crate::config::{Dims, Hyper, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

/// A layer with four norms: `x += norm(attention(norm(x))); x += norm(mlp(norm(x)))`.
pub struct Sandwich {
    pub attention_norm: Norm,
    pub attention: Attention,
    pub after_attention: Norm,
    pub mlp_norm: Norm,
    pub mlp: Mlp,
    pub after_mlp: Norm,
}

impl Sandwich {
    /// A layer of the Gemma family around a given attention.
    pub fn load(layer: &Parts<'_>, dims: &Dims, eps: f32, attention: Attention, mlp: Mlp) -> Result<Self> {
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, gemma::NORM_OFFSET);
        Ok(Self {
            attention_norm: norm(("input_layernorm", "attn_norm"))?,
            attention,
            after_attention: norm(("post_attention_layernorm", "post_attention_norm"))?,
            mlp_norm: norm(("pre_feedforward_layernorm", "ffn_norm"))?,
            mlp,
            after_mlp: norm(("post_feedforward_layernorm", "post_ffw_norm"))?,
        })
    }
}

impl Block for Sandwich {
    fn forward(&self, x: &mut Rows, pass: &mut Pass<'_, '_>) {
        let mut attended = self.attention.forward(&self.attention_norm.forward(x), pass);
        self.after_attention.in_place(&mut attended);
        x.add_scaled(&attended, 1.0);
        let mut fed = self.mlp.forward(&self.mlp_norm.forward(x));
        self.after_mlp.in_place(&mut fed);
        x.add_scaled(&fed, 1.0);
    }

    fn attention(&self) -> Option<&Attention> {
        Some(&self.attention)
    }
}

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let inner = hyper.size(usual::INNER)?;
    let eps = hyper.positive(usual::RMS_EPS)? as f32;
    let activation = gemma::activation(hyper)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let score_scale = score_scale(hyper, &dims, 46)?;
    let score_cap = hyper.positive_if(Key("attn_logit_softcapping", "attn_logit_softcapping"))?;
    let windows = usual::windows(hyper, dims.layers, |layer| layer.is_multiple_of(2))?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        attention.scoring.scale = score_scale;
        attention.scoring.soft_cap = score_cap.map(|cap| cap as f32);
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        Sandwich::load(layer, &dims, eps, attention, mlp)
    })?;
    let mut decoder = usual::decoder(parts, &dims, blocks, gemma::NORM_OFFSET)?;
    decoder.embedding = decoder.embedding.scaled((dims.hidden as f32).sqrt());
    decoder.head.soft_cap = final_cap(hyper)?;
    usual::boxed(decoder)
}

/// The cap on logits.
pub fn final_cap(hyper: &Hyper<'_>) -> Result<Option<f32>> {
    let cap = hyper.positive_if(Key("final_logit_softcapping", "final_logit_softcapping"))?;
    Ok(cap.map(|cap| cap as f32))
}

/// The multiplier of scores. GGUF files rarely store it; there the family's largest model, known by its number
/// of layers, uses the hidden size per head and the others the head's own size.
pub fn score_scale(hyper: &Hyper<'_>, dims: &Dims, layers_of_the_largest: usize) -> Result<f32> {
    if let Some(scale) = hyper.positive_if(Key("", "attention.scale"))? {
        return Ok(scale as f32);
    }
    let scalar = match hyper.positive_if(Key("query_pre_attn_scalar", ""))? {
        Some(scalar) => scalar,
        None if hyper.is_gguf() && dims.layers == layers_of_the_largest => {
            dims.hidden as f64 / dims.heads as f64
        }
        None if hyper.is_gguf() => dims.head_dim as f64,
        None => 256.0,
    };
    Ok((1.0 / scalar.sqrt()) as f32)
}
