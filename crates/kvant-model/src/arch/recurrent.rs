//! Mixers with recurrent state, by the names that checkpoints share.

use crate::arch::{Name, Scope};
use crate::config::{Key, ModelConfig};
use crate::description::{
    Activation, Convolution, DecayRate, DeltaDims, DeltaProjection, GateOrder, GatedDeltaNet, GatedNorm,
    HeadOrder, Linear, Mamba2, Mamba2Dims, Matrix, Norm, NormKind, RowRange, Vector,
};
use crate::error::{LoadError, Result};

/// Channels of all heads, in GGUF metadata.
const SSM_INNER: Key = Key("", "ssm.inner_size");
/// Key-value heads; in GGUF metadata a number per layer, zero in layers that do not attend.
const LAYER_KV_HEADS: Key = Key("", "attention.head_count_kv");

/// A convolution whose weights are `(channels, 1, kernel)`. GGUF does not say whether it has a bias.
pub fn convolution(
    place: &Scope<'_>,
    (hf, gguf): Name,
    (channels, kernel): (usize, usize),
    biased: bool,
    activation: Option<Activation>,
) -> Result<Convolution> {
    let named = |part: &str| (format!("{hf}.{part}"), format!("{gguf}.{part}"));
    let numbers = |part: &str, shape: &[usize]| {
        let (hf, gguf) = named(part);
        place.numbers((&hf, &gguf), shape)
    };
    let is_gguf = place.config().is_gguf();
    let weight = match is_gguf {
        true => numbers("weight", &[channels, kernel])?,
        false => numbers("weight", &[channels, 1, kernel])?,
    };
    let (hf, gguf) = named("bias");
    let biased = if is_gguf { place.has_tensor((&hf, &gguf))? } else { biased };
    let bias = if biased { Some(numbers("bias", &[channels])?) } else { None };
    Ok(Convolution { channels, kernel, weight, bias, activation })
}

/// Which layers attend: by `layer_types`, whose other kind is `state`, or every so many by the interval.
pub fn attends(
    config: &ModelConfig<'_>,
    layers: usize,
    attention: &[&str],
    state: &[&str],
    interval: Option<Key>,
) -> Result<Vec<bool>> {
    const TYPES: Key = Key("layer_types|layers_block_type", "");
    if let Some(kv_heads) = config.layer_counts(LAYER_KV_HEADS, layers)? {
        return Ok(kv_heads.into_iter().map(|heads| heads > 0).collect());
    }
    if let Some(kinds) = config.texts(TYPES, layers)? {
        let attends = |kind: String| match kind.as_str() {
            kind if attention.contains(&kind) => Ok(true),
            kind if state.contains(&kind) => Ok(false),
            other => Err(LoadError::unsupported(format!("key \"layer_types\": {other:?} is not supported"))),
        };
        return kinds.into_iter().map(attends).collect();
    }
    let Some(interval) = interval else { return Err(config.refused(TYPES, "is missing")) };
    let interval = config.size_if(interval)?.unwrap_or(4);
    Ok((0..layers).map(|layer| (layer + 1).is_multiple_of(interval)).collect())
}

/// The names of a Mamba-2 mixer's sizes in `config.json`.
pub struct Mamba2Keys {
    pub heads: &'static str,
    pub groups: &'static str,
    pub state: &'static str,
    pub kernel: &'static str,
}

/// The sizes of a Mamba-2 mixer of `inner` channels; GGUF files give that number too.
pub fn mamba2_dims(
    config: &ModelConfig<'_>,
    keys: &Mamba2Keys,
    inner: impl FnOnce() -> Result<usize>,
) -> Result<Mamba2Dims> {
    let heads_key = Key(keys.heads, "ssm.time_step_rank");
    let heads = config.size(heads_key)?;
    let inner = if config.is_gguf() { config.size(SSM_INNER)? } else { inner()? };
    if !inner.is_multiple_of(heads) {
        return Err(config.refused(heads_key, format!("{heads} heads do not divide {inner} channels")));
    }
    Ok(Mamba2Dims {
        heads,
        head_dim: inner / heads,
        groups: config.size(Key(keys.groups, "ssm.group_count"))?,
        state: config.size(Key(keys.state, "ssm.state_size"))?,
        kernel: config.size(Key(keys.kernel, "ssm.conv_kernel"))?,
    })
}

/// The biases and the norm of a Mamba-2 mixer.
pub struct Mamba2Options {
    pub projection_bias: bool,
    pub conv_bias: bool,
    /// Multipliers of z, x, B, C and dt.
    pub part_scales: [f32; 5],
    /// The norm beside its gate; its weight is filled in.
    pub norm: Option<NormOptions>,
}

/// A norm over groups of channels beside a gate.
pub struct NormOptions {
    pub width: usize,
    pub eps: f32,
    pub order: GateOrder,
}

/// The Mamba-2 mixer at a place, which has a slot of the layer.
pub fn mamba2(
    place: &Scope<'_>,
    index: usize,
    hidden: usize,
    dims: Mamba2Dims,
    options: &Mamba2Options,
) -> Result<Mamba2> {
    check_groups(dims.heads, dims.groups)?;
    // GGUF files have some of them in two extents.
    let is_gguf = place.config().is_gguf();
    let rows = |name: Name, count: usize, rows: usize| match is_gguf {
        true => place.numbers(name, &[rows, count / rows]),
        false => place.numbers(name, &[count]),
    };
    let norm = |norm: &NormOptions| {
        let weight = rows(("norm.weight", "ssm_norm.weight"), dims.inner(), dims.groups)?;
        Ok(GatedNorm { weight, width: norm.width, eps: norm.eps, order: norm.order })
    };
    let conv = (dims.conv_channels(), dims.kernel);
    Ok(Mamba2 {
        dims,
        input: place.linear(("in_proj", "ssm_in"), dims.projected(), hidden, options.projection_bias)?,
        part_scales: options.part_scales,
        conv: convolution(place, CONV, conv, options.conv_bias, Some(Activation::Silu))?,
        dt_bias: place.numbers(DT_BIAS, &[dims.heads])?,
        dt_limit: None,
        decay: decay(place, rows(DECAY, dims.heads, dims.heads)?),
        skip: rows(("D", "ssm_d"), dims.heads, dims.heads)?,
        norm: options.norm.as_ref().map(norm).transpose()?,
        output: place.linear(OUTPUT, hidden, dims.inner(), options.projection_bias)?,
        slot: place.slots(|slots| slots.recurrent(index, dims.state_shape())),
    })
}

const CONV: Name = ("conv1d", "ssm_conv1d");
const DT_BIAS: Name = ("dt_bias", "ssm_dt.bias");
const OUTPUT: Name = ("out_proj", "ssm_out");
const DECAY: Name = ("A_log", "ssm_a");

/// Rates of decay: their logarithms, or themselves in GGUF files.
fn decay(place: &Scope<'_>, rates: Vector) -> DecayRate {
    if place.config().is_gguf() { DecayRate::Plain(rates) } else { DecayRate::Log(rates) }
}

/// The gated DeltaNet at a place, which has a slot of the layer; `fused` says that its projections lie together by key head.
pub fn delta_net(
    place: &Scope<'_>,
    index: usize,
    hidden: usize,
    eps: f32,
    fused: bool,
) -> Result<GatedDeltaNet> {
    let dims = delta_dims(place.config(), fused)?;
    let linear = |name: Name, outputs| place.linear(name, outputs, hidden, false);
    let (keys, values) = (2 * dims.key_width(), dims.value_width());
    let projection = if fused && !place.config().is_gguf() {
        DeltaProjection::ByKeyHead {
            qkvz: linear(("in_proj_qkvz", ""), keys.saturating_add(2 * values))?,
            ba: linear(("in_proj_ba", ""), 2 * dims.value_heads)?,
        }
    } else {
        let [b, a] = if fused {
            betas_and_alphas(&linear(("", "ssm_ba"), 2 * dims.value_heads)?, &dims)
        } else {
            [
                linear(("in_proj_b", "ssm_beta"), dims.value_heads)?,
                linear(("in_proj_a", "ssm_alpha"), dims.value_heads)?,
            ]
        };
        DeltaProjection::Apart {
            qkv: linear(("in_proj_qkv", "attn_qkv"), dims.conv_channels())?,
            z: linear(("in_proj_z", "attn_gate"), values)?,
            b,
            a,
        }
    };
    let vector = |name: Name, count| place.numbers(name, &[count]);
    let weight = Some(vector(("norm.weight", "ssm_norm.weight"), dims.value_dim)?);
    Ok(GatedDeltaNet {
        dims,
        projection,
        conv: convolution(place, CONV, (dims.conv_channels(), dims.kernel), false, Some(Activation::Silu))?,
        qk_eps: 1e-6,
        decay: decay(place, vector(DECAY, dims.value_heads)?),
        dt_bias: vector(DT_BIAS, dims.value_heads)?,
        norm: Norm { kind: NormKind::Rms, width: dims.value_dim, weight, bias: None, eps },
        output: place.linear(OUTPUT, hidden, values, false)?,
        slot: place.slots(|slots| slots.recurrent(index, dims.state_shape())),
    })
}

/// The sizes of a gated DeltaNet. In GGUF files those whose projections were apart have their value heads in another order.
fn delta_dims(config: &ModelConfig<'_>, fused: bool) -> Result<DeltaDims> {
    const VALUE_HEADS: Key = Key("linear_num_value_heads", "ssm.time_step_rank");
    let value_heads = config.size(VALUE_HEADS)?;
    let value_dim = if config.is_gguf() {
        let inner = config.size(SSM_INNER)?;
        if !inner.is_multiple_of(value_heads) {
            let why = format!("{value_heads} heads do not divide {inner} channels");
            return Err(config.refused(VALUE_HEADS, why));
        }
        inner / value_heads
    } else {
        config.size(Key("linear_value_head_dim", ""))?
    };
    let dims = DeltaDims {
        key_heads: config.size(Key("linear_num_key_heads", "ssm.group_count"))?,
        value_heads,
        order: if config.is_gguf() && !fused { HeadOrder::Tiled } else { HeadOrder::Grouped },
        key_dim: config.size(Key("linear_key_head_dim", "ssm.state_size"))?,
        value_dim,
        kernel: config.size(Key("linear_conv_kernel_dim", "ssm.conv_kernel"))?,
    };
    check_groups(dims.value_heads, dims.key_heads)?;
    Ok(dims)
}

/// b and a out of a layer that has, for each key head, b and then a of its value heads.
fn betas_and_alphas(both: &Linear, dims: &DeltaDims) -> [Linear; 2] {
    let run = dims.value_heads / dims.key_heads;
    [0, run].map(|first| {
        let rows = RowRange { first, step: 2 * run, run, count: dims.value_heads };
        Linear { weight: Matrix { rows: Some(rows), ..both.weight.clone() }, ..both.clone() }
    })
}

/// Refuses heads that groups do not divide.
fn check_groups(heads: usize, groups: usize) -> Result<()> {
    if heads.is_multiple_of(groups) {
        return Ok(());
    }
    Err(LoadError::mismatch(format!("{groups} groups do not divide {heads} heads")))
}
