//! What the arithmetic of mixers takes for granted, held against a description before weights are read.

use kvant_model::description::{
    Convolution, DecayRate, GatedDeltaNet, GatedNorm, Mamba2, Mixer, ShortConv, Vector,
};
use kvant_model::error::{LoadError, Result};

/// Whether the lists of numbers in a mixer are as long as its sizes say.
pub(super) fn check(mixer: &Mixer) -> Result<()> {
    match mixer {
        Mixer::ShortConv(of) => short_conv(of),
        Mixer::Mamba2(of) => mamba2(of),
        Mixer::GatedDeltaNet(of) => delta_net(of),
        Mixer::Attention(_)
        | Mixer::LatentAttention(_)
        | Mixer::Ffn(_)
        | Mixer::PerLayerInput(_)
        | Mixer::Laurel(_) => Ok(()),
    }
}

fn short_conv(of: &ShortConv) -> Result<()> {
    convolution(&of.conv)
}

fn mamba2(of: &Mamba2) -> Result<()> {
    let (heads, inner) = (of.dims.heads, of.dims.inner());
    if let Some(GatedNorm { weight, width, .. }) = &of.norm {
        if *width == 0 || !inner.is_multiple_of(*width) {
            return Err(LoadError::mismatch(format!("a norm of {width} in {inner} channels")));
        }
        vector(weight, inner)?;
    }
    convolution(&of.conv)?;
    vector(&of.dt_bias, heads)?;
    decay(&of.decay, heads)?;
    vector(&of.skip, heads)
}

fn delta_net(of: &GatedDeltaNet) -> Result<()> {
    convolution(&of.conv)?;
    decay(&of.decay, of.dims.value_heads)?;
    vector(&of.dt_bias, of.dims.value_heads)
}

fn convolution(of: &Convolution) -> Result<()> {
    if of.kernel == 0 {
        return Err(LoadError::mismatch("a convolution without taps"));
    }
    vector(&of.weight, of.channels.saturating_mul(of.kernel))?;
    of.bias.iter().try_for_each(|bias| vector(bias, of.channels))
}

fn decay(of: &DecayRate, heads: usize) -> Result<()> {
    match of {
        DecayRate::Log(rates) | DecayRate::Plain(rates) => vector(rates, heads),
    }
}

fn vector(of: &Vector, count: usize) -> Result<()> {
    let (name, found) = (&of.tensor.name, of.len());
    match found == count {
        true => Ok(()),
        false => Err(LoadError::mismatch(format!(
            "tensor {name:?}: {count} numbers are needed, {found} are there"
        ))),
    }
}
