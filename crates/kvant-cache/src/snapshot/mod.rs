#![doc = include_str!("../../docs/format.md")]
//!
//! # Example
//!
//! ```
//! use kvant_cache::{Arena, CacheLayout, KvShape, Policy, Sequence, Slots, snapshot::{Record, Snapshot}};
//! use std::sync::Arc;
//!
//! let policy: Policy = "int4".parse()?;
//! let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
//! let slots = Slots::uniform(1, shape);
//! let layout = Arc::new(CacheLayout::new(&policy, &slots)?);
//! let mut sequence = Sequence::new(layout.clone(), Arena::new());
//! for slot in slots.kv_slots() {
//!     sequence.append(slot, &[0.5; 3 * 2 * 64], &[0.5; 3 * 2 * 64])?;
//! }
//! sequence.advance(3)?;
//!
//! let folder = std::env::temp_dir().join(format!("kvant-snapshot-{}", std::process::id()));
//! std::fs::create_dir_all(&folder)?;
//! let file = folder.join("talk.kvant");
//! let record = Record { signature: [7; 32], numerics: [1; 32], policy: "int4", tokens: &[1, 2, 3], note: b"" };
//! sequence.save(&file, &record)?;
//!
//! let snapshot = Snapshot::open(&file)?;
//! assert_eq!(snapshot.tokens(), [1, 2, 3]);
//! assert_eq!(snapshot.numerics(), Some(&[1; 32]));
//! let resumed = snapshot.sequence(&[7; 32], layout.clone(), Arena::new())?;
//! assert_eq!(resumed.len(), 3);
//! assert!(snapshot.sequence(&[8; 32], layout, Arena::new()).is_err());
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod format;
mod parse;
mod part;
mod read;
mod replace;
mod states;
mod write;

pub use error::SnapshotError;
pub use read::Snapshot;
pub use write::write;

pub(crate) use part::{Growth, Head, PartRecord, Quality};
pub(crate) use replace::{check_writable, is_leftover, put_bytes, replace_bytes};

/// The version of the format that is written. Files of version 1, and of version 2 for parts of sequences, are read.
pub const VERSION: u32 = 3;

/// The version of the format that parts of sequences were written in before.
const PART_VERSION: u32 = 2;

/// A SHA-256.
pub(crate) type Digest = [u8; 32];

/// What determines the contents of a cache besides its tokens, digested: weights, tokenizer, positions, policy, plan.
pub type Signature = [u8; 32];

/// How the numbers in a cache are computed, digested: what changes when arithmetic is rounded otherwise.
pub type Numerics = [u8; 32];

/// What is saved beside the cache.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// A file is loaded only under the signature it was saved with.
    pub signature: Signature,
    /// A file is loaded under any numerics, and says which it was saved with.
    pub numerics: Numerics,
    /// The policy of the layout, for people and messages.
    pub policy: &'a str,
    /// The tokens that the sequence holds.
    pub tokens: &'a [u32],
    /// Anything else that belongs to it, such as the conversation as text.
    pub note: &'a [u8],
}
