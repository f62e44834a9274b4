//! What can go wrong, in words that say what, where and what to do.

use crate::arena::ArenaError;
use kvant_codec::{BuildError, CodecError, Side};

/// A cache that cannot be laid out as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A codec that cannot be built.
    #[error("{} of kv head {head}, entry {entry}: {source}", name(*side))]
    Codec {
        /// Which entry (layer).
        entry: usize,
        /// Which kv head.
        head: usize,
        /// Which side.
        side: Side,
        /// Why.
        source: BuildError,
    },
    /// A page size for which there are no exact pages.
    #[error("a codec with pages of {tokens} tokens cannot be cached: pages have 32, 64 or 128")]
    PageSize {
        /// The page size.
        tokens: usize,
    },
    /// More sinks than a page holds.
    #[error("{sinks} sinks: at most {} are kept", crate::MAX_SINKS)]
    Sinks {
        /// How many were asked for.
        sinks: usize,
    },
    /// A rule for layers or heads that the model does not have.
    #[error("`{rule}` names {what} {index}, but there are only {count}")]
    NoSuch {
        /// The rule as written.
        rule: String,
        /// `layer` or `head`.
        what: &'static str,
        /// The number it names.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A window that no query fits in.
    #[error("a window of no tokens leaves a query nothing to see: use at least 1")]
    EmptyWindow,
}

/// A chunk that a sequence cannot take.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// No memory to be had.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// Numbers that cannot be stored.
    #[error("{} of kv head {head}, entry {entry}: {source}", name(*side))]
    Codec {
        /// Which entry (layer).
        entry: usize,
        /// Which kv head.
        head: usize,
        /// Which side.
        side: Side,
        /// Why.
        source: CodecError,
    },
    /// A number that is NaN, infinite or too large for the exact rows.
    #[error(
        "{} of kv head {head}, entry {entry}, at position {position}: {value} cannot be stored; the model's output is broken, or a cache of f32 is needed",
        name(*side)
    )]
    Number {
        /// Which entry (layer).
        entry: usize,
        /// Which kv head.
        head: usize,
        /// Which side.
        side: Side,
        /// Where in the sequence.
        position: usize,
        /// The number.
        value: f32,
    },
    /// An entry that the layout does not have.
    #[error("there is no entry {entry}: the layout has {count}")]
    Entry {
        /// The entry asked for.
        entry: usize,
        /// How many there are.
        count: usize,
    },
    /// Keys and values of the wrong size.
    #[error(
        "{what}: {got} numbers are no whole number of tokens of {width}, or not as many as the other side's"
    )]
    Size {
        /// `keys` or `values`.
        what: &'static str,
        /// Their number.
        got: usize,
        /// Numbers per token.
        width: usize,
    },
    /// An empty sequence has nothing to repeat.
    #[error("there is nothing to repeat: the sequence is empty")]
    Nothing,
    /// Another layout with other heads.
    #[error("the layouts differ in {what}: a cache can change its codecs, not its shape")]
    Shape {
        /// What differs.
        what: &'static str,
    },
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Key => "keys",
        Side::Value => "values",
    }
}
