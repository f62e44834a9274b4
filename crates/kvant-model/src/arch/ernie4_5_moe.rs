//! ERNIE 4.5 with experts: a softmax router whose correction bias picks and does not weigh, and shared experts as one MLP.

use crate::arch::common::{self, Common};
use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER};
use crate::arch::{Scope, ernie4_5, glm4_moe};
use crate::config::{Key, ModelConfig};
use crate::description::{Description, Ffn, Renormalise};
use crate::error::Result;
use std::ops::RangeInclusive;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let common = Common::read(config)?;
    let Common { dims, inner, eps, activation } = common;
    let bias = config.flag(ernie4_5::BIAS, false)?;
    let expert_inner = config.size(EXPERT_INNER)?;
    let shared = config.count(Key("moe_num_shared_experts", "expert_shared_count"))?;
    let least = config.positive_if(Key("moe_norm_min", ""))?.unwrap_or(1e-12) as f32;
    let interval = config.size_if(Key("moe_layer_interval", "interleave_moe_layer_step"))?.unwrap_or(1);
    let sparse = sparse_layers(config, dims.layers)?;
    let rope = ernie4_5::rope(scope, &common)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let attention = ernie4_5::attention(layer, index, &common, rope, bias)?;
        let ffn = if sparse.contains(&index) && (index + 1).is_multiple_of(interval) {
            let mut moe = common::experts(layer, &EXPERT, dims.hidden, expert_inner, activation, true)?;
            let count = moe.experts.len();
            let bias = ("mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias");
            moe.router.bias = Some(layer.numbers(bias, &[1, count])?);
            moe.router.renormalise = Some(Renormalise { epsilon: 0.0, least });
            moe.shared = shared
                .map(|shared| glm4_moe::shared_expert(layer, dims.hidden, shared * expert_inner, activation))
                .transpose()?;
            Ffn::Experts(Box::new(moe))
        } else {
            Ffn::Dense(common::gated_mlp(layer, dims.hidden, inner, activation, bias)?)
        };
        common::pre_norm(layer, &dims, eps, attention, ffn)
    })?;
    common::decoder(scope, &dims, layers, 0.0)
}

/// Which layers may have experts.
fn sparse_layers(config: &ModelConfig<'_>, layers: usize) -> Result<RangeInclusive<usize>> {
    let first = config.count(Key("moe_layer_start_index", "leading_dense_block_count"))?.unwrap_or(0);
    // Minus one is the last layer.
    let last = config.integer(Key("moe_layer_end_index", ""))?.and_then(|last| usize::try_from(last).ok());
    Ok(first..=last.unwrap_or(layers))
}
