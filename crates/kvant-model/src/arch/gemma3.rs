//! Gemma 3 (text): Gemma 2 with norms on queries and keys in place of the cap, five sliding layers to one that
//! sees everything, and a rotary embedding for each kind.

use crate::arch::gemma2::{final_cap, sandwich, score_scale};
use crate::arch::{Scope, common, gemma};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{Description, Pairing};
use crate::error::Result;

const PATTERN: Key =
    Key("sliding_window_pattern|_sliding_window_pattern", "attention.sliding_window_pattern");
const BIDIRECTIONAL: Key = Key("use_bidirectional_attention", "");
/// Of layers that see everything.
pub const GLOBAL_ROPE: RopeKeys = RopeKeys { default_theta: 1_000_000.0, ..RopeKeys::usual(Pairing::Halves) };
/// Of layers that slide.
pub const LOCAL_ROPE: RopeKeys = RopeKeys {
    layer_type: "sliding_attention",
    theta: Key("rope_local_base_freq", "rope.freq_base_swa"),
    scaled: false,
    ..RopeKeys::usual(Pairing::Halves)
};

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    if config.flag(BIDIRECTIONAL, false)? {
        return Err(config.refused(BIDIRECTIONAL, "only models that read left to right are supported"));
    }
    let inner = config.size(common::INNER)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = gemma::activation(config)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let score_scale = score_scale(config, &dims, 62)?;
    let score_cap = config.positive_if(Key("attn_logit_softcapping", ""))?;
    // A list says it layer by layer.
    let listed = config.layer_flags(PATTERN, dims.layers)?.is_some();
    let pattern = if listed { None } else { config.size_if(PATTERN)? }.unwrap_or(6);
    let windows = common::windows(config, dims.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let global_rope = scope.rope(&GLOBAL_ROPE, dims.head_dim)?;
    let local_rope = scope.rope(&LOCAL_ROPE, dims.head_dim)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mut attention = common::attention(layer, index, &dims, windows[index], (bias, bias))?;
        (attention.q_norm, attention.k_norm) =
            common::qk_norm(layer, (dims.head_dim, dims.head_dim), eps, gemma::NORM_OFFSET)?;
        attention.rope = Some(if windows[index].is_some() { local_rope } else { global_rope });
        attention.scale = score_scale;
        attention.soft_cap = score_cap.map(|cap| cap as f32);
        let mlp = common::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        sandwich(layer, &dims, eps, attention, mlp)
    })?;
    let mut description = common::decoder(scope, &dims, layers, gemma::NORM_OFFSET)?;
    description.embedding.scale = (dims.hidden as f32).sqrt();
    description.head.soft_cap = final_cap(config)?;
    Ok(description)
}
