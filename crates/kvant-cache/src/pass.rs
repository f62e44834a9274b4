//! A pass over the next tokens of some sequences: what each brings, how it begins and ends, and what attention is told.
//!
//! **Invariant:** what a query gets depends on positions and on what was appended, never on how tokens were cut into chunks, on the
//! other sequences of the pass, or on threads.

use crate::error::{AttendError, CacheError};
use crate::sequence::{NOT_BEGUN, Sequence};
use crate::slot::KvSlot;

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

/// Who is shown what attention layers keep and ask: recording, statistics. Rows follow the sequences' tokens, one sequence after another.
pub trait AttentionObserver {
    /// Keys `(rows, kv_heads, key_dim)` and values `(rows, kv_heads, value_dim)` that a slot gets, as [`append`] takes them.
    fn append(&mut self, sequences: &[SequencePass], slot: KvSlot, keys: &[f32], values: &[f32]);

    /// Queries `(rows, heads, query dim)` of a layer that reads the slot, and what attention made of them, `(rows, heads, value dim)`.
    fn attend(
        &mut self,
        sequences: &[SequencePass],
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        outputs: &[f32],
    );
}

/// Begins a pass over these sequences: makes room for so many tokens of each, or refuses with the first that cannot take them. Then,
/// for every layer, the owner of a slot [appends](append); then the pass [ends](end). If anything fails, [`abandon`] leaves every
/// sequence as it was.
///
/// # Errors
/// When the context or the memory of a sequence is full, or there are more or fewer numbers than sequences. No pass is under way then.
pub fn begin(sequences: &mut [&mut Sequence], tokens: &[usize]) -> Result<(), StateError> {
    abandon(sequences);
    if tokens.len() != sequences.len() {
        let what = "the pass has another number of sequences than the batch";
        return Err(StateError::new(0, StateErrorKind::Pass { what }));
    }
    for (index, &tokens) in tokens.iter().enumerate() {
        if let Err(kind) = sequences[index].begin(tokens) {
            abandon(sequences);
            return Err(StateError::new(index, kind));
        }
    }
    Ok(())
}

/// Takes keys `(rows, kv_heads, key_dim)`, normed and rotated, and values `(rows, kv_heads, value_dim)` of all sequences of a pass.
/// Latent slots: keys are the rotated parts `(rows, kv_heads, rope_dim)`, values the latents.
///
/// # Errors
/// When no pass is under way, sizes do not fit, a number cannot be stored or memory is full.
pub fn append(
    sequences: &mut [&mut Sequence],
    slot: KvSlot,
    keys: &[f32],
    values: &[f32],
) -> Result<(), StateError> {
    if let Some(index) = sequences.iter().position(|sequence| !sequence.is_under_way()) {
        return Err(StateError::new(index, NOT_BEGUN));
    }
    let rows: usize = sequences.iter().map(|sequence| sequence.pass().tokens).sum();
    // Numbers of one row, if these are those of whole rows of all sequences.
    let width = |got: usize| got.checked_div(rows).filter(|width| width * rows == got);
    let (Some(key_width), Some(value_width)) = (width(keys.len()), width(values.len())) else {
        let what = "keys or values are not those of a whole number of rows of the pass";
        return Err(StateError::new(0, StateErrorKind::Pass { what }));
    };
    let mut row = 0;
    for (index, sequence) in sequences.iter_mut().enumerate() {
        let end = row + sequence.pass().tokens;
        let (keys, values) =
            (&keys[row * key_width..end * key_width], &values[row * value_width..end * value_width]);
        sequence.append(slot, keys, values).map_err(|error| StateError::new(index, error))?;
        row = end;
    }
    Ok(())
}

/// Ends a pass: its tokens now count as held, of all sequences or of none.
///
/// # Errors
/// When a slot has got another number of tokens than the pass has; the pass is taken back then.
pub fn end(sequences: &mut [&mut Sequence]) -> Result<(), StateError> {
    // A sequence that cannot end its pass is found before any other has.
    for index in 0..sequences.len() {
        if let Err(kind) = sequences[index].check_end() {
            abandon(sequences);
            return Err(StateError::new(index, kind));
        }
    }
    for (index, sequence) in sequences.iter_mut().enumerate() {
        sequence.end().map_err(|kind| StateError::new(index, kind))?;
    }
    Ok(())
}

/// Takes back what is unfinished of a pass.
pub fn abandon(sequences: &mut [&mut Sequence]) {
    sequences.iter_mut().for_each(|sequence| sequence.take_back());
}
