//! A model's blocks on the card: what a description was compiled to.

use crate::buffer::Buffer;
use crate::latent::LatentAttention;
use crate::matrix::Matrix;
use crate::moe::Moe;
use crate::params::{Address, many_columns};
use kvant_cache::KvSlot;
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

/// An RMS norm.
pub(crate) struct Norm {
    pub weight: Buffer,
    pub eps: f32,
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
    /// Whether products have a matrix for every head.
    pub by_head: bool,
    pub gain: Option<QueryGain>,
}

/// Attention over keys and values: numbers as described, weights on the card.
pub(crate) struct Attention {
    pub described: description::Attention,
    pub dim: usize,
    /// Queries, keys, values.
    pub projection: Linear,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub sink_logits: Option<Buffer>,
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
        Reading {
            slot: self.slot,
            heads: self.heads,
            width: self.dim,
            window: self.window,
            rope: self.rope,
            tile: (many_columns(self.dim) / self.group()).max(1),
            by_head: false,
            gain: None,
        }
    }

    /// Address of a norm's weights; 0 for none.
    pub(crate) fn norm_address(norm: &Option<Norm>) -> Address {
        norm.as_ref().map_or(0, |norm| norm.weight.address())
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
}

impl Activating {
    pub(crate) fn of(mlp: &description::Mlp) -> Activating {
        Activating {
            activation: match mlp.activation {
                Activation::Silu => 0,
                Activation::Gelu => 1,
                Activation::GeluTanh => 2,
                Activation::Relu => 3,
                Activation::ReluSquared => 4,
            },
            gated: !matches!(mlp.inner, description::Inner::Plain(_)),
            gate_scale: mlp.gate_scale,
            limit: mlp.clamp.map_or(0.0, |clamp| clamp.limit),
            alpha: mlp.clamp.map_or(0.0, |clamp| clamp.alpha),
        }
    }

    /// Inputs of an inner value.
    pub(crate) fn inputs(&self) -> usize {
        1 + usize::from(self.gated)
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

/// What is added to the residual stream.
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    Latent(Box<LatentAttention>),
    Mlp(Box<Mlp>),
    Experts(Box<Moe>),
}

/// `x += after(mixer(norm(x)))`.
pub(crate) struct Block {
    /// The layer it belongs to.
    pub layer: usize,
    pub norm: Norm,
    pub mixer: Mixer,
    pub after: Option<Norm>,
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
}

/// A model.
pub(crate) struct Program {
    pub embedding: Arc<Matrix>,
    pub embedding_scale: f32,
    pub layers: usize,
    pub blocks: Vec<Block>,
    pub norm: Norm,
    pub head: Linear,
    /// Multiplier of the logits, and their soft cap.
    pub head_scale: f32,
    pub head_cap: Option<f32>,
    pub widths: Widths,
}

impl Program {
    pub(crate) fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.blocks.iter().filter_map(|block| match &block.mixer {
            Mixer::Attention(of) => Some(&**of),
            Mixer::Latent(_) | Mixer::Mlp(_) | Mixer::Experts(_) => None,
        })
    }

    /// Of attention of either kind.
    pub(crate) fn readings(&self) -> impl Iterator<Item = Reading> {
        self.blocks.iter().filter_map(|block| match &block.mixer {
            Mixer::Attention(of) => Some(of.reading()),
            Mixer::Latent(of) => Some(of.reading()),
            Mixer::Mlp(_) | Mixer::Experts(_) => None,
        })
    }

    /// Bytes of all matrices.
    pub(crate) fn weight_bytes(&self) -> usize {
        let mixers = self.blocks.iter().map(|block| match &block.mixer {
            Mixer::Attention(of) => of.projection.bytes() + of.output.bytes(),
            Mixer::Latent(of) => of.bytes(),
            Mixer::Mlp(of) => of.first.bytes() + of.down.bytes(),
            Mixer::Experts(of) => of.bytes(),
        });
        let tied = self.head.parts.iter().any(|part| Arc::ptr_eq(part, &self.embedding));
        let embedding = if tied { 0 } else { self.embedding.bytes() };
        mixers.sum::<usize>() + self.head.bytes() + embedding
    }
}
