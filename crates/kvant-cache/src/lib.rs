//! A compressed KV cache in memory.
//!
//! What one kv head of one layer keeps is, for keys and for values apart: the first few tokens exactly (*sinks*), a list of
//! encoded *pages*, and the newest tokens exactly (the *tail*), which are encoded once they fill a page and never touched
//! again. Pages are bytes in an [`Arena`], counted by reference: sequences share, fork and drop them without copying.
//!
//! [`Policy`] says which codec every head gets, [`CacheLayout`] holds the codecs built for a model, a [`Sequence`] grows.
//! Attention over a sequence is in the crate `kvant-attention`.
//!
//! ```
//! use kvant_cache::{Arena, CacheLayout, EntryShape, Policy, Sequence};
//! use std::sync::Arc;
//!
//! let policy: Policy = "int4;layers 0:k=f16".parse()?;
//! let shape = EntryShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
//! let layout = Arc::new(CacheLayout::new(&policy, &[shape; 3])?);
//! let mut sequence = Sequence::new(layout, Arena::new());
//!
//! // A pass over 200 tokens: keys and values of every layer, (tokens, kv heads, channels).
//! let rows = vec![0.5; 200 * 2 * 64];
//! for layer in 0..3 {
//!     sequence.append(layer, &rows, &rows)?;
//! }
//! sequence.advance(200);
//!
//! // 4 sinks, 3 pages of 64, and a tail of 4.
//! let keys = sequence.side(1, 0, kvant_codec::Side::Key).unwrap();
//! assert_eq!(keys.pages().len(), 3);
//!
//! // A page's exact rows are gone once it is encoded: going back to 100 means reading again from its start, 68.
//! let copy = sequence.fork()?;
//! assert_eq!(sequence.truncate(100)?, 68);
//! assert_eq!(copy.len(), 200);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`policy`] | the grammar of `int4;layers 0-1:k=f16` |
//! | [`plan`] | what calibration found for a model, in a file |
//! | `layout` | shapes and codecs of a model's cache |
//! | `visibility` | what a query reads exactly, and what as bytes |
//! | `arena`, `page` | the memory of pages, and the handles to them |
//! | `side`, `sequence` | what is held, and how it grows and goes back |
//! | `reader`, `convert` | back to numbers, and from one layout to another |
//! | [`prefix`] | beginnings that sequences share |
//! | [`snapshot`] | sequences in files |
//! | [`disk`] | beginnings that outlive the program |
//!
//! **Invariant:** what a sequence holds depends on the tokens appended, never on how they were cut into chunks.
#![deny(missing_docs)]

mod arena;
mod convert;
pub mod disk;
mod error;
mod layout;
mod page;
pub mod plan;
pub mod policy;
pub mod prefix;
mod reader;
mod sequence;
mod side;
pub mod snapshot;
mod steps;
mod visibility;

pub use arena::{Arena, ArenaError, ArenaOptions, Usage};
pub use disk::{DiskError, DiskTier, DiskUsage};
pub use error::{CacheError, LayoutError};
pub use layout::{CacheLayout, EntryLayout, EntryShape, HeadCodecs, SideCodecs};
pub use page::{Page, PageMut};
pub use plan::{Plan, PlanError};
pub use policy::{Clause, Policy, PolicyError, SparseV};
pub use prefix::{PrefixTree, PrefixUsage, WhenFull};
pub use sequence::{Footprint, Sequence};
pub use side::SideStore;
pub use snapshot::{Snapshot, SnapshotError};
pub use visibility::{DEFAULT_SINKS, MAX_SINKS, Mode, Visibility};
