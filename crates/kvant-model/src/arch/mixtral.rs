//! Mixtral: Mistral with eight experts, two of them for each token. Its GGUF files are called `llama`.

use crate::arch::usual::{self, Common, ExpertNames};
use crate::arch::{Network, Parts};
use crate::blocks::{Ffn, Pairing};
use crate::config::RopeKeys;
use crate::error::Result;
use std::sync::Arc;

const EXPERT: ExpertNames = ExpertNames {
    router: "block_sparse_moe.gate",
    gate: "block_sparse_moe.experts.{}.w1",
    up: "block_sparse_moe.experts.{}.w3",
    down: "block_sparse_moe.experts.{}.w2",
};

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let windows = usual::windows(hyper, dims.layers, |_| true)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, false, false)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let moe = usual::experts(layer, &EXPERT, dims.hidden, inner, activation, true)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Experts(moe))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
