//! OLMo 2: norms after attention and perceptron instead of before, and over all heads of queries and of keys.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Attention, Block, Mlp, Norm, Pairing, Pass, Rows};
use crate::config::RopeKeys;
use crate::error::Result;
use std::sync::Arc;

/// `x += norm(attention(x)); x += norm(mlp(x))`.
struct PostNorm {
    attention: Attention,
    after_attention: Norm,
    mlp: Mlp,
    after_mlp: Norm,
}

impl Block for PostNorm {
    fn forward(&self, x: &mut Rows, pass: &mut Pass<'_, '_>) {
        let mut attended = self.attention.forward(x, pass);
        self.after_attention.in_place(&mut attended);
        x.add_scaled(&attended, 1.0);
        let mut fed = self.mlp.forward(x);
        self.after_mlp.in_place(&mut fed);
        x.add_scaled(&fed, 1.0);
    }

    fn attention(&self) -> Option<&Attention> {
        Some(&self.attention)
    }
}

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.qk_norm = Some(usual::qk_norm(layer, dims.query_width(), dims.kv_width(), eps, 0.0)?);
        attention.rope = Some(rope.clone());
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        Ok(PostNorm {
            attention,
            after_attention: norm(("post_attention_layernorm", "post_attention_norm"))?,
            mlp: usual::gated_mlp(layer, dims.hidden, inner, activation, false)?,
            after_mlp: norm(("post_feedforward_layernorm", "post_ffw_norm"))?,
        })
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
