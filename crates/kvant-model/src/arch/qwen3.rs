//! Qwen 3: Qwen 2 with a norm on each head's queries and keys in place of the biases.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts, qwen2};
use crate::blocks::{Ffn, Pairing};
use crate::config::RopeKeys;
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let windows = qwen2::windows(hyper, dims.layers)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.qk_norm = Some(usual::qk_norm(layer, dims.head_dim, dims.head_dim, eps, 0.0)?);
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
