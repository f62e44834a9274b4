//! What runs a description.

use crate::checkpoint::Checkpoint;
use crate::description::Description;
use crate::error::Result;
use crate::rows::Rows;
use crate::top::{Outputs, TopK, TopTokens};
use kvant_cache::{KvSlot, PassState, StateError, Store};
use std::ops::Range;

/// What is shown the activations of a pass: a layer's number and its input, `(tokens, hidden)`; last, under the number of
/// layers, the output of the last one after the final norm.
pub type Observer<'o> = dyn FnMut(usize, &Rows) + 'o;

/// Whether the list of a wanted row, by its number, settles the choice of a token.
pub type Enough<'e> = dyn Fn(usize, &TopTokens) -> bool + 'e;

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// Which of the tokens to give logits for; `0..0` for none.
    pub wanted: Range<usize>,
}

/// A device and its kernels.
///
/// A backend compiles whole models and may fuse blocks as it likes. What it cannot run it refuses by name; it never computes
/// something else.
pub trait Backend {
    /// What runs in its place in messages: `cpu`, `cuda:0`.
    fn name(&self) -> &str;

    /// Makes a model ready to run from its description and the checkpoint that the description was made from.
    ///
    /// # Errors
    /// If weights cannot be read, or the description has a block that this backend does not run.
    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>>;
}

/// A compiled model. It is immutable; all state of a sequence is in the [`PassState`] of a pass.
pub trait Network: Send + Sync {
    /// Runs a pass over one chunk of every sequence of `state`, which has begun it; returns the wanted logits,
    /// `(wanted tokens, vocabulary)`, chunk after chunk. Tokens and positions were checked.
    ///
    /// # Errors
    /// The first that the state of a sequence gives; the pass is then worth nothing.
    fn forward(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        observer: Option<&mut Observer<'_>>,
    ) -> Result<Rows, StateError>;

    /// The same pass, where a wanted row may come as the beginning of its ranking instead of as logits: `top` has a place for every
    /// wanted row, chunk after chunk, and `enough` says of a row's list whether a token can be chosen by it. Where it cannot, where a
    /// logit is NaN or +∞, and wherever the backend likes, the row comes as logits. [`crate::top`] has the rule.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    fn forward_top(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        top: &[Option<TopK>],
        enough: &Enough<'_>,
    ) -> Result<Outputs, StateError> {
        let _ = (top, enough);
        self.forward(chunks, state, None).map(Outputs::from)
    }

    /// The output weights of every attention layer that reads this slot, each `(hidden, heads · value_dim)`: what becomes of
    /// values once attention has summed them up.
    fn output_weights(&self, slot: KvSlot) -> Vec<Rows>;

    /// Where sequences of this network have to take their pages from; `None` for memory of the host, whichever.
    fn store(&self) -> Option<Store> {
        None
    }
}
