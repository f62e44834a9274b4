//! The parts architectures are made of. Each is plain about its shapes and knows nothing of file formats.

mod activation;
mod attention;
mod decoder;
mod dot;
mod embedding;
mod ffn;
mod linear;
mod moe;
mod norm;
mod packed;
mod pass;
mod prenorm;
mod query_gain;
mod rope;
mod rows;

pub use activation::Activation;
pub use attention::{Attention, Projection, ScoreTraits};
pub use decoder::{Block, Decoder, Head};
pub(crate) use dot::dot_block;
pub use embedding::{Embedding, ROWS_KEPT};
pub use ffn::{Ffn, Mlp};
pub use linear::{Linear, Multiply, Unpacked};
pub use moe::Moe;
pub use norm::Norm;
pub use packed::{Dense, Packed};
pub use pass::{Chunk, Observer, Pass};
pub use prenorm::PreNorm;
pub use query_gain::QueryGain;
pub use rope::{Pairing, Rope, RopeScaling, RopeTable};
pub use rows::Rows;
