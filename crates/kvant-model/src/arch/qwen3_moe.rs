//! Qwen 3 with experts: no shared expert, shares of the chosen ones usually scaled to one.

use crate::arch::usual::{self, ExpertNames};
use crate::arch::{Network, Parts};
use crate::blocks::{Activation, Pairing};
use crate::config::{Dims, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

/// Experts of the Qwen family.
pub const EXPERT: ExpertNames = ExpertNames {
    router: "mlp.gate",
    gate: "mlp.experts.{}.gate_proj",
    up: "mlp.experts.{}.up_proj",
    down: "mlp.experts.{}.down_proj",
};
/// Width of an expert.
pub const EXPERT_INNER: Key = Key("moe_intermediate_size", "expert_feed_forward_length");
/// Whether the shares of the chosen experts are scaled to one.
pub const RENORMALISE: Key = Key("norm_topk_prob", "");

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    let (inner, expert_inner) = (hyper.size_if(usual::INNER)?, hyper.size(EXPERT_INNER)?);
    let eps = hyper.positive(usual::RMS_EPS)? as f32;
    let activation = hyper.activation(usual::ACTIVATION, Activation::Silu)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    // GGUF does not say; the released models do renormalise.
    let renormalise = hyper.flag(RENORMALISE, hyper.is_gguf())?;
    let slides = hyper.flag(Key("use_sliding_window", ""), false)?;
    let windows = usual::windows(hyper, dims.layers, |_| slides)?;
    let rope = Arc::new(parts.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        attention.qk_norm = Some(usual::qk_norm(layer, dims.head_dim, dims.head_dim, eps, 0.0)?);
        attention.rope = Some(rope.clone());
        attention.shape.window = windows[index];
        let ffn = usual::sparse_ffn(
            layer,
            index,
            || usual::gated_mlp(layer, dims.hidden, inner.unwrap_or(expert_inner), activation, false),
            || usual::experts(layer, &EXPERT, dims.hidden, expert_inner, activation, renormalise),
        )?;
        usual::prenorm(layer, &dims, eps, attention, ffn)
    })?;
    usual::boxed(usual::decoder(parts, &dims, blocks, 0.0)?)
}
