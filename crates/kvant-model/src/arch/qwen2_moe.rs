//! Qwen 2 with experts, beside them a shared expert behind a sigmoid gate.

use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER, RENORMALISE};
use crate::arch::{Scope, common, qwen2};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{Activation, Description, Inner, Mlp, Pairing, SharedExpert};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let (inner, expert_inner) = (config.size(common::INNER)?, config.size(EXPERT_INNER)?);
    let shared_inner = config.size(common::SHARED_INNER)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let bias = config.flag(Key("qkv_bias", ""), true)?;
    let renormalise = config.flag(RENORMALISE, false)?;
    let windows = qwen2::windows(config, dims.layers)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, false))?;
        attention.rope = Some(rope);
        let ffn = common::sparse_ffn(
            layer,
            index,
            || common::gated_mlp(layer, dims.hidden, inner, activation, false),
            || {
                let mut moe =
                    common::experts(layer, &EXPERT, dims.hidden, expert_inner, activation, renormalise)?;
                moe.shared = Some(shared_expert(layer, dims.hidden, shared_inner, activation)?);
                Ok(moe)
            },
        )?;
        common::pre_norm(layer, &dims, eps, attention, ffn)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}

/// The shared expert of the Qwen family, behind its gate.
pub fn shared_expert(
    layer: &Scope<'_>,
    hidden: usize,
    inner: usize,
    activation: Activation,
) -> Result<SharedExpert> {
    let gate = layer.linear(("mlp.shared_expert.gate_proj", "ffn_gate_shexp"), inner, hidden, false)?;
    let up = layer.linear(("mlp.shared_expert.up_proj", "ffn_up_shexp"), inner, hidden, false)?;
    let down = layer.linear(("mlp.shared_expert.down_proj", "ffn_down_shexp"), hidden, inner, false)?;
    let weight = layer.exact_linear(("mlp.shared_expert_gate", "ffn_gate_inp_shexp"), 1, hidden)?;
    Ok(SharedExpert { mlp: Mlp::new(Inner::Gated { gate, up }, activation, down), gate: Some(weight) })
}
