//! Nemotron-H: layers of a single mixer each, Mamba-2, attention without positions, a perceptron or experts.

use crate::arch::common;
use crate::arch::recurrent::{self, Mamba2Options, NormOptions};
use crate::arch::{Scope, latent};
use crate::config::{Dims, Key, ModelConfig};
use crate::description::{
    Activation, Attention, Description, Ffn, GateOrder, Inner, Layer, Mamba2Dims, Mixer, Mlp, Moe,
    Projection, Residual, SharedExpert,
};
use crate::error::{LoadError, Result};

/// What a layer is.
#[derive(Clone, Copy)]
enum Kind {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

pub fn describe(scope: &Scope<'_>) -> Result<Description> {
    let config = scope.config();
    let kinds = kinds(config)?;
    let dims = dims(config, kinds.len())?;
    let eps = config.positive(common::LAYER_NORM_EPS)? as f32;
    let activation = config.activation(Key("mlp_hidden_act", ""), Activation::ReluSquared)?;
    let mamba = mamba_dims(config)?;
    let options = Mamba2Options {
        projection_bias: config.flag(Key("use_bias", ""), false)?,
        conv_bias: config.flag(Key("use_conv_bias", ""), true)?,
        part_scales: [1.0; 5],
        norm: Some(NormOptions { width: mamba.inner() / mamba.groups, eps, order: GateOrder::GateFirst }),
    };
    let layers = common::layers_in(scope, ("backbone.layers", ""), dims.layers, |layer, index| {
        let place = layer.inside(("mixer", ""));
        let mixer = match kinds[index] {
            Kind::Mamba => {
                Mixer::Mamba2(Box::new(recurrent::mamba2(&place, index, dims.hidden, mamba, &options)?))
            }
            Kind::Attention => Mixer::Attention(Box::new(attention(&place, index, &dims)?)),
            Kind::Mlp => {
                let bias = config.flag(Key("mlp_bias", ""), false)?;
                let inner = config.size(common::INNER)?;
                Mixer::Ffn(Ffn::Dense(mlp(&place, dims.hidden, inner, activation, bias)?))
            }
            Kind::Experts => Mixer::Ffn(Ffn::Experts(Box::new(experts(&place, dims.hidden, activation)?))),
        };
        let norm = layer.rms_norm(("norm", ""), dims.hidden, eps, 0.0)?;
        Ok(Layer { residuals: vec![Residual::pre_norm(norm, mixer)] })
    })?;
    let table = common::token_table(scope, "backbone.embeddings", &dims)?;
    let norm = scope.rms_norm(("backbone.norm_f", ""), dims.hidden, eps, 0.0)?;
    let output = common::output(scope, "lm_head", &table)?;
    common::framed(scope, &dims, table, layers, norm, output)
}

/// The kinds of all layers: a letter each, or a word.
fn kinds(config: &ModelConfig<'_>) -> Result<Vec<Kind>> {
    const PATTERN: Key = Key("hybrid_override_pattern", "");
    const TYPES: Key = Key("layers_block_type", "");
    let unknown = |key: &str, found: &str| {
        Err(LoadError::unsupported(format!(
            "config.json: key {key:?}: {found:?} is no kind of layer kvant knows"
        )))
    };
    if let Some(words) = config.all_texts(TYPES)? {
        let kind = |word: String| match word.as_str() {
            "mamba" | "linear_attention" => Ok(Kind::Mamba),
            "attention" | "full_attention" => Ok(Kind::Attention),
            "mlp" => Ok(Kind::Mlp),
            "moe" => Ok(Kind::Experts),
            other => unknown(TYPES.0, other),
        };
        return words.into_iter().map(kind).collect();
    }
    let Some(pattern) = config.text(PATTERN)? else { return Err(config.refused(PATTERN, "is missing")) };
    let kind = |letter: char| match letter {
        'M' => Ok(Kind::Mamba),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::Mlp),
        'E' => Ok(Kind::Experts),
        other => unknown(PATTERN.0, &other.to_string()),
    };
    pattern.chars().map(kind).collect()
}

/// New configurations do not give the number of layers.
fn dims(config: &ModelConfig<'_>, layers: usize) -> Result<Dims> {
    const LAYERS: Key = Key("num_hidden_layers", "");
    if layers == 0 || config.size_if(LAYERS)?.is_some_and(|count| count != layers) {
        return Err(config.refused(LAYERS, format!("the kinds of {layers} layers are given")));
    }
    Dims::with_layers(config, layers)
}

fn mamba_dims(config: &ModelConfig<'_>) -> Result<Mamba2Dims> {
    let size = |name| config.size(Key(name, ""));
    Ok(Mamba2Dims {
        heads: size("mamba_num_heads")?,
        head_dim: size("mamba_head_dim")?,
        groups: size("n_groups")?,
        state: size("ssm_state_size")?,
        kernel: size("conv_kernel")?,
    })
}

fn attention(place: &Scope<'_>, index: usize, dims: &Dims) -> Result<Attention> {
    let bias = place.config().flag(common::ATTENTION_BIAS, false)?;
    let linear = |name, outputs| place.linear((name, ""), outputs, dims.hidden, bias);
    let projection = Projection::Apart {
        q: linear("q_proj", dims.query_width())?,
        k: linear("k_proj", dims.kv_width())?,
        v: linear("v_proj", dims.kv_width())?,
    };
    let output = place.linear(("o_proj", ""), dims.hidden, dims.query_width(), bias)?;
    Ok(common::attention_of(place, index, dims, None, projection, output))
}

/// A perceptron without a gate.
fn mlp(place: &Scope<'_>, hidden: usize, inner: usize, activation: Activation, bias: bool) -> Result<Mlp> {
    let up = place.linear(("up_proj", ""), inner, hidden, bias)?;
    let down = place.linear(("down_proj", ""), hidden, inner, bias)?;
    Ok(Mlp::new(Inner::Plain(up), activation, down))
}

/// Experts without a gate, which may work in a narrower space, and a shared one in the full width.
fn experts(place: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Moe> {
    let config = place.config();
    let router = latent::sigmoid_router(place, "gate", hidden)?;
    let (count, inner) = (config.size(common::EXPERTS)?, config.size(Key("moe_intermediate_size", ""))?);
    let narrow = config.size_if(Key("moe_latent_size", ""))?;
    let width = narrow.unwrap_or(hidden);
    let ups = place.experts(("experts.{}.up_proj", ""), count, inner, width)?;
    let downs = place.experts(("experts.{}.down_proj", ""), count, width, inner)?;
    let shared_inner = config.size(Key("moe_shared_expert_intermediate_size", ""))?;
    let shared = mlp(&place.inside(("shared_experts", "")), hidden, shared_inner, activation, false)?;
    let latent = |narrow| {
        let into = place.linear(("fc1_latent_proj", ""), narrow, hidden, false)?;
        Ok((into, place.linear(("fc2_latent_proj", ""), hidden, narrow, false)?))
    };
    Ok(Moe {
        router,
        experts: ups
            .into_iter()
            .zip(downs)
            .map(|(up, down)| Mlp::new(Inner::Plain(up), activation, down))
            .collect(),
        shared: Some(SharedExpert { mlp: shared, gate: None }),
        latent: narrow.map(latent).transpose()?,
    })
}
