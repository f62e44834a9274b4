//! What runs a description.

use crate::checkpoint::Checkpoint;
use crate::description::{Description, Matrix};
use crate::encoder::EncoderText;
use crate::error::Result;
use crate::outputs::Outputs;
use crate::pass::{Abilities, Chunk, Guesses, Pass};
use crate::rows::Rows;
use kvant_cache::{KvSlot, Sequence, StateError, StateErrorKind, Store};

/// A device and its kernels.
///
/// A backend compiles whole models and may fuse blocks as it likes. What it cannot run it refuses by name; it never computes
/// something else.
pub trait Backend {
    /// What runs in its place in messages: `cpu`, `cuda:0`.
    fn name(&self) -> &str;

    /// What decides the bits of its numbers beside its name: which of several kernels compute. Empty where there is no choice.
    fn arithmetic(&self) -> String {
        String::new()
    }

    /// Makes a model ready to run from its description and the checkpoint that the description was made from.
    ///
    /// # Errors
    /// If weights cannot be read, or the description has a block that this backend does not run.
    fn compile(&self, description: &Description, checkpoint: &Checkpoint) -> Result<Box<dyn Network>>;

    /// Whether it compiles [encoders](crate::description::Encoder) too; those that do not are never given one.
    fn runs_encoders(&self) -> bool {
        false
    }
}

/// A compiled model. It is immutable; all state is in the [`Sequence`]s of a pass.
pub trait Network: Send + Sync {
    /// Runs a pass over these sequences, which have begun it: appends to their slots, attends, and leaves the end to the model, which has
    /// checked ids and positions, and that the pass asks for nothing beyond this network's [abilities](Self::abilities). Attention is the
    /// backend's own: on the host `kvant-attention` over [`kvant_cache::pass::append`], on a device kernels over pages that
    /// [`Sequence::append_on_device`] takes.
    ///
    /// # Errors
    /// The first that a sequence gives; the pass is then worth nothing.
    fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, StateError>;

    /// Runs the head that guesses further tokens ([`Mtp`](crate::description::Mtp)) over sequences of the head's own, which have begun the
    /// pass: chunks of ids, each the token *after* that which its row of `hidden` is about, `(tokens, hidden)`.
    ///
    /// # Errors
    /// The first that a sequence gives, and where there is no such head.
    fn guess(
        &self,
        chunks: &[Chunk<'_>],
        hidden: &Rows,
        sequences: &mut [&mut Sequence],
    ) -> Result<Guesses, StateError> {
        let _ = (chunks, hidden, sequences);
        Err(StateError::new(0, StateErrorKind::Pass { what: "a head that guesses further tokens (MTP)" }))
    }

    /// What an encoder makes of texts: a row of each token, text after text, `(tokens, hidden)`; `None` of a decoder.
    fn encode(&self, texts: &[EncoderText<'_>]) -> Option<Rows> {
        let _ = texts;
        None
    }

    /// What its classifier makes of those rows, `(texts, classes)`; `None` where there is no classifier.
    fn classify(&self, texts: &[EncoderText<'_>], rows: &Rows) -> Option<Rows> {
        let _ = (texts, rows);
        None
    }

    /// What of a pass it can do beside ids in and any form out.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// The output weights of every attention layer that reads this slot, each `(hidden, heads · value_dim)`: what becomes of
    /// values once attention has summed them up.
    fn output_weights(&self, slot: KvSlot) -> Vec<Rows>;

    /// Where sequences of this network have to take their pages from; `None` for memory of the host, whichever.
    fn store(&self) -> Option<Store> {
        None
    }
}

/// Sees what the matrices of linear layers are multiplied with, on a backend that shows it.
pub trait InputObserver: Send + Sync {
    /// `x`, `(tokens, inputs)`, is about to be multiplied with `matrix`.
    fn observe(&self, matrix: &Matrix, x: &[f32]);
}
