//! KV-cache codecs: what a compressed KV cache stores, and attention's inner loops on the stored bytes.
//!
//! The cache of one kv head is cut into *pages* of a few dozen tokens. A [`PageCodec`] turns the keys (or the values) of a
//! page into bytes once, and from then on answers the only two questions attention asks, from the bytes:
//!
//! - [`PageCodec::scores`]: q·k for every token of the page and every query head that shares it;
//! - [`PageCodec::accumulate`]: Σ w·v over the page.
//!
//! Both are linear, so a rotation, a scale per channel or a mean never reaches the loop: it moves into the query before
//! ([`PageCodec::prepare`]) or out of the sum after ([`PageCodec::finish`]). The loop meets small integers.
//!
//! A codec is named by a [spec](spec): `int4` is the default, per-channel keys and rotated values at 4.5 bits.
//!
//! ```
//! use kvant_codec::{Accumulator, KvSpec, Query, Side};
//!
//! let spec: KvSpec = "int4".parse()?;
//! let (key, value) = (spec.key.build(Side::Key, 64)?, spec.value.build(Side::Value, 64)?);
//! assert_eq!(key.bits_per_value(), 4.5);
//!
//! // A page of keys and one of values, (tokens, channels).
//! let rows: Vec<f32> = (0..key.page_tokens() * 64).map(|i| (i as f32 * 0.37).sin()).collect();
//! let (mut keys, mut values) = (vec![0; key.page_bytes()], vec![0; value.page_bytes()]);
//! key.encode(&rows, &mut keys)?;
//! value.encode(&rows, &mut values)?;
//!
//! // Two query heads that share the page.
//! let (mut query, mut scores) = (Query::new(), vec![0.0; 2 * key.page_tokens()]);
//! key.prepare(&rows[..2 * 64], &mut query)?;
//! key.scores(&query, &keys, &mut scores)?;
//!
//! // Weights are whatever softmax made of the scores.
//! let weights: Vec<f32> = scores.iter().map(|s| (0.125 * s).exp()).collect();
//! let (mut sums, mut out) = (Accumulator::new(2, 64), vec![0.0; 2 * 64]);
//! value.accumulate(&weights, &values, &mut sums)?;
//! value.finish(&sums, &mut out)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where things are
//!
//! Each module uses those below it and none above; a test reads the sources and holds them to it.
//!
//! | module | what it is |
//! |---|---|
//! | [`spec`] | the grammar, its printer, the presets, the [`catalogue`] |
//! | `codec` | the verbs, the families, one file per kind of codec |
//! | `trellis` | codes along tokens whose level depends on the codes before: their search and kernels |
//! | `kernel` | encode, scores, accumulate: each written once; prepared queries and running sums |
//! | `transform` | changes of basis: SRHT, SRFT, uniformly random, dense, λ, means |
//! | `quant` | scalar rules and their tables |
//! | `pack` | codes into bytes and into registers |
//! | [`mod@format`] | plain data: where everything of a page lies and what it means, byte by byte |
//!
//! The instruction sets under the kernels are in the crate `kvant-simd`.
//!
//! The best instruction set of the machine is chosen once; `KVANT_SIMD=scalar|avx2|avx512vnni|avx512|neon-base|neon` forces one. Every tier
//! writes the same bytes, and reads those of any other.
//!
//! # Panics and bad input
//!
//! Pages are data: any bytes of the right length decode to something, and no kernel reads outside them. Buffers of the wrong
//! size, numbers that are not finite and queries of another codec are errors.
//!
#![doc = include_str!("../docs/activations.md")]
#![deny(missing_docs)]

mod codec;
mod error;
pub mod format;
mod kernel;
mod pack;
mod quant;
mod scratch;
pub mod spec;
mod transform;
mod trellis;

pub use codec::{
    AngleBook, Build, BuildFn, Calibration, CodecSpec, Compound, DecodedCodec, ExactCodec, FAMILIES, Family,
    GroupSize, KernelReport, Learned, Options, PageCodec, Rounding, Scaling,
};
pub use error::{BuildError, CodecError};
pub use format::{Dense, DenseError, Element, PageFormat, PageSize, Rotation, ScaleFormat, Side};
pub use kernel::{Accumulator, Query};
pub use kvant_simd::{AMX_VARIABLE, Amx, TIER_VARIABLE, Tier, TierError};
pub use quant::allocation::Budget;
pub use quant::{LloydMax, MAX_TABLE_BITS, Rule, allocation};
pub use spec::{KvSpec, PRESETS, Preset, Shown, SpecError, catalogue};
pub use transform::{Basis, split_mix};
pub use trellis::expected_error as expected_trellis_error;
