//! Mistral: Llama with a sliding window on every layer. Its GGUF files are called `llama`.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Pairing};
use crate::config::RopeKeys;
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let windows = usual::windows(hyper, dims.layers, |_| true)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, false, false)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
