//! The state of a pass, as a model sees it: the one door through which a forward pass reaches what sequences keep.

use crate::error::{AttendError, CacheError};
use crate::recurrent::RecurrentState;
use crate::sequence::Sequence;
use crate::slot::{KvSlot, StateSlot};

/// One sequence's part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePass {
    /// Position of its first token: tokens held before the pass.
    pub start: usize,
    /// Tokens it brings.
    pub tokens: usize,
    /// The most tokens it may ever hold. It is fixed when the sequence is opened, because some models rotate keys
    /// differently in sequences that may grow long.
    pub capacity: usize,
    /// The StreamingLLM window of a sequence without end.
    pub streaming: Option<Streaming>,
}

/// A window that moves with the newest token (StreamingLLM), for sequences without end: a query sees the attention sinks and
/// the last tokens, and meets the sinks as if they stood just before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// First tokens that stay.
    pub sinks: usize,
    /// Last tokens that are seen, the query's own included.
    pub window: usize,
}

impl Streaming {
    /// The position a query at `position` is rotated to when it meets the sinks.
    pub fn at_sinks(&self, position: usize) -> usize {
        position.min(self.sinks + self.window - 1)
    }

    /// The longest distance there is, plus one: as long as the sequence ever seems to the model.
    pub fn span(&self) -> usize {
        self.sinks + self.window
    }
}

/// Queries of all sequences of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Queries<'a> {
    /// `(rows, heads, query dim)`, normed and rotated.
    pub own: &'a [f32],
    /// The same rows rotated as they meet the sinks of a [`Streaming`] window; `None` where no sequence has one.
    pub at_sinks: Option<&'a [f32]>,
}

impl<'a> From<&'a [f32]> for Queries<'a> {
    fn from(own: &'a [f32]) -> Queries<'a> {
        Queries { own, at_sinks: None }
    }
}

/// How scores become weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring<'a> {
    /// Multiplies q·k.
    pub scale: f32,
    /// Scaled scores s become cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
    /// One logit per query head that takes part in the softmax and has no value (gpt-oss).
    pub sink_logits: Option<&'a [f32]>,
}

impl Scoring<'_> {
    /// Plain softmax attention.
    pub fn new(scale: f32) -> Scoring<'static> {
        Scoring { scale, soft_cap: None, sink_logits: None }
    }
}

/// A sequence that cannot take more tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the context is full: {held} tokens are held and {asked} more do not fit in {capacity}")]
pub struct CacheFull {
    /// Tokens held.
    pub held: usize,
    /// Tokens that were to be added.
    pub asked: usize,
    /// Tokens that fit in all.
    pub capacity: usize,
}

/// A pass that the state of a sequence could not take part in.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind}")]
pub struct StateError {
    /// Which sequence of the pass, by order.
    pub sequence: usize,
    /// What went wrong.
    pub kind: StateErrorKind,
}

impl StateError {
    /// An error of the sequence at this place of the pass.
    pub fn new(sequence: usize, kind: impl Into<StateErrorKind>) -> StateError {
        StateError { sequence, kind: kind.into() }
    }
}

/// What went wrong in a pass.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateErrorKind {
    /// The context is full.
    #[error(transparent)]
    Full(#[from] CacheFull),
    /// Keys, values or rows that cannot be stored: NaN, memory, sizes.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Queries that cannot attend.
    #[error(transparent)]
    Attend(#[from] AttendError),
    /// A slot that is not there, or of another kind.
    #[error(
        "slot {slot} holds {found}, and {wanted} were asked for: the model and its cache do not belong together"
    )]
    Slot {
        /// Its place in the list.
        slot: usize,
        /// What it holds; `nothing` if it is not there.
        found: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// What the device that runs the pass cannot do.
    #[error("{0}")]
    Device(String),
    /// Calls out of order.
    #[error("{what}")]
    Pass {
        /// What is wrong with the order, and what would be right.
        what: &'static str,
    },
}

/// The state of all sequences of a pass. Rows of activations follow the sequences' tokens, one sequence after another.
///
/// A pass: [`begin`](PassState::begin) once, with the tokens of each sequence; per layer one [`append`](PassState::append) by
/// the owner of a slot, then [`attend`](PassState::attend) by it and by the layers that view it, or
/// [`recurrent`](PassState::recurrent); [`end`](PassState::end) once. If anything fails, nothing counts as held:
/// [`abandon`](PassState::abandon) (also called by `begin` if a pass was left open, and by whoever gets an error) takes back
/// what was appended.
///
/// **Invariant:** what a query gets depends on positions and on what was appended, never on how tokens were cut into
/// chunks, on the other sequences of the pass, or on threads.
pub trait PassState {
    /// Makes room for these many tokens of each sequence, or refuses with the first sequence that cannot take them.
    ///
    /// # Errors
    /// When the context or the memory of a sequence is full, or the pass has another number of sequences.
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError>;

    /// The sequences of the pass that has begun, in the order of rows. Before `begin`: tokens are 0.
    fn sequences(&self) -> &[SequencePass];

    /// Takes keys `(rows, kv_heads, key_dim)`, normed and rotated, and values `(rows, kv_heads, value_dim)` of all sequences.
    /// Latent slots: keys are the rotated parts `(rows, kv_heads, rope_dim)`, values the latents.
    ///
    /// # Errors
    /// When sizes do not fit, a number cannot be stored or memory is full.
    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError>;

    /// Attends with the queries of all sequences at once; `out` is `(rows, heads, value dim)`.
    ///
    /// # Errors
    /// When sizes do not fit, or nothing was appended to the slot.
    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError>;

    /// The recurrent state of one sequence, to be read and advanced by the mixer.
    ///
    /// # Errors
    /// When there is no such slot or sequence.
    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError>;

    /// What one sequence of the pass keeps, for a backend on whose device it lies: in place of [`append`](PassState::append) it
    /// [takes pages](Sequence::append_on_device) and writes them itself, and it attends by itself. `None` where there is no such
    /// sequence, or what it keeps is not in pages.
    fn sequence_mut(&mut self, sequence: usize) -> Option<&mut Sequence> {
        let _ = sequence;
        None
    }

    /// Ends the pass: its tokens now count as held.
    ///
    /// # Errors
    /// When a slot has got another number of tokens than the pass has; nothing counts as held then.
    fn end(&mut self) -> Result<(), StateError>;

    /// Takes back an unfinished pass.
    fn abandon(&mut self);
}
