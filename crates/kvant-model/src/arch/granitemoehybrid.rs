//! Granite 4: Mamba-2, on some layers attention, experts beside a shared MLP or that alone, four multipliers.

use crate::arch::common::{self, ExpertNames};
use crate::arch::recurrent::{self, Mamba2Keys, Mamba2Options, NormOptions};
use crate::arch::{Scope, glm4_moe, granite};
use crate::config::{Dims, Key, ModelConfig, RopeKeys};
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
    let rope = if rotates(config)? {
        Some(scope.rope(&RopeKeys::usual(Pairing::Neighbours), dims.head_dim)?)
    } else {
        None
    };
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
        let norm = |name| layer.rms_norm(name, dims.hidden, eps, 0.0);
        let part =
            |name, mixer| Ok(Residual { scale: scales.residual, ..Residual::pre_norm(norm(name)?, mixer) });
        let ffn = Mixer::Ffn(ffn(layer, dims.hidden, activation)?);
        let (before, between) = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"));
        Ok(Layer::new(vec![part(before, mixer)?, part(between, ffn)?]))
    })?;
    let mut description = common::decoder(scope, &dims, layers, 0.0)?;
    description.embedding.scale = scales.embedding;
    description.head.scale = 1.0 / scales.logits_divisor;
    Ok(description)
}

/// Whether attention has positions; a GGUF file that does not say so has them.
fn rotates(config: &ModelConfig<'_>) -> Result<bool> {
    if config.is_gguf() {
        return config.flag(Key("", "rope.scaling.finetuned"), true);
    }
    Ok(config.text(Key("position_embedding_type", ""))?.as_deref() == Some("rope"))
}

/// The Mamba-2 sizes of Granite and Falcon.
pub const MAMBA: Mamba2Keys = Mamba2Keys {
    heads: "mamba_n_heads",
    groups: "mamba_n_groups",
    state: "mamba_d_state",
    kernel: "mamba_d_conv",
};

fn mamba_dims(scope: &Scope<'_>, dims: &Dims) -> Result<Mamba2Dims> {
    let config = scope.config();
    recurrent::mamba2_dims(config, &MAMBA, || Ok(config.size(Key("mamba_expand", ""))? * dims.hidden))
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

/// The shared MLP, alone or beside experts.
fn ffn(layer: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Ffn> {
    let config = layer.config();
    let shared_inner = config.size(common::SHARED_INNER)?;
    if config.is_gguf() {
        return apart(layer, hidden, shared_inner, activation);
    }
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

/// The same in GGUF files, which have gates and ups apart.
fn apart(layer: &Scope<'_>, hidden: usize, shared_inner: usize, activation: Activation) -> Result<Ffn> {
    const EXPERT: ExpertNames = ExpertNames { router: "", gate: "", up: "", down: "" };
    let config = layer.config();
    if config.count(common::EXPERTS)?.is_none() {
        return Ok(Ffn::Dense(common::gated_mlp(layer, hidden, shared_inner, activation, false)?));
    }
    let inner = config.size(common::INNER)?;
    let mut moe = common::experts(layer, &EXPERT, hidden, inner, activation, false)?;
    moe.router.score = RouterScore::SoftmaxOfChosen;
    moe.shared = Some(glm4_moe::shared_expert(layer, hidden, shared_inner, activation)?);
    Ok(Ffn::Experts(Box::new(moe)))
}
