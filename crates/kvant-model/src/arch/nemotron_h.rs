//! Nemotron-H: layers of a single mixer each, Mamba-2, attention without positions, an MLP or experts.

use crate::arch::common;
use crate::arch::qwen3_moe::EXPERT_INNER;
use crate::arch::recurrent::{self, Mamba2Keys, Mamba2Options, NormOptions};
use crate::arch::{Name, Scope, latent};
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
    let kinds = if config.is_gguf() { gguf_kinds(scope)? } else { kinds(config)? };
    let dims = dims(config, kinds.len())?;
    // GGUF files may have both.
    let eps = match config.positive_if(Key("", common::RMS_EPS.1))? {
        Some(eps) => eps,
        None => config.positive(common::LAYER_NORM_EPS)?,
    } as f32;
    let activation = config.activation(Key("mlp_hidden_act", ""), Activation::ReluSquared)?;
    let mamba = mamba_dims(config)?;
    let options = Mamba2Options {
        projection_bias: config.flag(Key("use_bias", ""), false)?,
        conv_bias: config.flag(Key("use_conv_bias", ""), true)?,
        part_scales: [1.0; 5],
        norm: Some(NormOptions { width: mamba.inner() / mamba.groups, eps, order: GateOrder::GateFirst }),
    };
    let layers = common::layers_in(scope, ("backbone.layers", "blk"), dims.layers, |layer, index| {
        let place = layer.inside(("mixer", ""));
        let mixer = match kinds[index] {
            Kind::Mamba => {
                Mixer::Mamba2(Box::new(recurrent::mamba2(&place, index, dims.hidden, mamba, &options)?))
            }
            Kind::Attention => Mixer::Attention(Box::new(attention(&place, index, &dims)?)),
            Kind::Mlp => {
                let bias = config.flag(Key("mlp_bias", ""), false)?;
                let inner = config.size(common::INNER)?;
                let names = (("up_proj", "ffn_up"), ("down_proj", "ffn_down"));
                Mixer::Ffn(Ffn::Dense(mlp(&place, names, (dims.hidden, inner), activation, bias)?))
            }
            Kind::Experts => Mixer::Ffn(Ffn::Experts(Box::new(experts(&place, dims.hidden, activation)?))),
        };
        let norm = layer.rms_norm(("norm", "attn_norm"), dims.hidden, eps, 0.0)?;
        Ok(Layer::new(vec![Residual::pre_norm(norm, mixer)]))
    })?;
    let table = common::token_table(scope, "backbone.embeddings", &dims)?;
    let norm = scope.rms_norm(("backbone.norm_f", "output_norm"), dims.hidden, eps, 0.0)?;
    let output = common::output(scope, "lm_head", &table)?;
    common::framed(scope, &dims, table, layers, norm, output)
}

/// The kinds of all layers: a letter each, or a word.
fn kinds(config: &ModelConfig<'_>) -> Result<Vec<Kind>> {
    const PATTERN: Key = Key("hybrid_override_pattern", "");
    const TYPES: Key = Key("layers_block_type", "");
    let unknown = |key: &str, found: &str| {
        Err(LoadError::unsupported(format!(
            "config.json: key {key:?}: kvant does not know layers of the kind {found:?}"
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

/// The kinds of all layers of a GGUF file, which gives key-value heads and inner widths for each.
fn gguf_kinds(scope: &Scope<'_>) -> Result<Vec<Kind>> {
    const KV_HEADS: Key = Key("", "attention.head_count_kv");
    const INNER: Key = Key("", "feed_forward_length");
    let config = scope.config();
    let layers = Dims::layers(config)?;
    let list = |key| {
        let list = config.layer_counts(key, layers)?;
        list.ok_or_else(|| config.refused(key, format!("a list of {layers}, one per layer, is needed")))
    };
    let kind = |(layer, (kv_heads, inner))| {
        let router = (
            format!("backbone.layers.{layer}.mixer.gate.weight"),
            format!("blk.{layer}.ffn_gate_inp.weight"),
        );
        Ok(match (kv_heads, inner) {
            (1.., _) => Kind::Attention,
            (0, 0) => Kind::Mamba,
            (0, _) if scope.has_tensor((&router.0, &router.1))? => Kind::Experts,
            (0, _) => Kind::Mlp,
        })
    };
    list(KV_HEADS)?.into_iter().zip(list(INNER)?).enumerate().map(kind).collect()
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
    const KEYS: Mamba2Keys = Mamba2Keys {
        heads: "mamba_num_heads",
        groups: "n_groups",
        state: "ssm_state_size",
        kernel: "conv_kernel",
    };
    recurrent::mamba2_dims(config, &KEYS, || {
        let size = |name| config.size(Key(name, ""));
        Ok(size(KEYS.heads)?.saturating_mul(size("mamba_head_dim")?))
    })
}

fn attention(place: &Scope<'_>, index: usize, dims: &Dims) -> Result<Attention> {
    let bias = place.config().flag(common::ATTENTION_BIAS, false)?;
    let linear = |name, outputs| place.linear(name, outputs, dims.hidden, bias);
    let projection = Projection::Apart {
        q: linear(("q_proj", "attn_q"), dims.query_width())?,
        k: linear(("k_proj", "attn_k"), dims.kv_width())?,
        v: linear(("v_proj", "attn_v"), dims.kv_width())?,
    };
    let output = place.linear(("o_proj", "attn_output"), dims.hidden, dims.query_width(), bias)?;
    Ok(common::attention_of(place, index, dims, None, projection, output))
}

/// An MLP without a gate, whose layers to and from the inner width have these names.
fn mlp(
    place: &Scope<'_>,
    (up, down): (Name, Name),
    (hidden, inner): (usize, usize),
    activation: Activation,
    bias: bool,
) -> Result<Mlp> {
    let up = place.linear(up, inner, hidden, bias)?;
    let down = place.linear(down, hidden, inner, bias)?;
    Ok(Mlp::new(Inner::Plain(up), activation, down))
}

/// Experts without a gate, which may work in a narrower space, and a shared one in the full width.
fn experts(place: &Scope<'_>, hidden: usize, activation: Activation) -> Result<Moe> {
    let config = place.config();
    let router = latent::sigmoid_router(place, "gate", hidden)?;
    let (count, inner) = (config.size(common::EXPERTS)?, config.size(EXPERT_INNER)?);
    let narrow = config.size_if(Key("moe_latent_size", "moe_latent_size"))?;
    let width = narrow.unwrap_or(hidden);
    let ups = place.experts(("experts.{}.up_proj", "ffn_up_exps"), count, inner, width)?;
    let downs = place.experts(("experts.{}.down_proj", "ffn_down_exps"), count, width, inner)?;
    let names = (("shared_experts.up_proj", "ffn_up_shexp"), ("shared_experts.down_proj", "ffn_down_shexp"));
    let shared = mlp(place, names, (hidden, config.size(common::SHARED_INNER)?), activation, false)?;
    let latent = |narrow| {
        let into = place.linear(("fc1_latent_proj", "ffn_latent_down"), narrow, hidden, false)?;
        Ok((into, place.linear(("fc2_latent_proj", "ffn_latent_up"), hidden, narrow, false)?))
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
