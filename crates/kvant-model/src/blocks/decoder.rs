//! The frame around the layers: embedding before, norm and logits after.

use crate::arch::Network;
use crate::blocks::rows::for_each_row;
use crate::blocks::{Attention, Embedding, Linear, Norm, Pass, Rows, ScoreTraits};
use crate::cache::LayerState;

/// One layer of a decoder.
pub trait Block: Send + Sync {
    /// Changes the residual stream `(tokens, hidden)`.
    fn forward(&self, x: &mut Rows, pass: &mut Pass<'_, '_>);

    /// The layer's attention, if it has one.
    fn attention(&self) -> Option<&Attention>;

    /// What the layer keeps between passes: the keys and values of its attention. `None` when it keeps nothing of its own.
    fn state(&self) -> Option<LayerState> {
        self.attention().map(|attention| LayerState::KeysValues(attention.shape))
    }
}

/// From the last activations to logits.
pub struct Head {
    /// After the last layer.
    pub norm: Norm,
    /// To the vocabulary.
    pub output: Linear,
    /// Multiplier of the logits.
    pub scale: f32,
    /// Logits `z` become `cap · tanh(z / cap)`.
    pub soft_cap: Option<f32>,
}

/// A decoder of layers one after another.
pub struct Decoder {
    /// Before the first layer.
    pub embedding: Embedding,
    /// The layers.
    pub blocks: Vec<Box<dyn Block>>,
    /// After the last.
    pub head: Head,
}

impl Network for Decoder {
    fn vocabulary(&self) -> usize {
        self.embedding.vocabulary()
    }

    fn position_limit(&self) -> Option<usize> {
        self.embedding.position_limit()
    }

    fn states(&self) -> Vec<LayerState> {
        self.blocks.iter().filter_map(|block| block.state()).collect()
    }

    fn score_traits(&self) -> Vec<ScoreTraits> {
        self.blocks.iter().filter_map(|block| Some(block.attention()?.score_traits())).collect()
    }

    fn output_weights(&self, entry: usize) -> Vec<Rows> {
        let attentions = self.blocks.iter().filter_map(|block| block.attention());
        attentions.filter(|one| one.entry == entry).map(|one| one.output.weights()).collect()
    }

    fn hidden(&self, pass: &mut Pass<'_, '_>) -> Rows {
        let mut x = self.embedding.forward(pass.tokens());
        for (layer, block) in self.blocks.iter().enumerate() {
            pass.observe(layer, &x);
            block.forward(&mut x, pass);
        }
        self.head.norm.in_place(&mut x);
        pass.observe(self.blocks.len(), &x);
        x
    }

    fn logits(&self, hidden: &Rows) -> Rows {
        let mut logits = self.head.output.forward(hidden);
        let width = logits.width();
        let Head { scale, soft_cap, .. } = self.head;
        for_each_row(logits.data_mut(), width, |_, row| {
            row.iter_mut().for_each(|z| *z *= scale);
            if let Some(cap) = soft_cap {
                row.iter_mut().for_each(|z| *z = cap * (*z / cap).tanh());
            }
        });
        logits
    }
}
