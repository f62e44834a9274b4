//! A model's blocks on the card: what a description was compiled to.

use crate::buffer::Buffer;
use crate::latent::{Folded, LatentAttention, columns_tile};
use crate::matrix::Matrix;
use crate::moe::Moe;
use crate::params::{Address, TILE_ROWS, many_columns};
use crate::recurrent::{Recurrent, ShortConv};
use crate::streams::{AltUp, Laurel, Streams};
use kvant_cache::{KvSlot, StateSlot};
use kvant_device::HeadPlaces;
use kvant_model::Tensor;
use kvant_model::description::{self, Activation, QueryGain, RopeId};
use std::ops::Deref;
use std::sync::Arc;

/// A linear layer, or several of the same input side by side: columns of the output one after another.
pub(crate) struct Linear {
    /// Matrices of one type each.
    pub parts: Vec<Arc<Matrix>>,
    /// Of all columns, with the multiplier.
    pub bias: Option<Buffer>,
    /// Multiplier of the product.
    pub scale: f32,
    /// Where rows are gates and ups in turns, eight of each, and the product gives inner values.
    pub gating: Option<Gating>,
}

/// What becomes of the gates of a product: SiLU of so many times them.
#[derive(Clone, Copy)]
pub(crate) struct Gating {
    pub gate_scale: f32,
}

impl Gating {
    /// Of MLPs whose inner values a product can give: gates through SiLU, without bounds.
    pub(crate) fn of(mlp: &description::Mlp) -> Option<Gating> {
        let is_plain = mlp.clamp.is_none() && mlp.sparsity.is_none();
        let is_gated =
            !matches!(mlp.inner, description::Inner::Plain(_)) && mlp.activation == Activation::Silu;
        (is_plain && is_gated).then_some(Gating { gate_scale: mlp.gate_scale })
    }
}

impl Linear {
    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(|part| part.rows).sum()
    }

    pub(crate) fn inputs(&self) -> usize {
        self.parts.first().map_or(0, |part| part.channels)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes()).sum()
    }
}

/// An RMS norm, or a layer norm.
pub(crate) struct Norm {
    pub weight: Buffer,
    pub eps: f32,
    /// Of a layer norm: its bias, if it has one.
    pub layer: Option<Option<Buffer>>,
}

/// What a pass has to know of an attention of either kind.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub slot: KvSlot,
    pub heads: usize,
    /// Channels of a head's sums.
    pub width: usize,
    pub window: Option<usize>,
    pub rope: Option<RopeId>,
    /// Query tokens of a sequence that share an item, where they may.
    pub tile: usize,
    /// The same for tiles of a prompt; 0 where it has none.
    pub wide_tile: usize,
    /// Whether products have a matrix for every head.
    pub by_head: bool,
    /// Whether it reads latents.
    pub latents: bool,
    pub gain: Option<QueryGain>,
}

/// Attention over keys and values: numbers as described, weights on the card.
pub(crate) struct Attention {
    pub described: description::Attention,
    pub dim: usize,
    /// Queries, keys, values.
    pub projection: Linear,
    /// Of heads.
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub v_norm: Option<Norm>,
    /// Of all heads of queries, and of keys, at once.
    pub whole_norms: [Option<Norm>; 2],
    pub sink_logits: Option<Buffer>,
    /// Where keys are made of values.
    pub folded: Option<Folded>,
    pub output: Linear,
    /// The output weights as stored, for whoever calibrates; none where there is no file.
    pub output_weights: Option<Tensor>,
}

impl Deref for Attention {
    type Target = description::Attention;

    fn deref(&self) -> &description::Attention {
        &self.described
    }
}

impl Attention {
    /// Query heads of a kv head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// What a pass has to know of it.
    pub(crate) fn reading(&self) -> Reading {
        let (group, latents) = (self.group(), self.folded.is_some());
        let (tile, wide_tile) = match latents {
            true => (columns_tile(group), 0),
            false => ((many_columns(self.dim) / group).max(1), TILE_ROWS / group),
        };
        Reading {
            slot: self.slot,
            heads: self.heads,
            width: self.dim,
            window: self.window,
            rope: self.rope,
            tile,
            wide_tile,
            by_head: false,
            latents,
            gain: self.query_gain,
        }
    }

    /// Whether it reads keys and values of another layer.
    pub(crate) fn is_view(&self) -> bool {
        matches!(self.projection_kind(), description::Projection::Shared { .. })
    }

    /// How what is projected lies in a row.
    pub(crate) fn places(&self) -> HeadPlaces {
        HeadPlaces::of(&self.described)
    }

    fn projection_kind(&self) -> &description::Projection {
        &self.described.projection
    }

    /// Address of a norm's weights; 0 for none.
    pub(crate) fn norm_address(norm: &Option<Norm>) -> Address {
        norm.as_ref().map_or(0, |norm| norm.weight.address())
    }

    /// What such a norm adds to the mean square; 0 for none.
    pub(crate) fn norm_eps(norm: &Option<Norm>) -> f32 {
        norm.as_ref().map_or(0.0, |norm| norm.eps)
    }
}

/// What is done to inner values, as `kernels/rows.cu` has it.
#[derive(Clone, Copy)]
pub(crate) struct Activating {
    pub activation: i32,
    pub gated: bool,
    pub gate_scale: f32,
    pub limit: f32,
    pub alpha: f32,
    /// Gates count from the mean of their row and so many of its deviations on.
    pub sparsity: Option<f32>,
}

impl Activating {
    pub(crate) fn of(mlp: &description::Mlp) -> Activating {
        Activating {
            activation: activation(mlp.activation),
            gated: !matches!(mlp.inner, description::Inner::Plain(_)),
            gate_scale: mlp.gate_scale,
            limit: mlp.clamp.map_or(0.0, |clamp| clamp.limit),
            alpha: mlp.clamp.map_or(0.0, |clamp| clamp.alpha),
            sparsity: mlp.sparsity,
        }
    }

    /// Inputs of an inner value.
    pub(crate) fn inputs(&self) -> usize {
        1 + usize::from(self.gated)
    }
}

/// A function by its number in `kernels/functions.cuh`.
pub(crate) fn activation(of: Activation) -> i32 {
    match of {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        Activation::ReluSquared => 4,
    }
}

/// An MLP.
pub(crate) struct Mlp {
    /// Gates, then ups; or ups alone.
    pub first: Linear,
    pub inner: usize,
    pub activating: Activating,
    pub down: Linear,
}

/// A layer's own input through a gate: `output(act(gate(x)) · input)`.
pub(crate) struct LayerInput {
    pub layer: usize,
    pub gate: Linear,
    pub activation: i32,
    pub output: Linear,
}

/// The inputs of all layers: `scale · (norm(projection(x)) + table[id])`.
pub(crate) struct LayerInputs {
    pub table: Arc<Matrix>,
    pub table_scale: f32,
    /// Rows of the table: ids beyond them have the first.
    pub ids: usize,
    pub projection: Linear,
    pub norm: Norm,
    pub width: usize,
    pub scale: f32,
}

impl Mixer {
    /// The one product that reads its input, where nothing else does.
    pub(crate) fn reader(&self) -> Option<&Linear> {
        match self {
            Mixer::Attention(of) if of.folded.is_none() => Some(&of.projection),
            Mixer::Mlp(of) => Some(&of.first),
            Mixer::Attention(_)
            | Mixer::Latent(_)
            | Mixer::Experts(_)
            | Mixer::ShortConv(_)
            | Mixer::Recurrent(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        }
    }
}

/// What is added to the residual stream.
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    Latent(Box<LatentAttention>),
    Mlp(Box<Mlp>),
    Experts(Box<Moe>),
    ShortConv(Box<ShortConv>),
    /// A gated DeltaNet or Mamba-2.
    Recurrent(Box<Recurrent>),
    LayerInput(Box<LayerInput>),
    Laurel(Box<Laurel>),
}

/// What a mixer reads of the stream.
pub(crate) enum Input {
    Normed(Norm),
    /// The stream itself, times this.
    Plain(f32),
}

/// `after(mixer(input))`.
pub(crate) struct Branch {
    pub input: Input,
    pub mixer: Mixer,
    pub after: Option<Norm>,
}

/// `x = scale · (keep · x + after(Σ branches))`.
pub(crate) struct Block {
    /// The layer it belongs to.
    pub layer: usize,
    pub branches: Vec<Branch>,
    pub after: Option<Norm>,
    pub keep: f32,
    pub scale: f32,
}

impl Block {
    /// Whether its one branch can be added to the stream as it comes.
    pub(crate) fn is_plain(&self) -> bool {
        let norms = |branch: &Branch| usize::from(branch.after.is_some()) + usize::from(self.after.is_some());
        self.keep == 1.0 && matches!(&self.branches[..], [branch] if norms(branch) <= 1)
    }
}

/// Widths of the widest rows of each kind.
#[derive(Clone, Copy, Default)]
pub(crate) struct Widths {
    pub hidden: usize,
    pub projected: usize,
    pub queries: usize,
    /// Of what a matrix for every head gives.
    pub by_head: usize,
    pub first: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// Of mixtures: experts, chosen ones, and the rows of one.
    pub experts: usize,
    pub chosen: usize,
    pub expert_first: usize,
    pub expert_inner: usize,
    /// Inputs of all layers.
    pub layer_inputs: usize,
    /// Residual streams, where there are several.
    pub streams: usize,
}

impl Widths {
    /// Room for a mixer with recurrent state: what is projected, what goes through the convolution, and what comes out.
    pub(crate) fn widen(&mut self, projected: usize, channels: usize, inner: usize) {
        self.projected = self.projected.max(projected);
        self.first = self.first.max(channels);
        self.by_head = self.by_head.max(inner);
        self.inner = self.inner.max(inner);
    }
}

/// A model.
pub(crate) struct Program {
    pub embedding: Arc<Matrix>,
    pub embedding_scale: f32,
    /// Learned positions, (positions, hidden) f32.
    pub positions: Option<Buffer>,
    pub layer_inputs: Option<LayerInputs>,
    pub layers: usize,
    pub blocks: Vec<Block>,
    /// Further residual streams, and what layers do with them.
    pub streams: Option<Streams>,
    pub altups: Vec<Option<AltUp>>,
    pub norm: Norm,
    pub head: Linear,
    /// Multiplier of the logits, and their soft cap.
    pub head_scale: f32,
    pub head_cap: Option<f32>,
    pub widths: Widths,
}

impl Program {
    /// The blocks of every layer.
    pub(crate) fn by_layer(&self) -> impl Iterator<Item = (usize, &[Block])> {
        self.blocks.chunk_by(|a, b| a.layer == b.layer).map(|blocks| (blocks[0].layer, blocks))
    }

    pub(crate) fn mixers(&self) -> impl Iterator<Item = &Mixer> {
        self.blocks.iter().flat_map(|block| &block.branches).map(|branch| &branch.mixer)
    }

    pub(crate) fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.mixers().filter_map(|mixer| match mixer {
            Mixer::Attention(of) => Some(&**of),
            Mixer::Latent(_)
            | Mixer::Mlp(_)
            | Mixer::Experts(_)
            | Mixer::ShortConv(_)
            | Mixer::Recurrent(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }

    /// Of attention of either kind.
    pub(crate) fn readings(&self) -> impl Iterator<Item = Reading> {
        self.mixers().filter_map(|mixer| match mixer {
            Mixer::Attention(of) => Some(of.reading()),
            Mixer::Latent(of) => Some(of.reading()),
            Mixer::Mlp(_)
            | Mixer::Experts(_)
            | Mixer::ShortConv(_)
            | Mixer::Recurrent(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }

    /// Mixers whose recurrent state is a matrix of every head.
    pub(crate) fn recurrents(&self) -> impl Iterator<Item = &Recurrent> {
        self.mixers().filter_map(|mixer| match mixer {
            Mixer::Recurrent(of) => Some(&**of),
            Mixer::ShortConv(_)
            | Mixer::Attention(_)
            | Mixer::Latent(_)
            | Mixer::Mlp(_)
            | Mixer::Experts(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }

    /// Slots with recurrent state.
    pub(crate) fn states(&self) -> impl Iterator<Item = StateSlot> {
        self.mixers().filter_map(|mixer| match mixer {
            Mixer::ShortConv(of) => Some(of.slot),
            Mixer::Recurrent(of) => Some(of.slot),
            Mixer::Attention(_)
            | Mixer::Latent(_)
            | Mixer::Mlp(_)
            | Mixer::Experts(_)
            | Mixer::LayerInput(_)
            | Mixer::Laurel(_) => None,
        })
    }

    /// Bytes of all matrices.
    pub(crate) fn weight_bytes(&self) -> usize {
        let mixers = self.mixers().map(|mixer| match mixer {
            Mixer::Attention(of) => of.projection.bytes() + of.output.bytes(),
            Mixer::Latent(of) => of.bytes(),
            Mixer::Mlp(of) => of.first.bytes() + of.down.bytes(),
            Mixer::Experts(of) => of.bytes(),
            Mixer::ShortConv(of) => of.input.bytes() + of.output.bytes(),
            Mixer::Recurrent(of) => of.input.bytes() + of.output.bytes(),
            Mixer::LayerInput(of) => of.gate.bytes() + of.output.bytes(),
            Mixer::Laurel(of) => of.left.bytes() + of.right.bytes(),
        });
        let own = self.altups.iter().flatten().map(|of| of.input.gate.bytes() + of.input.output.bytes());
        let streams = own.sum::<usize>() + self.streams.as_ref().map_or(0, Streams::bytes);
        let tied = self.head.parts.iter().any(|part| Arc::ptr_eq(part, &self.embedding));
        let embedding = if tied { 0 } else { self.embedding.bytes() };
        let inputs = self.layer_inputs.as_ref().map_or(0, |of| of.table.bytes() + of.projection.bytes());
        mixers.sum::<usize>() + self.head.bytes() + embedding + inputs + streams
    }
}
