//! A model cut between two layers, so that each half can run somewhere else.

use super::{Description, Embedding, Head, Linear, RowRange};
use crate::error::{LoadError, Result};
use kvant_cache::SlotKind;

/// Rows that are left of a head that nobody asks for logits.
const FEW_ROWS: usize = 64;

impl Description {
    /// The first `layers` layers, and the rest. What the first half leaves in the residual stream is what the second takes in place of
    /// embeddings. Both have all slots, and each fills those of its own layers. The first has a head that is not to be used: a few of
    /// its rows.
    ///
    /// # Errors
    /// When layers beyond the cut need more of those before it than the residual stream, or a half has no layers.
    pub fn halves(&self, layers: usize) -> Result<(Description, Description)> {
        if layers == 0 || layers >= self.layers.len() {
            let message = format!("{} layers cannot be cut after {layers} of them", self.layers.len());
            return Err(LoadError::unsupported(message));
        }
        let refuse = |what: &str| {
            Err(LoadError::unsupported(format!("the model cannot run in two places: it has {what}")))
        };
        if self.embedding.per_layer.is_some() {
            return refuse("inputs of each layer's own (per-layer embeddings)");
        }
        if self.embedding.streams.is_some() {
            return refuse("several residual streams (AltUp)");
        }
        let crosses = self.slots.iter().any(|(_, slot)| match slot.kind {
            SlotKind::View(owner) => {
                let owner = self.slots.get(owner.index()).map_or(0, |slot| slot.layer);
                (owner < layers) != (slot.layer < layers)
            }
            SlotKind::KeysValues(_) | SlotKind::Latent(_) | SlotKind::Recurrent(_) => false,
        });
        if crosses {
            return refuse("layers that read keys and values of others, on both sides of the cut");
        }
        let (first, rest) = self.layers.split_at(layers);
        let output = Linear { bias: None, ..self.head.output.clone() };
        let can_be_cut = output.weight.rows.is_none() && !output.weight.transposed;
        let count = FEW_ROWS.min(output.outputs());
        let mut head = Head { output, ..self.head.clone() };
        if can_be_cut {
            head.output.weight.rows = Some(RowRange::from(0, count));
        }
        let first = Description { layers: first.to_vec(), head, mtp: None, ..self.clone() };
        // Learned positions are in the stream already.
        let embedding = Embedding { positions: None, ..self.embedding.clone() };
        let rest = Description { layers: rest.to_vec(), embedding, mtp: None, ..self.clone() };
        Ok((first, rest))
    }
}
