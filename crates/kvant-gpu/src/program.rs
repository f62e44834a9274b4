//! A model's blocks on the device: what a description was compiled to.

use crate::buffer::Buffer;
use crate::delta_net::DeltaNet;
use crate::latent::Latent;
use crate::layer_inputs::{LayerInput, LayerInputs};
use crate::mamba2::Mamba2;
use crate::moe::Moe;
use crate::ops::{Activate, Norm};
use crate::short_conv::ShortConv;
use crate::streams::{AltUp, Laurel, Streams};
use crate::weights::Matrix;
use kvant_device::HeadPlace;
use kvant_model::Tensor;
use kvant_model::description;
use std::ops::Deref;

/// A linear layer, or several of the same input side by side: columns of the output one after another.
pub(crate) struct Linear {
    pub parts: Vec<LinearPart>,
}

/// Matrices of one type.
pub(crate) struct LinearPart {
    pub matrix: Matrix,
    pub bias: Option<Buffer>,
    /// Its first column of the output.
    pub column: usize,
}

impl Linear {
    pub(crate) fn outputs(&self) -> usize {
        self.parts.iter().map(|part| part.matrix.outputs()).sum()
    }

    pub(crate) fn inputs(&self) -> usize {
        self.parts.first().map_or(0, |part| part.matrix.inputs())
    }
}

/// Before the first layer.
pub(crate) struct Embedding {
    pub table: Matrix,
    pub scale: f32,
    pub positions: Option<Buffer>,
    pub layer_inputs: Option<LayerInputs>,
    pub streams: Option<Streams>,
}

/// Attention over keys and values: numbers as described, weights on the device.
pub(crate) struct Attention {
    pub described: description::Attention,
    pub projection: Linear,
    pub q: HeadPlace,
    /// None where the slot is another layer's.
    pub kv: Option<(HeadPlace, HeadPlace)>,
    pub q_norm: Option<Norm>,
    pub k_norm: Option<Norm>,
    pub v_norm: Option<Norm>,
    pub sink_logits: Option<Buffer>,
    /// How queries meet a slot of latents.
    pub latent: Option<Latent>,
    pub output: Linear,
    /// The output weights as stored, for whoever calibrates.
    pub output_weights: Tensor,
}

impl Deref for Attention {
    type Target = description::Attention;

    fn deref(&self) -> &description::Attention {
        &self.described
    }
}

/// An MLP.
pub(crate) struct Mlp {
    pub first: Linear,
    pub inner: usize,
    pub activate: Activate,
    /// Gates count from the mean of their row and so many of its deviations on.
    pub sparsity: Option<f32>,
    pub down: Linear,
    pub down_scale: f32,
}

/// A block.
pub(crate) enum Mixer {
    Attention(Box<Attention>),
    Mlp(Box<Mlp>),
    Moe(Box<Moe>),
    ShortConv(Box<ShortConv>),
    DeltaNet(Box<DeltaNet>),
    Mamba2(Box<Mamba2>),
    PerLayerInput(Box<LayerInput>),
    Laurel(Box<Laurel>),
}

impl Mixer {
    /// The attention that it is.
    pub(crate) fn attention(&self) -> Option<&Attention> {
        match self {
            Mixer::Attention(of) => Some(of),
            Mixer::Mlp(_)
            | Mixer::Moe(_)
            | Mixer::ShortConv(_)
            | Mixer::DeltaNet(_)
            | Mixer::Mamba2(_)
            | Mixer::PerLayerInput(_)
            | Mixer::Laurel(_) => None,
        }
    }
}

/// `scale · after(mixer(input_scale · norm(x)))`.
pub(crate) struct Branch {
    pub norm: Option<Norm>,
    pub input_scale: f32,
    pub mixer: Mixer,
    pub after: Option<Norm>,
    pub scale: f32,
}

/// `x = keep · x + scale · after(Σ branches)`.
pub(crate) struct Residual {
    pub branches: Vec<Branch>,
    pub after: Option<Norm>,
    pub scale: f32,
    pub keep: f32,
}

/// A layer: its residuals, what the stream is multiplied by in the end, and what becomes of other streams.
pub(crate) struct Layer {
    pub residuals: Vec<Residual>,
    pub scale: Option<f32>,
    pub altup: Option<Box<AltUp>>,
}

/// After the last layer.
pub(crate) struct Head {
    pub norm: Norm,
    pub output: Linear,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// Widths of the widest rows of each kind.
#[derive(Clone, Copy, Default)]
pub(crate) struct Widths {
    pub hidden: usize,
    pub projected: usize,
    pub queries: usize,
    pub keys: usize,
    pub values: usize,
    pub attended: usize,
    pub first: usize,
    pub inner: usize,
    pub vocabulary: usize,
    /// Of recurrent mixers: what their convolution gives, and what they give.
    pub convolved: usize,
    pub mixed: usize,
    /// Of latents: queries in their narrow space and as slots want them, values of heads, and heads.
    pub narrow: usize,
    pub folded: usize,
    pub head_values: usize,
    pub latent_heads: usize,
    /// Inputs of all layers' own.
    pub layer_inputs: usize,
    /// Residual streams, where there are several, and the narrow space of LAuReL.
    pub streams: usize,
    pub laurel: usize,
    /// Of mixtures: experts, those that a token visits, and the space they work in.
    pub experts: usize,
    pub chosen: usize,
    pub expert_first: usize,
    pub expert_inner: usize,
    pub expert_narrow: usize,
}
