//! The parts that compiled models are made of. Each is plain about its shapes and knows nothing of files.
//!
//! Layers, mixers and their fields are declared in [`kvant_model::description`]; here are the weights that stand in them
//! ([`CpuWeights`]), and what a [`Block`] of them computes.

mod activations;
mod adapted;
mod attention;
mod convolution;
mod delta_net;
mod dot;
mod embedding;
mod encoder;
mod ffn;
mod function;
mod latent;
mod layer;
mod linear;
mod mamba2;
mod moe;
mod mtp;
mod norm;
mod observed;
mod packed;
mod per_layer;
mod recurrent;
mod rope;
mod short_conv;
mod softmax;
mod streams;
mod sums;

pub use activations::{Activations, for_each_row};
pub use adapted::AdaptedRows;
pub use attention::Folded;
pub use convolution::Convolution;
pub use dot::{dot, dot_block};
pub use embedding::{Embedding, ROWS_KEPT, TokenInput};
pub use encoder::EncoderNetwork;
pub use latent::LatentHeads;
pub use linear::{Linear, Multiply, Unpacked};
pub use mamba2::GatedNorm;
pub use mtp::Mtp;
pub use norm::Norm;
pub use observed::Observed;
pub use packed::{Dense, Packed, WeightKernel};
pub use rope::RopeTable;

use kvant_model::Tensor;
use kvant_model::description::{self, Weights};
use std::ops::Deref;

/// The weights of a compiled model.
pub enum CpuWeights {}

impl Weights for CpuWeights {
    type Linear = Linear;
    type Norm = Norm;
    type Vector = Vec<f32>;
    type Table = Tensor;
    type LatentHeads = LatentHeads;
    type Convolution = Convolution;
    type Decay = Vec<f32>;
    type GatedNorm = GatedNorm;
}

pub type AltUp = description::AltUp<CpuWeights>;
pub type Attention = description::Attention<CpuWeights>;
pub type Classifier = description::Classifier<CpuWeights>;
pub type Encoder = description::Encoder<CpuWeights>;
pub type EncoderLayer = description::EncoderLayer<CpuWeights>;
pub type SelfAttention = description::SelfAttention<CpuWeights>;
pub type Branch = description::Branch<CpuWeights>;
pub type GatedDeltaNet = description::GatedDeltaNet<CpuWeights>;
pub type Head = description::Head<CpuWeights>;
pub type LatentAttention = description::LatentAttention<CpuWeights>;
pub type Laurel = description::Laurel<CpuWeights>;
pub type Layer = description::Layer<CpuWeights>;
pub type Mamba2 = description::Mamba2<CpuWeights>;
pub type Mlp = description::Mlp<CpuWeights>;
pub type Moe = description::Moe<CpuWeights>;
pub type MtpLayer = description::MtpLayer<CpuWeights>;
pub type PerLayerEmbedding = description::PerLayerEmbedding<CpuWeights>;
pub type PerLayerInput = description::PerLayerInput<CpuWeights>;
pub type Residual = description::Residual<CpuWeights>;
pub type Router = description::Router<CpuWeights>;
pub type ShortConv = description::ShortConv<CpuWeights>;
pub type Streams = description::Streams<CpuWeights>;

/// A part of the tree that computes.
#[derive(Clone, Copy)]
pub struct Block<'a, T>(pub &'a T);

impl<T> Deref for Block<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}
