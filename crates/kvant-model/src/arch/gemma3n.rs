//! Gemma 3n (text): several residual streams of which each layer changes one (AltUp), a low-rank layer beside attention (LAuReL),
//! inputs of each layer's own, sparse activations in the first layers, and upper layers that attend to the keys and values of
//! lower ones.

use crate::arch::gemma_shared::{self, SharedSlots};
use crate::arch::{Scope, common, gemma, gemma2, gemma3};
use crate::config::{Dims, Key, ModelConfig};
use crate::description::{
    AltUp, Attention, Branch, Description, Ffn, Laurel, Layer, Linear, Matrix, Mixer, Mlp, Norm, Projection,
    Residual, Streams, Vector,
};
use crate::error::Result;
use std::f32::consts::FRAC_1_SQRT_2;

const STREAMS: Key = Key("altup_num_inputs", "altup.num_inputs");
const ACTIVE: Key = Key("altup_active_idx", "altup.active_idx");

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let hidden = dims.hidden;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let activation = gemma::activation(config)?;
    let windows = gemma_shared::windows(config, dims.layers, 5)?;
    let inner = config.layer_sizes(common::INNER, dims.layers)?;
    let cuts = sparsity(config, dims.layers)?;
    let (streams, active) = (config.size(STREAMS)?, config.count(ACTIVE)?.unwrap_or(0));
    if active >= streams {
        return Err(config.refused(ACTIVE, format!("{active} is no stream of {streams}")));
    }
    let input_width = config.size(gemma_shared::INPUT_WIDTH)?;
    let full_rope = scope.rope(&gemma3::GLOBAL_ROPE, dims.head_dim)?;
    let sliding_rope = scope.rope(&gemma3::LOCAL_ROPE, dims.head_dim)?;
    let slots = SharedSlots::read(config, dims.layers)?;

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let norm = |name| layer.rms_norm(name, hidden, eps, 0.0);
        let rope = Some(if windows[index].is_some() { sliding_rope } else { full_rope });
        let attention =
            Attention { rope, scale: 1.0, ..attention(layer, index, &dims, eps, windows[index], &slots)? };
        let before = norm(("input_layernorm", "attn_norm"))?;
        let after = norm(("post_attention_layernorm", "post_attention_norm"))?;
        let attention = Branch::new(Some(before.clone()), Mixer::Attention(Box::new(attention)), Some(after));
        let laurel = Branch::new(Some(before), Mixer::Laurel(Box::new(laurel(layer, hidden, eps)?)), None);
        let beside =
            Residual { scale: FRAC_1_SQRT_2, keep: FRAC_1_SQRT_2, ..Residual::sum(vec![attention, laurel]) };
        let mlp = common::gated_mlp(layer, hidden, inner[index], activation, false)?;
        let mlp = Mixer::Ffn(Ffn::Dense(Mlp { sparsity: cuts[index], ..mlp }));
        let before = norm(("pre_feedforward_layernorm", "ffn_norm"))?;
        let after = norm(("post_feedforward_layernorm", "post_ffw_norm"))?;
        let ffn = Residual::of(Branch::new(Some(before), mlp, Some(after)));
        let input = gemma_shared::layer_input(layer, index, hidden, input_width, activation)?;
        let coefficients = |name, outputs| layer.exact_linear(name, outputs, streams);
        let scale = ("altup.correct_output_scale", "altup_correct_scale.weight");
        let has_scale = config.is_gguf() || config.flag(Key("altup_correct_scale", ""), true)?;
        let altup = AltUp {
            active,
            router_norm: norm(("altup.router_norm", "altup_router_norm"))?,
            router_scale: 1.0 / hidden as f32,
            router: layer.exact_linear(("altup.modality_router", "altup_router"), streams, hidden)?,
            prediction: coefficients(("altup.prediction_coefs", "altup_predict_coef"), streams * streams)?,
            correction: coefficients(("altup.correction_coefs", "altup_correct_coef"), streams)?,
            output_scale: has_scale.then(|| layer.tensor(scale, &[hidden]).map(Vector::whole)).transpose()?,
            input,
            input_norm: norm(("post_per_layer_input_norm", "post_norm"))?,
        };
        Ok(Layer { altup: Some(Box::new(altup)), ..Layer::new(vec![beside, ffn]) })
    })?;
    let mut description = common::decoder(scope, &dims, layers, 0.0)?;
    description.embedding.scale = (hidden as f32).sqrt();
    description.embedding.per_layer =
        Some(gemma_shared::layer_inputs(scope, dims.layers, hidden, input_width, eps)?);
    let further = |name| further_streams(scope, name, streams - 1, hidden);
    description.embedding.streams = Some(Streams {
        open: further(("model.altup_projections", "altup_proj"))?,
        join: further(("model.altup_unembed_projections", "altup_unembd_proj"))?,
    });
    description.head.soft_cap = gemma2::final_cap(config)?;
    Ok(description)
}

/// The linear layers of all streams but the first: one tensor in GGUF.
fn further_streams(
    scope: &Scope<'_>,
    (hf, gguf): (&'static str, &'static str),
    count: usize,
    hidden: usize,
) -> Result<Vec<Linear>> {
    if scope.config().is_gguf() {
        let all = scope.weight(("", gguf), &[count, hidden, hidden])?;
        let part = |index| Linear::new(Matrix { expert: Some(index), ..Matrix::whole(all.clone()) });
        return Ok((0..count).map(part).collect());
    }
    let own = |index: usize| {
        let tensor = scope.tensor((&format!("{hf}.{index}.weight"), ""), &[hidden, hidden])?;
        Ok(Linear::new(Matrix::whole(tensor)))
    };
    (0..count).map(own).collect()
}

/// For every layer how many deviations above the mean a gate must be to count. GGUF has those numbers, configurations the share
/// of gates that do not count.
fn sparsity(config: &ModelConfig<'_>, layers: usize) -> Result<Vec<Option<f32>>> {
    const SHARES: Key = Key("activation_sparsity_pattern", "");
    const DEVIATIONS: Key = Key("", "activation_sparsity_scale");
    let (key, is_share) = if config.is_gguf() { (DEVIATIONS, false) } else { (SHARES, true) };
    let Some(found) = config.layer_numbers(key, layers)? else { return Ok(vec![None; layers]) };
    let cut = |value: f64| match (is_share, value) {
        (true, 0.0) | (false, f64::NEG_INFINITY) => Ok(None),
        (true, share) if (0.0..1.0).contains(&share) => Ok(Some(normal_quantile(share) as f32)),
        (false, deviations) if deviations.is_finite() => Ok(Some(deviations as f32)),
        (_, other) => Err(config.refused(key, format!("{other} is no sparsity"))),
    };
    found.into_iter().map(cut).collect()
}

/// Φ⁻¹, by halving.
fn normal_quantile(share: f64) -> f64 {
    let below = |x: f64| 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2);
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    0.5 * (low + high)
}

fn attention(
    layer: &Scope<'_>,
    index: usize,
    dims: &Dims,
    eps: f32,
    window: Option<usize>,
    slots: &SharedSlots,
) -> Result<Attention> {
    let head_norm = |name| layer.rms_norm(name, dims.head_dim, eps, 0.0);
    let q_norm = Some(head_norm(("self_attn.q_norm", "attn_q_norm"))?);
    if let Some(slot) = slots.view(layer, index, window) {
        let q = layer.linear(("self_attn.q_proj", "attn_q"), dims.query_width(), dims.hidden, false)?;
        let output =
            layer.linear(("self_attn.o_proj", "attn_output"), dims.hidden, dims.query_width(), false)?;
        let attention = common::attention_over(slot, dims, window, Projection::Shared { q }, output);
        return Ok(Attention { q_norm, ..attention });
    }
    let attention = common::attention(layer, index, dims, window, (false, false))?;
    slots.opened(window, attention.slot);
    let k_norm = head_norm(("self_attn.k_norm", "attn_k_norm"))?;
    let v_norm = Some(Norm { weight: None, ..k_norm.clone() });
    Ok(Attention { q_norm, k_norm: Some(k_norm), v_norm, ..attention })
}

fn laurel(layer: &Scope<'_>, hidden: usize, eps: f32) -> Result<Laurel> {
    let left = ("laurel.linear_left", "laurel_l");
    let rank = layer.size_or_rows(Key("laurel_rank", ""), left)?;
    Ok(Laurel {
        left: layer.linear(left, rank, hidden, false)?,
        right: layer.linear(("laurel.linear_right", "laurel_r"), hidden, rank, false)?,
        norm: layer.rms_norm(("laurel.post_laurel_norm", "laurel_post_norm"), hidden, eps, 0.0)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_undoes_the_distribution() {
        assert!(normal_quantile(0.5).abs() < 1e-12);
        assert!((normal_quantile(0.95) - 1.644_853_626_951_472_7).abs() < 1e-12);
    }
}
