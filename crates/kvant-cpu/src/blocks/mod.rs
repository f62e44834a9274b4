//! The parts that compiled models are made of. Each is plain about its shapes and knows nothing of files.

mod activations;
mod attention;
mod convolution;
mod delta_net;
mod dot;
mod embedding;
mod ffn;
mod function;
mod latent;
mod layer;
mod linear;
mod mamba2;
mod moe;
mod norm;
mod packed;
mod recurrent;
mod rope;
mod short_conv;
mod sums;

pub use activations::{Activations, for_each_row};
pub use attention::{Attention, Projection};
pub use convolution::Convolution;
pub use delta_net::{DeltaProjection, GatedDeltaNet};
pub use dot::{dot, dot_block};
pub use embedding::{Embedding, ROWS_KEPT};
pub use ffn::{Ffn, Inner, Mlp};
pub use latent::{LatentAttention, LatentQuery};
pub use layer::{Branch, Head, Layer, Mixer, Residual};
pub use linear::{Linear, Multiply, Unpacked};
pub use mamba2::{GatedNorm, Mamba2};
pub use moe::{Moe, Router};
pub use norm::Norm;
pub use packed::{Dense, Packed, WeightKernel};
pub use rope::RopeTable;
pub use short_conv::ShortConv;
