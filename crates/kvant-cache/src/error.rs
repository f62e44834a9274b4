//! What can go wrong, in words that say what, where and what to do.

use crate::arena::ArenaError;
use kvant_codec::{BuildError, CodecError, Side};
use std::path::PathBuf;

/// A cache that cannot be laid out as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// A codec that cannot be built.
    #[error("{} of kv head {head}, layer {layer}: {source}", name(*side))]
    Codec {
        /// Which layer.
        layer: usize,
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
    /// A slot that holds nothing in pages, or nothing on one of its sides.
    #[error("slot {slot} holds no keys and values: there is no codec to be chosen for it")]
    NoPages {
        /// Its place in the list.
        slot: usize,
    },
    /// The two parts of a latent in pages of different sizes.
    #[error(
        "layer {layer} keeps latents, whose rotated part and latent are read together: their pages have {key} and {value} tokens, and must have as many"
    )]
    LatentPages {
        /// Which layer.
        layer: usize,
        /// Tokens of a page of the rotated part.
        key: usize,
        /// Tokens of a page of the latent.
        value: usize,
    },
    /// Recurrent state without rows or without a state.
    #[error("layer {layer}: recurrent state needs at least one number of state and one per token")]
    EmptyState {
        /// Which layer.
        layer: usize,
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
    #[error("{} of kv head {head}, layer {layer}: {source}", name(*side))]
    Codec {
        /// Which layer.
        layer: usize,
        /// Which kv head.
        head: usize,
        /// Which side.
        side: Side,
        /// Why.
        source: CodecError,
    },
    /// A number that is NaN, infinite or too large for the exact rows.
    #[error(
        "{} of kv head {head}, layer {layer}, at position {position}: {value} cannot be stored; the model's output is broken, or a cache of f32 is needed",
        name(*side)
    )]
    Number {
        /// Which layer.
        layer: usize,
        /// Which kv head.
        head: usize,
        /// Which side.
        side: Side,
        /// Where in the sequence.
        position: usize,
        /// The number.
        value: f32,
    },
    /// Pages of host memory that a device was to write.
    #[error(
        "the sequence's pages lie in host memory, and a device was to write them: open it in the device's store"
    )]
    NotDevice,
    /// Keys or values that a device could not store.
    #[error(
        "keys or values of layer {layer} cannot be stored: one is NaN, infinite or too large; the model's output is broken, or a cache of f32 is needed"
    )]
    OnDevice {
        /// Which layer.
        layer: usize,
    },
    /// A slot that the layout does not have, or that holds something else.
    #[error("slot {slot} holds {found}: there are no keys and values to be appended to it")]
    Slot {
        /// Its place in the list.
        slot: usize,
        /// What it holds.
        found: &'static str,
    },
    /// Rows of recurrent state that do not fit their chunk.
    #[error("the recurrent state of layer {layer} has {what}")]
    Chunk {
        /// Which layer.
        layer: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// A number of recurrent state that is NaN or infinite.
    #[error(
        "recurrent state of layer {layer}, at position {position}: {value} cannot be stored; the model's output is broken"
    )]
    Row {
        /// Which layer.
        layer: usize,
        /// Where in the sequence.
        position: usize,
        /// The number.
        value: f32,
    },
    /// A pass that is ended with another number of tokens than were appended.
    #[error(
        "the pass cannot end with {tokens} tokens: {appended} were appended to layer {layer}; append to every slot, then advance by as many"
    )]
    Pass {
        /// Tokens that were to count as held.
        tokens: usize,
        /// Tokens that were appended.
        appended: usize,
        /// To which layer.
        layer: usize,
    },
    /// Keys, values or rows of the wrong size.
    #[error(
        "{what}: {got} numbers are no whole number of tokens of {width}, or not as many as the other side's"
    )]
    Size {
        /// `keys`, `values` or `rows`.
        what: &'static str,
        /// Their number.
        got: usize,
        /// Numbers per token.
        width: usize,
    },
    /// Pages that lie in a file which has shrunk.
    #[error(
        "{} was truncated or cannot be read any more, and the sequence lies in it: restore the file and load it again, or begin anew",
        path.display()
    )]
    FileDamaged {
        /// The file.
        path: PathBuf,
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

/// Queries that cannot attend.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AttendError {
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
    /// No tokens of this pass to attend with.
    #[error(
        "nothing was appended to layer {layer} in this pass, or the pass has ended: append keys and values, attend, then advance"
    )]
    NoPass {
        /// Which layer.
        layer: usize,
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
    /// Pages that lie where this processor cannot read them.
    #[error(
        "what is kept lies in {store}, which this processor cannot read: compute there, or keep it in host memory"
    )]
    NotHost {
        /// What the store is called.
        store: String,
    },
    /// A page that a query needs is not held.
    #[error(
        "page {page} of the {side} of kv head {head}, layer {layer}, is not held: it has left the window, or the pass was ended too early"
    )]
    Missing {
        /// The page.
        page: usize,
        /// `keys`, `values`, or a part of latents.
        side: &'static str,
        /// Which kv head.
        head: usize,
        /// Which layer.
        layer: usize,
    },
    /// A codec refused.
    #[error(transparent)]
    Codec(#[from] CodecError),
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Key => "keys",
        Side::Value => "values",
    }
}
