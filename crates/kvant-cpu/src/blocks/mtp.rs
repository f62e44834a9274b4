//! The head that guesses further tokens: one more layer over what the model left and the token after it.

use crate::blocks::{Activations, Block, Embedding, Head, MtpLayer};
use crate::pass::CpuPass;
use kvant_cache::{Slots, StateError};

/// A compiled head.
pub struct Mtp {
    /// What it computes.
    pub layer: MtpLayer,
    /// Of the tokens that it is told.
    pub embedding: Embedding,
    /// What its sequences keep.
    pub slots: Slots,
}

impl Block<'_, Mtp> {
    /// What the head makes of `left`, `(tokens, hidden)`, and the tokens of the pass: `norm(y)`, `(tokens, hidden)`, and what a guess after
    /// each gets.
    pub fn forward(
        &self,
        left: Activations,
        pass: &mut CpuPass<'_, '_>,
    ) -> Result<(Activations, Activations), StateError> {
        let MtpLayer {
            embedding_norm, hidden_norm, combine, hidden_first, layer, norm, hands_on_normed, ..
        } = &self.layer;
        let mut told = self.embedding.forward(pass.inputs().zip(pass.positions())); // (tokens, hidden)
        embedding_norm.in_place(&mut told);
        let mut left = left;
        hidden_norm.in_place(&mut left);
        let width = told.width();
        let (first, second) = if *hidden_first { (&left, &told) } else { (&told, &left) };
        let both = first.data().chunks_exact(width).zip(second.data().chunks_exact(width));
        let both: Vec<f32> = both.flat_map(|(first, second)| first.iter().chain(second)).copied().collect();
        let mut streams = vec![combine.forward(&Activations::from_vec(both, 2 * width))];
        Block(layer).forward(&mut streams, pass)?;
        let y = streams.swap_remove(0);
        let normed = norm.forward(&y);
        let handed_on = if *hands_on_normed { normed.clone() } else { y };
        Ok((normed, handed_on))
    }

    /// `(rows, hidden)`, normed, to `(rows, vocabulary)`, beside a model with this head.
    pub fn logits(&self, normed: &Activations, head: &Head) -> Activations {
        match &self.layer.output {
            Some(output) => output.forward(normed),
            None => Block(head).forward(normed),
        }
    }
}
