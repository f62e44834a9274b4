//! A cold tier for the KV caches of other engines.
//!
//! An engine that offloads its KV cache hands over *blocks*: 16 to 256 tokens of all layers, in f16, bf16 or f32, in an order of its
//! own. This crate keeps them as the pages that kvant's own cache would make of the same tokens, so that what is known of a codec
//! (bits per value, KL) holds for the tier.
//!
//! ```text
//! block of the engine                        entry
//! (layer, K|V, token, head, channel)         header | layer 0, head 0: key pages, value pages | head 1 … | layer 1 …
//!   in any order, by strides: `BlockForm`      keys, signature, CRC-32       pages of `kvant_codec`, byte for byte
//! ```
//!
//! Pages have 32, 64 or 128 tokens. Blocks that are smaller share an entry with their neighbours of the same job, until its pages are
//! full; a group that stays smaller is kept exactly where that takes fewer bytes than a page that is mostly padding.
//!
//! | module | what it is |
//! |---|---|
//! | `form` | where the numbers of a block lie |
//! | `codec` | blocks to pages and back |
//! | `entry` | what an entry looks like as bytes |
//! | `index` | what is held, and which goes first |
//! | `place` | memory, or a folder that processes share |
//! | `tier` | jobs: stores, loads and look-ups on threads of their own |
//!
//! *How is this not [`kvant_cache::disk`]?* That one keeps prefixes of kvant's own sequences: it knows their tokens, their sinks and what
//! comes before. Another engine's block comes with an opaque key and no position.
//!
//! **Invariant:** what is loaded is decoded from bytes whose checksum was right. Everything else is a miss, and counted.
//!
//! **Invariant:** at every moment each name in a folder leads to a whole file or to none, whoever is killed.
#![deny(missing_docs)]

mod codec;
mod entry;
mod error;
mod form;
mod index;
mod place;
mod tier;

pub use codec::BlockCodec;
pub use error::TierError;
pub use form::{BlockForm, HeadPlace, Number};
pub use place::Place;
pub use tier::{Block, Blocks, Finished, Held, JobId, Options, Tier, TierUsage};
