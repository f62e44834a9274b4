//! Products of packed weights with quantised activations: what a model spends its time on when the context is short.
//!
//! A [`Matrix`] is made once from the blocks of a model file: the same codes and scales, exactly, in an order that a
//! processor reads front to back (see the module `format`). [`QuantizedActivations`] are rows of numbers rounded to bytes. Their
//! product is integer arithmetic inside a group of weights and a fixed sequence of f32 roundings across groups, so
//!
//! **Invariant:** a token's product with a row has the same bits in a batch of one or of hundreds, on any number of
//! threads, on every instruction set.
//!
//! ```
//! use kvant_simd::Tier;
//! use kvant_weights::{QuantizedActivations, Layout, Matrix};
//!
//! // Three rows of 64 weights in Q8_0: an f16 scale (here 1) before every 32 signed bytes.
//! let block: Vec<u8> = [0x00, 0x3c].into_iter().chain(0..32).collect();
//! let tier = Tier::select()?;
//! let matrix = Matrix::pack(tier, Layout::Q8_0, 3, 64, &block.repeat(6))?;
//!
//! let x = QuantizedActivations::new(tier, &[127.0; 2 * 64], 64); // two tokens
//! let mut out = [0.0; 2 * 3];
//! matrix.multiply(&x, &mut out);
//! assert_eq!(out, [127.0 * 2.0 * 496.0; 6]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

mod activations;
mod aligned;
mod dense;
mod format;
mod kernel;
mod layout;
mod matrix;
mod output;
mod pack;
mod source;
mod unpacked;

pub use activations::QuantizedActivations;
pub use dense::{Number, multiply_dense};
pub use layout::Layout;
pub use matrix::{Matrix, PackError, multiply_all};
pub use unpacked::multiply_unpacked;
