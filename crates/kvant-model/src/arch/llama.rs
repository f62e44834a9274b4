//! Llama and everything that is built like it: SmolLM 2, TinyLlama, Yi, DeepSeek-Coder 1, …
//!
//! GGUF calls Mistral and Mixtral `llama` too; a window or experts in the metadata tell them apart. Its
//! converters put the two channels of a rotated pair side by side.

use crate::arch::usual::{self, Common};
use crate::arch::{Network, Parts, mistral, mixtral};
use crate::blocks::{Ffn, Pairing};
use crate::config::{Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    if hyper.is_gguf() && hyper.count(usual::EXPERTS)?.is_some() {
        return mixtral::load(parts);
    }
    if hyper.is_gguf() && hyper.count(usual::WINDOW)?.is_some() {
        return mistral::load(parts);
    }
    let Common { dims, inner, eps, activation } = Common::read(hyper)?;
    let attention_bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let mlp_bias = hyper.flag(Key("mlp_bias", ""), false)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, attention_bias, attention_bias)?;
        attention.rope = Some(rope.clone());
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, mlp_bias)?;
        usual::prenorm(layer, &dims, eps, attention, Ffn::Dense(mlp))
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
