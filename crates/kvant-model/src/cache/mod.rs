//! What a sequence keeps between passes, and the only door through which attention reads it.
//!
//! The forward pass hands a chunk's keys and values of a layer to [`Cache::append`] and its queries to
//! [`Cache::attend`]; it never sees a stored key or value again. How they are kept (exact, rounded, packed in
//! pages) is the cache's own affair. [`ExactCache`] keeps them as they are, in f32 or f16.
//!
//! A layer declares what it keeps by a [`LayerState`]. Layers differ: in the number and width of heads, in
//! their window, and some architectures let several layers share one entry, so an attention block addresses an
//! entry of the list and not "its layer". A kind of layer that keeps something other than keys and values (a
//! convolution's last inputs, a recurrent state) adds a variant here and a method to the trait.

mod exact;

pub use exact::{ExactCache, Stored};

use std::fmt;

/// What one entry of a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerState {
    /// Keys and values of an attention layer.
    KeysValues(KvShape),
}

/// The shape of an attention layer's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Heads that own keys and values; query heads come in equal groups, one group to each.
    pub heads: usize,
    /// Channels of a key (and of a query).
    pub key_dim: usize,
    /// Channels of a value.
    pub value_dim: usize,
    /// How many tokens a query sees, itself included; `None` for all.
    pub window: Option<usize>,
}

/// How scores become weights in one call of [`Cache::attend`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring {
    /// Multiplier of `q · k`.
    pub scale: f32,
    /// Scaled scores `s` become `cap · tanh(s / cap)`.
    pub soft_cap: Option<f32>,
}

/// A window that moves with the newest token, for sequences without end: a query sees the first tokens and the last
/// ones, and meets the first as if they stood just before the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Streaming {
    /// First tokens that stay.
    pub sinks: usize,
    /// Last tokens that are seen, the query's own included.
    pub window: usize,
}

impl Streaming {
    /// The position a query at `position` is turned to when it meets the sinks.
    pub fn at_sinks(&self, position: usize) -> usize {
        position.min(self.sinks + self.window - 1)
    }

    /// The longest distance there is, plus one: as long as the sequence ever seems to the model.
    pub fn span(&self) -> usize {
        self.sinks + self.window
    }
}

/// The queries of a chunk.
#[derive(Debug, Clone, Copy)]
pub struct Queries<'a> {
    /// `(tokens, heads, key_dim)`, normed and rotated.
    pub own: &'a [f32],
    /// The same, rotated as they meet the sinks of a [`Streaming`] window; the queries themselves if none.
    pub at_sinks: Option<&'a [f32]>,
}

impl<'a> From<&'a [f32]> for Queries<'a> {
    fn from(own: &'a [f32]) -> Self {
        Self { own, at_sinks: None }
    }
}

/// A cache that cannot take more tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFull {
    /// Tokens held.
    pub held: usize,
    /// Tokens that were to be added.
    pub asked: usize,
    /// Tokens that fit in all.
    pub capacity: usize,
}

impl fmt::Display for CacheFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { held, asked, capacity } = self;
        write!(f, "the context is full: {held} tokens are held and {asked} more do not fit in {capacity}")
    }
}

impl std::error::Error for CacheFull {}

/// The state of one sequence.
///
/// A pass over a chunk of `n` tokens is: [`reserve`](Cache::reserve)`(n)` once; for every layer that owns an
/// entry one [`append`](Cache::append), then [`attend`](Cache::attend) by it and by the layers that share the
/// entry; [`advance`](Cache::advance)`(n)` once. Query `i` of the chunk stands at position `len() + i` and sees
/// the positions up to its own.
///
/// **Invariant:** what a query gets depends on positions and on what was appended, never on how the tokens
/// were cut into chunks.
pub trait Cache: Send {
    /// The most tokens this sequence may ever hold. It is fixed when the sequence is opened, because some
    /// models rotate keys differently in sequences that may grow long.
    fn capacity(&self) -> usize;

    /// The window of a sequence without end, if it has one.
    fn streaming(&self) -> Option<Streaming> {
        None
    }

    /// Tokens held: the position of the next one.
    fn len(&self) -> usize;

    /// True before the first token.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes room for a chunk, or refuses it; after that `append` cannot fail.
    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull>;

    /// Takes a chunk's keys `(tokens, kv_heads, key_dim)`, normed and rotated, and values
    /// `(tokens, kv_heads, value_dim)`.
    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]);

    /// Attends with a chunk's queries; `out` is `(tokens, heads, value_dim)`.
    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]);

    /// Ends a pass: the chunk's tokens now count as held.
    fn advance(&mut self, tokens: usize);
}
