//! Granite 4: Mamba-2, on some layers attention, experts beside a shared perceptron or that alone, four multipliers.

use crate::arch::common;
use crate::arch::recurrent::{self, Mamba2Options, NormOptions};
use crate::arch::{Scope, granite};
use crate::config::{Dims, Key, RopeKeys};
use crate::description::{
    Activation, Attention, Description, Ffn, GateOrder, Inner, Layer, Linear, Mamba2Dims, Matrix, Mixer, Mlp,
    Moe, Pairing, Residual, Router, RouterScore, SharedExpert, TensorRef,
};
use crate::error::Result;

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let dims = Dims::read(config)?;
    let eps = config.positive(common::RMS_EPS)? as f32;
    let scales = granite::Multipliers::read(config)?;
    let activation = config.activation(common::ACTIVATION, Activation::Silu)?;
    let bias = config.flag(common::ATTENTION_BIAS, false)?;
    let (attention, state) = (["attention", "full_attention"], ["mamba", "linear_attention"]);
    let attends = recurrent::attends(config, dims.layers, &attention, &state, None)?;
    let rotates = config.text(Key("position_embedding_type", ""))?.as_deref() == Some("rope");
    let rope =
        if rotates { Some(scope.rope(&RopeKeys::usual(Pairing::Halves), dims.head_dim)?) } else { None };
    let (mamba, options) = (mamba_dims(scope, &dims)?, options(scope, &dims, eps)?);

    let layers = common::layers(scope, dims.layers, |layer, index| {
        let mixer = if attends[index] {
            Mixer::Attention(Box::new(Attention {
                rope,
                scale: scales.score.unwrap_or_else(|| dims.score_scale()),
                ..common::attention(layer, index, &dims, None, (bias, bias))?
            }))
        } else {
            let place = layer.inside(("mamba", ""));
            Mixer::Mamba2(Box::new(recurrent::mamba2(&place, index, dims.hidden, mamba, &options)?))
        };
        let norm = |name| layer.rms_norm((name, ""), dims.hidden, eps, 0.0);
        let part =
            |name, mixer| Ok(Residual { scale: scales.residual, ..Residual::pre_norm(norm(name)?, mixer) });
        let ffn = Mixer::Ffn(ffn(layer, dims.hidden, activation)?);
        Ok(Layer { residuals: vec![part("input_layernorm", mixer)?, part("post_attention_layernorm", ffn)?] })
    })?;
    let mut description = common::decoder(scope, &dims, layers, 0.0)?;
    description.embedding.scale = scales.embedding;
    description.head.scale = 1.0 / scales.logits_divisor;
    Ok(description)
}

fn mamba_dims(scope: &Scope<'_>, dims: &Dims) -> Result<Mamba2Dims> {
    const HEADS: Key = Key("mamba_n_heads", "");
    let config = scope.config();
    let size = |name| config.size(Key(name, ""));
    let (heads, inner) = (config.size(HEADS)?, size("mamba_expand")? * dims.hidden);
    if !inner.is_multiple_of(heads) {
        return Err(config.refused(HEADS, format!("{heads} heads do not divide {inner} channels")));
    }
    Ok(Mamba2Dims {
        heads,
        head_dim: inner / heads,
        groups: size("mamba_n_groups")?,
        state: size("mamba_d_state")?,
        kernel: size("mamba_d_conv")?,
    })
}

fn options(scope: &Scope<'_>, dims: &Dims, eps: f32) -> Result<Mamba2Options> {
    let config = scope.config();
    let width = mamba_dims(scope, dims)?.inner();
    Ok(Mamba2Options {
        projection_bias: config.flag(Key("mamba_proj_bias", ""), false)?,
        conv_bias: config.flag(Key("mamba_conv_bias", ""), true)?,
        part_scales: [1.0; 5],
        norm: Some(NormOptions { width, eps, order: GateOrder::GateFirst }),
    })
}

/// The shared perceptron, alone or beside experts.
fn ffn(layer: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Ffn> {
    let config = layer.config();
    let shared_inner = config.size(Key("shared_intermediate_size", ""))?;
    let both = layer.linear(("shared_mlp.input_linear", ""), 2 * shared_inner, hidden, false)?;
    let down = layer.linear(("shared_mlp.output_linear", ""), hidden, shared_inner, false)?;
    let shared = Mlp::new(Inner::GatedFused(both), activation, down);
    let Some(count) = config.count(common::EXPERTS)? else { return Ok(Ffn::Dense(shared)) };
    let chosen = config.size(common::EXPERTS_CHOSEN)?;
    if chosen > count {
        let why = format!("{chosen} experts per token of {count} in all");
        return Err(config.refused(common::EXPERTS_CHOSEN, why));
    }
    let inner = config.size(common::INNER)?;
    let both = layer.weight(("block_sparse_moe.input_linear", ""), &[count, 2 * inner, hidden])?;
    let down = layer.weight(("block_sparse_moe.output_linear", ""), &[count, hidden, inner])?;
    let expert = |tensor: &TensorRef, expert| {
        Linear::new(Matrix { expert: Some(expert), ..Matrix::whole(tensor.clone()) })
    };
    let experts = (0..count)
        .map(|index| Mlp::new(Inner::GatedFused(expert(&both, index)), activation, expert(&down, index)))
        .collect();
    let router = layer.exact_linear(("block_sparse_moe.router.layer", ""), count, hidden)?;
    let router = Router { score: RouterScore::SoftmaxOfChosen, ..Router::softmax(router, chosen, false) };
    let shared = Some(SharedExpert { mlp: shared, gate: None });
    Ok(Ffn::Experts(Box::new(Moe { router, experts, shared, latent: None })))
}
