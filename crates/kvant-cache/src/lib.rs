//! What sequences keep between passes: a compressed KV cache, and recurrent state.
//!
//! What one kv head of one layer keeps is, for keys and for values apart: the first few tokens exactly (*sinks*), a list of
//! encoded *pages*, and the newest tokens exactly (the *tail*), which are encoded once they fill a page and never touched
//! again. Pages are bytes in an [`Arena`], or behind a [`PageStore`] on a device, counted by reference: sequences share, fork and
//! drop them without copying.
//!
//! A model's layers say what they keep by [`Slots`]. [`Policy`] says which codec every head gets, [`CacheLayout`] holds the
//! codecs built for a model, a [`Sequence`] grows, pass by pass ([`pass`]); attention is in the crate `kvant-attention`.
//!
//! ```
//! use kvant_cache::{Arena, CacheLayout, KvShape, Policy, Sequence, Slots};
//! use std::sync::Arc;
//!
//! let policy: Policy = "int4;layers 0:k=f16".parse()?;
//! let shape = KvShape { kv_heads: 2, key_dim: 64, value_dim: 64, window: None };
//! let slots = Slots::uniform(3, shape);
//! let layout = Arc::new(CacheLayout::new(&policy, &slots)?);
//! let mut sequence = Sequence::new(layout, Arena::new());
//!
//! // A pass over 200 tokens: keys and values of every layer, (tokens, kv heads, channels).
//! let rows = vec![0.5; 200 * 2 * 64];
//! for slot in slots.kv_slots() {
//!     sequence.append(slot, &rows, &rows)?;
//! }
//! sequence.advance(200)?;
//!
//! // 4 sinks, 3 pages of 64, and a tail of 4.
//! let second = slots.kv(1).unwrap();
//! let keys = sequence.side(second, 0, kvant_codec::Side::Key).unwrap();
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
//! | `slot` | what a layer keeps, by kind |
//! | [`pass`] | a pass over some sequences: how it begins, what it brings, how it ends |
//! | `layout` | shapes and codecs of a model's cache |
//! | `exact_window` | what a query reads exactly, and what as bytes |
//! | [`mapped`] | mapped files that may shrink |
//! | `store`, `arena`, `page`, `lease` | who owns the memory of pages, that of the host, and the handles to them |
//! | `side`, `recurrent`, `sequence` | what is held, and how it grows and goes back |
//! | `checkpoint` | recurrent state at earlier positions |
//! | `reader`, `convert` | back to numbers, and from one layout to another |
//! | [`prefix`] | beginnings that sequences share |
//! | `tenant` | whose beginnings are whose |
//! | [`snapshot`] | sequences in files |
//! | [`disk`] | beginnings that outlive the program |
//!
//! **Invariant:** what a sequence holds depends on the tokens appended, never on how they were cut into chunks.
#![deny(clippy::wildcard_enum_match_arm)]
#![deny(missing_docs)]

mod arena;
mod checkpoint;
mod convert;
pub mod disk;
mod error;
mod exact_window;
mod layout;
mod lease;
mod lineage;
pub mod mapped;
mod page;
pub mod pass;
pub mod plan;
pub mod policy;
pub mod prefix;
mod reader;
mod recurrent;
mod sequence;
mod side;
mod slot;
pub mod snapshot;
mod steps;
mod store;
mod sync;
mod tenant;

pub use arena::{Arena, ArenaError, ArenaOptions, Usage};
pub use disk::{DiskError, DiskTier, DiskUsage};
pub use error::{AttendError, CacheError, LayoutError};
pub use exact_window::{DEFAULT_SINKS, ExactWindow, MAX_SINKS, Mode};
pub use layout::{CacheLayout, HeadCodecs, SideCodecs, SideKinds, SlotKernels, SlotLayout};
pub use page::{Page, PageMut};
pub use pass::{
    AttentionObserver, CacheFull, Queries, Scoring, SequencePass, StateError, StateErrorKind, Streaming,
};
pub use plan::{Plan, PlanError};
pub use policy::{Clause, Policy, PolicyError, SparseV};
pub use prefix::{PrefixTree, PrefixUsage, WhenFull};
pub use recurrent::{
    RecurrentState, RowsCopy, StateNumbers, StatePiece, StateType, StateTypeError, StateWork,
};
pub use sequence::{Footprint, Sequence};
pub use side::{PageWork, SideStore};
pub use slot::{KvShape, KvSlot, LatentShape, RecurrentShape, STATE_CHUNK, Slot, SlotKind, Slots, StateSlot};
pub use snapshot::{Snapshot, SnapshotError};
pub use store::{PageId, PageKind, PageStore, PageUse, SplitStore, Store};
pub use tenant::{Prefix, Tenant};
