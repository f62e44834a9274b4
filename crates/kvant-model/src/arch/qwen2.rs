//! Qwen 2 and 2.5: Llama with biases on queries, keys and values, and a window on upper layers if asked for.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Pairing};
use crate::config::{Hyper, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let windows = windows(hyper, dims.layers)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, true, false)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}

/// Windows of the Qwen family: `sliding_window` counts only with `use_sliding_window`, and then from layer
/// `max_window_layers` on.
pub fn windows(hyper: &Hyper<'_>, layers: usize) -> Result<Vec<Option<usize>>> {
    if !hyper.flag(Key("use_sliding_window", ""), false)? {
        return Ok(vec![None; layers]);
    }
    let first = hyper.count(Key("max_window_layers", ""))?.unwrap_or(0);
    usual::windows(hyper, layers, |layer| layer >= first)
}
