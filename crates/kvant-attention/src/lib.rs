//! Attention over a compressed KV cache, on the compressed bytes.
//!
//! [`Attention`] is the driver, whose one call covers all sequences of a pass; the CPU backend calls it. For engines of their own,
//! [`KvCache`] is the state of one sequence as a forward pass sees it ([`PassState`]), [`Batch`] that of many.
//!
//! One driver serves every codec, every instruction set, decoding and prefill. For a block of query heads that share a kv
//! head it asks the key codec for scores page by page, turns the scores of a *segment* of positions into weights, and
//! gives the weights to the value codec page by page; what segments sum up to is joined by the rule of the online softmax,
//! in the order of positions. No page is decoded on the way.
//!
//! **Invariant: one arithmetic.** Segments are cut at fixed positions, and what a query gets from a segment depends on
//! that query alone. So its output has the same bits whether it came alone or in a chunk of 512, on one thread or sixteen,
//! in whatever chunks the tokens before it were read, and with whatever other sequences it shared the pass.
//!
//! **Invariant: visibility.** A query reads exactly what [`kvant_cache::ExactWindow`] says: sinks, its own page and recent
//! ones as exact rows, everything earlier as encoded bytes, also within the chunk it came in.
//!
//! ```
//! use kvant_attention::{KvCache, PassState, Scoring};
//! use kvant_cache::{KvShape, Policy, Slots};
//!
//! let policy: Policy = "int4".parse()?;
//! let mut slots = Slots::new();
//! let slot = slots.keys_values(0, KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None });
//! let mut cache = KvCache::new(policy, &slots, 4096)?;
//!
//! // A chunk of 100 tokens with 6 query heads: three to a kv head.
//! let wave = |count: usize| (0..count).map(|i| (i as f32 * 0.37).sin()).collect::<Vec<f32>>();
//! let (keys, values, queries) = (wave(100 * 2 * 64), wave(100 * 2 * 64), wave(100 * 6 * 64));
//! let mut out = vec![0.0; queries.len()];
//! cache.begin(&[100])?;
//! cache.append(slot, &keys, &values)?;
//! cache.attend(slot, queries[..].into(), &Scoring::new(0.125), &mut out)?;
//! cache.end()?;
//! assert_eq!(cache.len(), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A streaming window
//!
//! With [`kvant_cache::ExactWindow::streaming`] a query sees the sinks and the last tokens, and is to meet the sinks as if
//! they stood just before the window. Positions are in the keys already (the sinks were rotated for 0, 1, …), and only
//! distances matter, so it is the query that is rotated once more: the model gives [`Queries::at_sinks`], the same
//! queries rotated for position sinks + window − 1 where theirs is beyond that. Scores against the sinks come from those.
#![deny(clippy::wildcard_enum_match_arm)]
#![deny(missing_docs)]

mod aligned;
mod batch;
mod block;
mod driver;
mod kernel;
mod kv_cache;
mod partial;
mod plan;
mod scratch;

pub use batch::Batch;
pub use driver::Attention;
pub use kv_cache::{KvCache, KvUnsupported, PassState};
pub use kvant_cache::{
    AttendError, CacheFull, Queries, Scoring, SequencePass, StateError, StateErrorKind, Streaming,
};
pub use plan::Sequences;
