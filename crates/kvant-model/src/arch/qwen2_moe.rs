//! Qwen 2 with experts, beside them a shared expert behind a sigmoid gate.

use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER, RENORMALISE};
use crate::arch::{Network, Parts, qwen2, usual};
use crate::blocks::{Activation, Linear, Mlp, Pairing};
use crate::config::{Dims, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let (inner, expert_inner) = (hyper.size(usual::INNER)?, hyper.size(EXPERT_INNER)?);
    let shared_inner =
        hyper.size(Key("shared_expert_intermediate_size", "expert_shared_feed_forward_length"))?;
    let eps = hyper.positive(usual::RMS_EPS)? as f32;
    let activation = hyper.activation(usual::ACTIVATION, Activation::Silu)?;
    let bias = hyper.flag(Key("qkv_bias", ""), true)?;
    let renormalise = hyper.flag(RENORMALISE, false)?;
    let windows = qwen2::windows(hyper, dims.layers)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, false)?;
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let ffn = usual::sparse_ffn(
            layer,
            index,
            || usual::gated_mlp(layer, dims.hidden, inner, activation, false),
            || {
                let mut moe =
                    usual::experts(layer, &EXPERT, dims.hidden, expert_inner, activation, renormalise)?;
                moe.shared = Some(shared_expert(layer, dims.hidden, shared_inner, activation)?);
                Ok(moe)
            },
        )?;
        usual::prenorm(layer, &dims, eps, attention, ffn)
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}

fn shared_expert(
    layer: &Parts<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
) -> Result<(Mlp, Linear)> {
    let expert = Mlp::Gated {
        gate: layer.linear(("mlp.shared_expert.gate_proj", "ffn_gate_shexp"), inner, hidden, false)?,
        up: layer.linear(("mlp.shared_expert.up_proj", "ffn_up_shexp"), inner, hidden, false)?,
        down: layer.linear(("mlp.shared_expert.down_proj", "ffn_down_shexp"), hidden, inner, false)?,
        activation,
    };
    let gate = layer.exact_linear(("mlp.shared_expert_gate", "ffn_gate_inp_shexp"), 1, hidden)?;
    Ok((expert, gate))
}
