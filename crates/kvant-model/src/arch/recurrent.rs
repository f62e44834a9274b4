//! Mixers with recurrent state, by the names that Hugging Face checkpoints share.

use crate::arch::Scope;
use crate::config::{Key, ModelConfig};
use crate::description::{
    Activation, Convolution, DecayRate, DeltaDims, DeltaProjection, GateOrder, GatedDeltaNet, GatedNorm,
    Mamba2, Mamba2Dims, Norm, NormKind, Vector,
};
use crate::error::{LoadError, Result};

/// A convolution whose weights are `(channels, 1, kernel)`.
pub fn convolution(
    place: &Scope<'_>,
    name: &'static str,
    (channels, kernel): (usize, usize),
    biased: bool,
    activation: Option<Activation>,
) -> Result<Convolution> {
    let weight = Vector::whole(place.weight((name, ""), &[channels, 1, kernel])?);
    let bias = || Ok(Vector::whole(place.tensor((&format!("{name}.bias"), ""), &[channels])?));
    let bias = if biased { Some(bias()?) } else { None };
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
    let vector = |name, count| Ok(Vector::whole(place.tensor((name, ""), &[count])?));
    let norm = |norm: &NormOptions| {
        let weight = vector("norm.weight", dims.inner())?;
        Ok(GatedNorm { weight, width: norm.width, eps: norm.eps, order: norm.order })
    };
    let conv = (dims.conv_channels(), dims.kernel);
    Ok(Mamba2 {
        dims,
        input: place.linear(("in_proj", ""), dims.projected(), hidden, options.projection_bias)?,
        part_scales: options.part_scales,
        conv: convolution(place, "conv1d", conv, options.conv_bias, Some(Activation::Silu))?,
        dt_bias: vector("dt_bias", dims.heads)?,
        dt_limit: None,
        decay: DecayRate::Log(vector("A_log", dims.heads)?),
        skip: vector("D", dims.heads)?,
        norm: options.norm.as_ref().map(norm).transpose()?,
        output: place.linear(("out_proj", ""), hidden, dims.inner(), options.projection_bias)?,
        slot: place.slots(|slots| slots.recurrent(index, dims.state_shape())),
    })
}

/// The gated DeltaNet at a place, which has a slot of the layer; `fused` says that its projections lie together by key head.
pub fn delta_net(
    place: &Scope<'_>,
    index: usize,
    hidden: usize,
    eps: f32,
    fused: bool,
) -> Result<GatedDeltaNet> {
    let config = place.config();
    let size = |name| config.size(Key(name, ""));
    let dims = DeltaDims {
        key_heads: size("linear_num_key_heads")?,
        value_heads: size("linear_num_value_heads")?,
        key_dim: size("linear_key_head_dim")?,
        value_dim: size("linear_value_head_dim")?,
        kernel: size("linear_conv_kernel_dim")?,
    };
    check_groups(dims.value_heads, dims.key_heads)?;
    let linear = |name: &'static str, outputs| place.linear((name, ""), outputs, hidden, false);
    let (keys, values) = (2 * dims.key_width(), dims.value_width());
    let projection = if fused {
        DeltaProjection::ByKeyHead {
            qkvz: linear("in_proj_qkvz", keys.saturating_add(2 * values))?,
            ba: linear("in_proj_ba", 2 * dims.value_heads)?,
        }
    } else {
        DeltaProjection::Apart {
            qkv: linear("in_proj_qkv", dims.conv_channels())?,
            z: linear("in_proj_z", values)?,
            b: linear("in_proj_b", dims.value_heads)?,
            a: linear("in_proj_a", dims.value_heads)?,
        }
    };
    let vector = |name, count| Ok(Vector::whole(place.tensor((name, ""), &[count])?));
    let weight = Some(vector("norm.weight", dims.value_dim)?);
    Ok(GatedDeltaNet {
        dims,
        projection,
        conv: convolution(
            place,
            "conv1d",
            (dims.conv_channels(), dims.kernel),
            false,
            Some(Activation::Silu),
        )?,
        qk_eps: 1e-6,
        decay: DecayRate::Log(vector("A_log", dims.value_heads)?),
        dt_bias: vector("dt_bias", dims.value_heads)?,
        norm: Norm { kind: NormKind::Rms, width: dims.value_dim, weight, bias: None, eps },
        output: place.linear(("out_proj", ""), hidden, values, false)?,
        slot: place.slots(|slots| slots.recurrent(index, dims.state_shape())),
    })
}

/// Refuses heads that groups do not divide.
fn check_groups(heads: usize, groups: usize) -> Result<()> {
    if heads.is_multiple_of(groups) {
        return Ok(());
    }
    Err(LoadError::mismatch(format!("{groups} groups do not divide {heads} heads")))
}
