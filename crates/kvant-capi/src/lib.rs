//! kvant for C and C++: what stands behind `include/kvant.h`.
//!
//! The header is made of this crate's comments by cbindgen (`tests/border/header.rs` holds it up to date), and `docs/c.md` is the manual.
//! Four things can be had apart from one another: the engine ([`kvant_engine_open`], sessions, chat), the compressed cache for an
//! engine of one's own ([`kvant_cache_new`], sequences, passes), page codecs ([`kvant_codec_new`]), and products with packed weights
//! ([`kvant_matrix_new`]).
//!
//! **Invariant:** no panic crosses the border (`status::guard`), and nothing a caller passes is trusted but pointers that are not
//! NULL (`memory`).
//!
//! **Invariant:** structures that may grow begin with their size; others, and the values of enumerations, never change.
#![deny(missing_docs)]

mod cache;
mod codec;
mod embed;
mod engine;
mod generate;
mod matrix;
mod memory;
mod message;
mod pass;
mod pool;
mod reply;
mod rows;
mod sampler;
mod sequence;
mod session;
mod status;

pub use cache::*;
pub use codec::*;
pub use embed::*;
pub use engine::*;
pub use generate::*;
pub use matrix::*;
pub use message::KvantMessage;
pub use pass::*;
pub use pool::*;
pub use reply::*;
pub use rows::{KvantDtype, KvantOutput, KvantRows};
pub use sampler::*;
pub use sequence::*;
pub use session::*;
pub use status::{KvantStatus, kvant_error_message};

use std::ffi::c_char;

/// The version of the binary interface that this header describes. It is raised when something that was there changes its
/// meaning; what is added does not raise it.
pub const KVANT_ABI_VERSION: u32 = 1;

/// The version of the binary interface that the library has: to be compared with KVANT_ABI_VERSION by whoever loads it at run
/// time.
#[unsafe(no_mangle)]
pub extern "C" fn kvant_abi_version() -> u32 {
    KVANT_ABI_VERSION
}

/// The version of kvant, as text.
#[unsafe(no_mangle)]
pub extern "C" fn kvant_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
