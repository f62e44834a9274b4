//! A head that guesses further tokens (multi-token prediction, MTP), as plain data.

use super::Layer;
use super::tree::{Named, Weights, tree};
use kvant_cache::Slots;

tree! {
    /// One more layer, which sees what the model made of a token and is told the token after it, and guesses the one after that:
    ///
    /// `x = combine([embedding_norm(e); hidden_norm(h)])`, `y = layer(x)`, logits `output(norm(y))`.
    ///
    /// `e` is the embedding of token `i + 1` and `h` what the last layer left at position `i`, before the final norm or after it. For a
    /// guess after a guess, `h` is what this head left in place of the model: `norm(y)` or `y`, as it was trained.
    pub struct MtpLayer {
        /// Embeddings, `(vocabulary, hidden)`: the model's, or a copy of its own.
        pub table: W::Table,
        /// Of the embedding.
        pub embedding_norm: W::Norm,
        /// Of what the model left.
        pub hidden_norm: W::Norm,
        /// From both to `(hidden)`.
        pub combine: W::Linear,
        /// Whether it reads `h` before `e`: `combine([hidden_norm(h); embedding_norm(e)])`.
        pub hidden_first: bool,
        /// What it computes; its slots are those of its [`Mtp`].
        pub layer: Layer<W>,
        /// Before the output.
        pub norm: W::Norm,
        /// To the vocabulary; the model's own where there is none.
        pub output: Option<W::Linear>,
        /// Whether `h` is what the model left after the final norm.
        pub sees_normed: bool,
        /// Whether the next guess gets `norm(y)`.
        pub hands_on_normed: bool,
    }
}

/// A head that guesses further tokens, with what it keeps for itself.
pub struct Mtp<W: Weights = Named> {
    /// What it computes.
    pub layer: MtpLayer<W>,
    /// What a sequence of the head keeps between passes: nothing of the model's.
    pub slots: Slots,
}

impl Clone for Mtp {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), slots: self.slots.clone() }
    }
}

impl PartialEq for Mtp {
    fn eq(&self, other: &Self) -> bool {
        self.layer == other.layer && self.slots == other.slots
    }
}

impl std::fmt::Debug for Mtp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mtp").field("layer", &self.layer).field("slots", &self.slots).finish()
    }
}
