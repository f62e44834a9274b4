//! Qwen3-Next: gated DeltaNets, on every fourth layer attention with an output gate, experts with a shared one.

use crate::arch::qwen3_moe::{EXPERT, EXPERT_INNER, RENORMALISE};
use crate::arch::{Scope, common, gemma, mtp, qwen2_moe, recurrent};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{
    Activation, Attention, Description, Ffn, Layer, Mixer, Moe, OutputGate, Pairing, Projection, Residual,
    RopeId,
};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let hidden = Dims::read(config)?.hidden;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    described(scope, true, |layer, index| {
        common::sparse_ffn(
            layer,
            index,
            || common::gated_mlp(layer, hidden, config.size(common::INNER)?, activation, false),
            || experts(layer, hidden, activation),
        )
    })
}

/// Experts and the shared one behind its gate.
pub fn experts(layer: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Moe> {
    let config = layer.config();
    let renormalise = config.flag(RENORMALISE, true)?;
    let inner = config.size(EXPERT_INNER)?;
    let shared_inner = config.size(common::SHARED_INNER)?;
    let mut moe = common::experts(layer, &EXPERT, hidden, inner, activation, renormalise)?;
    moe.shared = Some(qwen2_moe::shared_expert(layer, hidden, shared_inner, activation)?);
    Ok(moe)
}

/// A hybrid of the family whose layers have this feed-forward part; `fused` says how its DeltaNets are projected.
pub fn described(
    scope: &Scope<'_>,
    fused: bool,
    ffn: impl Fn(&Scope<'_>, usize) -> Result<Ffn>,
) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let interval = Some(Key("full_attention_interval", "full_attention_interval"));
    let attends =
        recurrent::attends(config, dims.layers, &["full_attention"], &["linear_attention"], interval)?;
    let rope = scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?;
    let described = |layer: &Scope<'_>, index: usize| {
        // The layer of a head that guesses further tokens attends.
        let mixer = if attends.get(index).is_none_or(|attends| *attends) {
            Mixer::Attention(Box::new(attention(layer, index, &dims, eps, rope)?))
        } else {
            let place = layer.inside(("linear_attn", ""));
            Mixer::GatedDeltaNet(Box::new(recurrent::delta_net(&place, index, dims.hidden, eps, fused)?))
        };
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, gemma::NORM_OFFSET);
        let mixer = Residual::pre_norm(norm(("input_layernorm", "attn_norm"))?, mixer);
        let ffn_norm = norm(("post_attention_layernorm", "post_attention_norm"))?;
        let ffn = Residual::pre_norm(ffn_norm, Mixer::Ffn(ffn(layer, index)?));
        Ok(Layer::new(vec![mixer, ffn]))
    };
    let layers = common::layers(scope, dims.layers, described)?;
    let description = common::decoder(scope, &dims, layers, gemma::NORM_OFFSET)?;
    mtp::described(scope, description, &mtp::QWEN, described)
}

/// Attention whose query projection also gives the gate of its output.
fn attention(layer: &Scope<'_>, index: usize, dims: &Dims, eps: f32, rope: RopeId) -> Result<Attention> {
    let bias = layer.config().flag(common::ATTENTION_BIAS, false)?;
    let linear = |name, outputs| layer.linear(name, outputs, dims.hidden, bias);
    let projection = Projection::Apart {
        q: linear(("self_attn.q_proj", "attn_q"), 2 * dims.query_width())?,
        k: linear(("self_attn.k_proj", "attn_k"), dims.kv_width())?,
        v: linear(("self_attn.v_proj", "attn_v"), dims.kv_width())?,
    };
    let output = layer.linear(("self_attn.o_proj", "attn_output"), dims.hidden, dims.query_width(), bias)?;
    let mut attention = common::attention_of(layer, index, dims, None, projection, output);
    let widths = (dims.head_dim, dims.head_dim);
    (attention.q_norm, attention.k_norm) = common::qk_norm(layer, widths, eps, gemma::NORM_OFFSET)?;
    attention.rope = Some(rope);
    attention.gate = Some(OutputGate::InQuery);
    Ok(attention)
}
