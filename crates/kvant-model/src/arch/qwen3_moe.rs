//! Qwen 3 with experts: no shared expert, shares of the chosen ones usually scaled to one.

use crate::arch::Scope;
use crate::arch::common::{self, ExpertNames};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{Activation, Description, Pairing};
use crate::error::Result;

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

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let (inner, expert_inner) = (config.size_if(common::INNER)?, config.size(EXPERT_INNER)?);
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    // GGUF does not say; the released models do renormalise.
    let renormalise = config.flag(RENORMALISE, config.is_gguf())?;
    let slides = config.flag(Key("use_sliding_window", ""), false)?;
    let windows = common::windows(config, dims.layers, |_| slides)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.head_dim, dims.head_dim), eps, 0.0)?;
        attention.rope = Some(rope);
        let ffn = common::sparse_ffn(
            layer,
            index,
            || common::gated_mlp(layer, dims.hidden, inner.unwrap_or(expert_inner), activation, false),
            || common::experts(layer, &EXPERT, dims.hidden, expert_inner, activation, renormalise),
        )?;
        common::pre_norm(layer, &dims, eps, attention, ffn)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}
