//! What can go wrong, in words that say what, where and what to do.

use kvant_codec::CodecError;

/// Queries that cannot attend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttendError {
    /// An entry that the sequence does not have.
    #[error("there is no entry {entry}: the layout has {count}")]
    Entry {
        /// The entry asked for.
        entry: usize,
        /// How many there are.
        count: usize,
    },
    /// A buffer of the wrong length.
    #[error("{what}: got {got} numbers, {want} are needed")]
    Size {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it should have.
        want: usize,
    },
    /// Query heads that do not come in equal groups.
    #[error("{heads} query heads cannot share {kv_heads} kv heads evenly")]
    Heads {
        /// Query heads.
        heads: usize,
        /// kv heads.
        kv_heads: usize,
    },
    /// Fewer tokens than queries.
    #[error("{queries} queries attend, but the entry holds only {held} tokens: append keys and values first")]
    Ahead {
        /// Query tokens.
        queries: usize,
        /// Tokens of the entry.
        held: usize,
    },
    /// A soft cap or threshold out of range.
    #[error("{what} is {value}: it must be {want}")]
    Number {
        /// What it is.
        what: &'static str,
        /// Its value.
        value: f32,
        /// What would be right.
        want: &'static str,
    },
    /// A page that a query needs is not held.
    #[error("page {page} of {side} is not held: it has left the window, or the pass was ended too early")]
    Missing {
        /// The page.
        page: usize,
        /// `keys` or `values`.
        side: &'static str,
    },
    /// A codec refused.
    #[error(transparent)]
    Codec(#[from] CodecError),
}
