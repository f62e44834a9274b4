//! Mixers with recurrent state: short convolutions, gated DeltaNets and Mamba-2.
//!
//! State and rows lie in pages of the card's store, so forks, rollback, checkpoints and files are those of every sequence. A pass takes its
//! pages beforehand ([`StatePlan`]) and computes from the state at a chunk's start: token by token (`kernels/recurrent.cu`), or a chunk at once
//! where a sequence brings many tokens (`kernels/recurrent_chunks.cu`, [`chunks`]). Both have the same bits.

mod chunks;
mod pieces;
mod run;

pub(crate) use pieces::{StateOffsets, StatePlan};

use crate::buffer::Buffer;
use crate::compile::Compiler;
use crate::device::SCAN_SHARED;
use crate::matrix::on_card;
use crate::program::{Linear, Mixer, Program, Widths, activation};
use kvant_cache::{STATE_CHUNK, StateSlot};
use kvant_model::description::{
    self, DecayRate, DeltaProjection, GateOrder, GatedDeltaNet, HeadOrder, Mamba2, Matrix, RowRange,
};
use kvant_model::error::Result;

/// Threads of a CTA of `kernels/recurrent*.cu`, and channels of values that it has at most.
const THREADS: usize = 256;
const TILE: usize = 64;

/// Keys are whole fours in each quarter (`QUARTERS` of `kernels/recurrent.cuh`).
const KEY_STEP: usize = 16;

/// Numbers after a key in shared memory (`KEY_PAD`).
const KEY_PAD: usize = 4;

/// A causal convolution.
pub(crate) struct Convolution {
    pub channels: usize,
    pub kernel: usize,
    /// (kernel, channels).
    pub taps: Buffer,
    pub bias: Option<Buffer>,
    /// Below 0 for none.
    pub activation: i32,
}

impl Convolution {
    /// Numbers of its tail.
    fn tail(&self) -> usize {
        (self.kernel - 1) * self.channels
    }
}

/// A gated short convolution.
pub(crate) struct ShortConv {
    pub slot: StateSlot,
    pub input: Linear,
    pub conv: Convolution,
    pub output: Linear,
}

/// Where the parts of a row that was projected begin, of the convolution's output, and of a row of state.
#[derive(Clone, Copy, Default)]
pub(crate) struct StatePlaces {
    /// Of the projection: the convolution's input, gates, steps, and betas of DeltaNets.
    pub input: usize,
    pub gates: usize,
    pub steps: usize,
    pub betas: usize,
    /// Of what the convolution gives.
    pub query: usize,
    pub key: usize,
    pub value: usize,
    /// Of a row of state.
    pub row_keys: usize,
    pub row_values: usize,
    pub row_decay: usize,
    pub row_width: usize,
}

/// A gated DeltaNet or Mamba-2.
pub(crate) struct Recurrent {
    pub slot: StateSlot,
    /// What its kernels' names end with.
    pub name: &'static str,
    pub heads: usize,
    pub key_heads: usize,
    pub tiled: bool,
    pub key_dim: usize,
    pub value_dim: usize,
    pub places: StatePlaces,
    pub input: Linear,
    /// Multipliers of what is projected, where they are not all 1.
    pub column_scale: Option<Buffer>,
    pub conv: Convolution,
    /// (heads): A, what is added to steps, and D of Mamba-2.
    pub rates: Buffer,
    pub dt_bias: Buffer,
    pub skip: Option<Buffer>,
    pub dt_limit: (f32, f32),
    pub qk_eps: f32,
    /// Weights of all channels, where there is a norm.
    pub norm: Option<Buffer>,
    pub norm_width: usize,
    pub norm_eps: f32,
    pub gate_first: bool,
    pub output: Linear,
}

impl Recurrent {
    /// Numbers of its state: the convolution's tail, and a matrix of every head.
    fn state_count(&self) -> usize {
        self.conv.tail() + self.heads * self.key_dim * self.value_dim
    }

    /// CTAs that share the heads of a sequence.
    fn tiles(&self) -> usize {
        self.heads * self.value_dim.div_ceil(TILE)
    }
}

/// Numbers of a narrow state that share a scale (`STATE_GROUP` of `kernels/recurrent.cu`).
const GROUP: usize = 64;

impl Program {
    /// Why a state cannot be stored in fewer bits than f32, where it cannot.
    pub(crate) fn refuses_narrow_state(&self) -> Option<String> {
        let channels = self.mixers().filter_map(|mixer| match mixer {
            Mixer::ShortConv(of) => Some((of.conv.channels, GROUP)),
            Mixer::Recurrent(of) => Some((of.conv.channels, of.key_dim * of.value_dim)),
            Mixer::Attention(_)
            | Mixer::Latent(_)
            | Mixer::Mlp(_)
            | Mixer::Experts(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        });
        let odd = |of: &(usize, usize)| !of.0.is_multiple_of(GROUP) || !of.1.is_multiple_of(GROUP);
        let (channels, matrix) = channels.into_iter().find(odd)?;
        Some(format!(
            "a state of {channels} convolved channels and matrices of {matrix} numbers, not of whole groups of {GROUP}, is stored as f32 alone: use `state=f32`"
        ))
    }
}

/// What of a mixer does not run: `shared` bytes are what a CTA may take.
pub(crate) fn check_state(mixer: &description::Mixer, shared: usize) -> std::result::Result<(), String> {
    use description::Mixer;
    let (conv, dims) = match mixer {
        Mixer::ShortConv(of) => (&of.conv, None),
        Mixer::Mamba2(of) => (&of.conv, Some((of.dims.state, of.dims.head_dim))),
        Mixer::GatedDeltaNet(of) => (&of.conv, Some((of.dims.key_dim, of.dims.value_dim))),
        Mixer::Attention(_)
        | Mixer::LatentAttention(_)
        | Mixer::Ffn(_)
        | Mixer::PerLayerInput(_)
        | Mixer::Laurel(_) => return Ok(()),
    };
    if conv.kernel == 0 || conv.kernel > STATE_CHUNK {
        return Err(format!("a convolution of {} taps, where {STATE_CHUNK} are the most", conv.kernel));
    }
    let Some((keys, values)) = dims else { return Ok(()) };
    let divides = values > 0 && THREADS.is_multiple_of(values) && keys.is_multiple_of(KEY_STEP);
    if !divides || keys == 0 || keys > THREADS || shared_bytes(keys) + SCAN_SHARED > shared {
        return Err(format!("recurrent state of {keys} × {values} channels"));
    }
    Ok(())
}

/// Shared memory of a CTA that goes token by token: its part of a head's state, keys and values of a chunk, a query.
fn shared_bytes(keys: usize) -> usize {
    4 * (keys * TILE + STATE_CHUNK * (keys + KEY_PAD + TILE) + keys)
}

/// Rows of a layer, by runs that come again and again.
fn rows(
    of: &description::Linear,
    first: usize,
    step: usize,
    run: usize,
    count: usize,
) -> description::Linear {
    let rows = Some(RowRange { first, step, run, count });
    description::Linear { weight: Matrix { rows, ..of.weight.clone() }, ..of.clone() }
}

impl Compiler<'_> {
    fn convolution(&self, of: &description::Convolution) -> Result<Convolution> {
        let (channels, kernel) = (of.channels, of.kernel);
        let stored = self.numbers(&of.weight, 0.1)?;
        if stored.len() != channels * kernel {
            let message = format!("{} taps of {channels} channels, not {kernel} of each", stored.len());
            return Err(kvant_model::error::LoadError::mismatch(message));
        }
        let taps: Vec<f32> =
            (0..kernel).flat_map(|tap| stored.iter().skip(tap).step_by(kernel).copied()).collect();
        Ok(Convolution {
            channels,
            kernel,
            taps: Buffer::of_floats(self.card(), &taps).map_err(on_card)?,
            bias: of.bias.as_ref().map(|bias| self.floats(bias, 0.0)).transpose()?,
            activation: of.activation.map_or(-1, activation),
        })
    }

    /// Of a branch with this multiplier.
    pub(crate) fn short_conv(
        &self,
        of: &description::ShortConv,
        widths: &mut Widths,
        scale: f32,
    ) -> Result<ShortConv> {
        let input = self.linear(&[&of.input], 1.0)?;
        widths.projected = widths.projected.max(input.outputs());
        widths.inner = widths.inner.max(of.conv.channels);
        let (conv, output) = (self.convolution(&of.conv)?, self.linear(&[&of.output], scale)?);
        Ok(ShortConv { slot: of.slot, input, conv, output })
    }

    /// A, of each head.
    fn rates(&self, of: &DecayRate) -> Result<Buffer> {
        let rates = match of {
            DecayRate::Log(rates) => self.numbers(rates, 0.0)?.into_iter().map(|x| -x.exp()).collect(),
            DecayRate::Plain(rates) => self.numbers(rates, -1.0)?,
        };
        Buffer::of_floats(self.card(), &rates).map_err(on_card)
    }

    /// Of a branch with this multiplier.
    pub(crate) fn delta_net(&self, of: &GatedDeltaNet, widths: &mut Widths, scale: f32) -> Result<Recurrent> {
        let dims = of.dims;
        let (heads, keys, values) = (dims.value_heads, dims.key_width(), dims.value_width());
        let input = match &of.projection {
            DeltaProjection::Apart { qkv, z, b, a } => self.linear(&[qkv, z, b, a], 1.0)?,
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                let (key, group) = (dims.key_dim, dims.value_heads / dims.key_heads);
                let run = group * dims.value_dim;
                let step = 2 * (key + run);
                let parts = [
                    rows(qkvz, 0, step, key, keys),
                    rows(qkvz, key, step, key, keys),
                    rows(qkvz, 2 * key, step, run, values),
                    rows(qkvz, 2 * key + run, step, run, values),
                    rows(ba, 0, 2 * group, group, heads),
                    rows(ba, group, 2 * group, group, heads),
                ];
                self.linear(&parts.each_ref(), 1.0)?
            }
        };
        let conv = self.convolution(&of.conv)?;
        let channels = conv.channels;
        let places = StatePlaces {
            input: 0,
            gates: channels,
            betas: channels + values,
            steps: channels + values + heads,
            query: 0,
            key: keys,
            value: 2 * keys,
            row_keys: channels,
            row_values: channels + keys,
            row_decay: channels + keys + values,
            row_width: channels + keys + values + heads,
        };
        widths.widen(input.outputs(), channels, values);
        // The same weights for every head.
        let weight = match &of.norm.weight {
            Some(weight) => self.numbers(weight, 1.0)?,
            None => vec![1.0; dims.value_dim],
        };
        Ok(Recurrent {
            slot: of.slot,
            name: "delta",
            heads,
            key_heads: dims.key_heads,
            tiled: dims.order == HeadOrder::Tiled,
            key_dim: dims.key_dim,
            value_dim: dims.value_dim,
            places,
            input,
            column_scale: None,
            conv,
            rates: self.rates(&of.decay)?,
            dt_bias: self.floats(&of.dt_bias, 0.0)?,
            skip: None,
            dt_limit: (0.0, f32::INFINITY),
            qk_eps: of.qk_eps,
            norm: Some(Buffer::of_floats(self.card(), &weight.repeat(heads)).map_err(on_card)?),
            norm_width: dims.value_dim,
            norm_eps: of.norm.eps,
            gate_first: false,
            output: self.linear(&[&of.output], scale)?,
        })
    }

    /// Of a branch with this multiplier.
    pub(crate) fn mamba2(&self, of: &Mamba2, widths: &mut Widths, scale: f32) -> Result<Recurrent> {
        let dims = of.dims;
        let (inner, group) = (dims.inner(), dims.groups * dims.state);
        let input = self.linear(&[&of.input], 1.0)?;
        let conv = self.convolution(&of.conv)?;
        let channels = conv.channels;
        let places = StatePlaces {
            input: inner,
            gates: 0,
            betas: 0,
            steps: inner + channels,
            query: inner + group,
            key: inner,
            value: 0,
            row_keys: channels + inner,
            row_values: channels,
            row_decay: channels + inner + group,
            row_width: channels + inner + group + dims.heads,
        };
        widths.widen(input.outputs(), channels, inner);
        let column_scale = match of.part_scales {
            [1.0, 1.0, 1.0, 1.0, 1.0] => None,
            scales => {
                let parts = [inner, inner, group, group, dims.heads].into_iter().zip(scales);
                let all: Vec<f32> =
                    parts.flat_map(|(width, scale)| std::iter::repeat_n(scale, width)).collect();
                Some(Buffer::of_floats(self.card(), &all).map_err(on_card)?)
            }
        };
        let norm = of.norm.as_ref();
        Ok(Recurrent {
            slot: of.slot,
            name: "mamba",
            heads: dims.heads,
            key_heads: dims.groups,
            tiled: false,
            key_dim: dims.state,
            value_dim: dims.head_dim,
            places,
            input,
            column_scale,
            conv,
            rates: self.rates(&of.decay)?,
            dt_bias: self.floats(&of.dt_bias, 0.0)?,
            skip: Some(self.floats(&of.skip, 1.0)?),
            dt_limit: of.dt_limit.unwrap_or((0.0, f32::INFINITY)),
            qk_eps: 0.0,
            norm: norm.map(|norm| self.floats(&norm.weight, 1.0)).transpose()?,
            norm_width: norm.map_or(inner, |norm| norm.width),
            norm_eps: norm.map_or(0.0, |norm| norm.eps),
            gate_first: norm.is_none_or(|norm| norm.order == GateOrder::GateFirst),
            output: self.linear(&[&of.output], scale)?,
        })
    }
}
