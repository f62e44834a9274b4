//! Why a sequence cannot be saved or loaded.

use crate::arena::ArenaError;
use std::io;

/// Why a sequence cannot be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The system refused.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// Something else than a snapshot.
    #[error("is not a kvant session file")]
    Foreign,
    /// A version that this program does not know.
    #[error(
        "has format version {found}, and this program reads 1 to {}; use the program that wrote it",
        super::VERSION
    )]
    Version {
        /// Its version.
        found: u32,
    },
    /// Another length than the file says it has.
    #[error("has {got} bytes where it should have {want}: it was cut off or added to, and cannot be used")]
    Length {
        /// Bytes there are.
        got: u64,
        /// Bytes there should be.
        want: u64,
    },
    /// Bytes that are not those that were written.
    #[error("is damaged: {what}; it cannot be used")]
    Damaged {
        /// What is wrong, and where.
        what: String,
    },
    /// Numbers that no writer of ours has written.
    #[error("corrupt session file: {what}; it cannot be used")]
    Absurd {
        /// Which.
        what: &'static str,
    },
    /// A part where a whole sequence is wanted, or a part of something else.
    #[error("holds {what}")]
    Part {
        /// What it holds.
        what: &'static str,
    },
    /// A sequence of another model, tokenizer or policy.
    #[error(
        "belongs to another model, or was made with other settings (its cache is kept as {policy}): continue it with those it was made with"
    )]
    Signature {
        /// The policy it was saved with.
        policy: String,
    },
    /// A cache of another kind than it is to be loaded into.
    #[error("does not fit this cache: {what} differ (its cache is kept as {policy})")]
    Layout {
        /// What differs.
        what: &'static str,
        /// The policy it was saved with.
        policy: String,
    },
    /// A sequence that cannot be saved as it is.
    #[error("the sequence cannot be saved: {what}")]
    Unsaved {
        /// Why.
        what: &'static str,
    },
    /// No memory for the exact rows.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

impl SnapshotError {
    /// Whether the file is simply not there.
    pub(crate) fn is_missing_file(&self) -> bool {
        matches!(self, SnapshotError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> SnapshotError {
        move |source| SnapshotError::Io { doing, source }
    }
}
