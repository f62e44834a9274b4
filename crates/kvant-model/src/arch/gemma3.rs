//! Gemma 3 (text): Gemma 2 with norms on queries and keys in place of the cap, five sliding layers to one that
//! sees everything, and a rotary embedding for each kind.

use crate::arch::gemma2::{Sandwich, final_cap, score_scale};
use crate::arch::{Network, Parts, gemma, usual};
use crate::blocks::Pairing;
use crate::config::{Dims, Key, RopeKeys};
use crate::error::Result;
use std::sync::Arc;

const PATTERN: Key =
    Key("sliding_window_pattern|_sliding_window_pattern", "attention.sliding_window_pattern");
const BIDIRECTIONAL: Key = Key("use_bidirectional_attention", "");
const GLOBAL_ROPE: RopeKeys = RopeKeys { default_theta: 1_000_000.0, ..RopeKeys::usual(Pairing::Halves) };
const LOCAL_ROPE: RopeKeys = RopeKeys {
    layer_type: "sliding_attention",
    theta: Key("rope_local_base_freq", "rope.freq_base_swa"),
    scaled: false,
    ..RopeKeys::usual(Pairing::Halves)
};

pub fn load(parts: &Parts<'_>) -> Result<Box<dyn Network>> {
    let hyper = parts.hyper();
    let dims = Dims::read(hyper)?;
    if hyper.flag(BIDIRECTIONAL, false)? {
        return Err(hyper.refused(BIDIRECTIONAL, "only models that read left to right are supported"));
    }
    let inner = hyper.size(usual::INNER)?;
    let eps = hyper.positive(usual::RMS_EPS)? as f32;
    let activation = gemma::activation(hyper)?;
    let bias = hyper.flag(usual::ATTENTION_BIAS, false)?;
    let score_scale = score_scale(hyper, &dims, 62)?;
    let score_cap = hyper.positive_if(Key("attn_logit_softcapping", ""))?;
    let pattern = hyper.size_if(PATTERN)?.unwrap_or(6);
    let windows = usual::windows(hyper, dims.layers, |layer| !(layer + 1).is_multiple_of(pattern))?;
    let global_rope = Arc::new(parts.rope(&GLOBAL_ROPE, dims.head_dim)?);
    let local_rope = Arc::new(parts.rope(&LOCAL_ROPE, dims.head_dim)?);

    let blocks = usual::layers(parts, dims.layers, |layer, index| {
        let mut attention = usual::attention(layer, index, &dims, bias, bias)?;
        let norms = usual::qk_norm(layer, dims.head_dim, dims.head_dim, eps, gemma::NORM_OFFSET)?;
        attention.qk_norm = Some(norms);
        attention.shape.window = windows[index];
        attention.rope = Some(if windows[index].is_some() { &local_rope } else { &global_rope }.clone());
        attention.scoring.scale = score_scale;
        attention.scoring.soft_cap = score_cap.map(|cap| cap as f32);
        let mlp = usual::gated_mlp(layer, dims.hidden, inner, activation, false)?;
        Sandwich::load(layer, &dims, eps, attention, mlp)
    })?;
    let mut decoder = usual::decoder(parts, &dims, blocks, gemma::NORM_OFFSET)?;
    decoder.embedding = decoder.embedding.scaled((dims.hidden as f32).sqrt());
    decoder.head.soft_cap = final_cap(hyper)?;
    usual::boxed(decoder)
}
