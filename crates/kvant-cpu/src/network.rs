//! A compiled model: embedding before the layers, norm and logits after them.

use crate::blocks::{Activations, Block, Embedding, Folded, Head, Layer, PerLayerEmbedding, Streams};
use crate::pass::Pass;
use kvant_cache::{KvSlot, PassState, Slots, StateError};
use kvant_model::description::Rope;
use kvant_model::{Chunk, Network, Observer, Rows};

/// A model's blocks.
pub struct CpuNetwork {
    /// Before the first layer.
    pub embedding: Embedding,
    /// Inputs of each layer's own.
    pub per_layer: Option<PerLayerEmbedding>,
    /// Further residual streams; none in most models.
    pub streams: Option<Streams>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// After the last.
    pub head: Head,
    /// The rotary embeddings that layers refer to.
    pub ropes: Vec<Rope>,
    /// How queries and keys meet slots of latents, by slot.
    pub folded: Vec<Option<Folded>>,
    /// What sequences keep.
    pub slots: Slots,
}

impl CpuNetwork {
    /// The layers from number `first` on, and logits.
    fn run(
        &self,
        first: usize,
        mut streams: Vec<Activations>,
        mut pass: Pass<'_, '_>,
        mut observer: Option<&mut Observer<'_>>,
    ) -> Result<Rows, StateError> {
        let mut observe = |layer: usize, x: &Activations| {
            if let Some(observer) = &mut observer {
                observer(layer, x.rows());
            }
        };
        for (index, layer) in self.layers.iter().enumerate().skip(first) {
            observe(index, &streams[0]);
            Block(layer).forward(&mut streams, &mut pass)?;
        }
        let mut x = match &self.streams {
            Some(of) => Block(of).joined(streams),
            None => streams.swap_remove(0),
        };
        self.head.norm.in_place(&mut x);
        observe(self.layers.len(), &x);
        let wanted = pass.wanted();
        Ok(match wanted.len() {
            0 => Rows::from_vec(Vec::new(), self.head.output.outputs()),
            n if n == x.tokens() => Block(&self.head).forward(&x).into_rows(),
            _ => Block(&self.head).forward(&x.gather(&wanted)).into_rows(),
        })
    }
}

impl Network for CpuNetwork {
    fn forward(
        &self,
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
        observer: Option<&mut Observer<'_>>,
    ) -> Result<Rows, StateError> {
        let mut pass = Pass::new(chunks, state, &self.ropes, &self.folded);
        let x = self.embedding.forward(pass.tokens()); // (tokens, hidden)
        pass.per_layer = self.per_layer.as_ref().map(|per_layer| Block(per_layer).forward(&x, pass.tokens()));
        let streams = match &self.streams {
            Some(of) => Block(of).opened(x),
            None => vec![x],
        };
        self.run(0, streams, pass, observer)
    }

    fn resumes(&self) -> bool {
        // What else layers read is not shown to observers.
        self.per_layer.is_none() && self.layers.iter().all(|layer| layer.altup.is_none())
    }

    fn forward_from(
        &self,
        (layer, input): (usize, &Rows),
        chunks: &[Chunk<'_>],
        state: &mut dyn PassState,
    ) -> Result<Rows, StateError> {
        let pass = Pass::new(chunks, state, &self.ropes, &self.folded);
        let x = Activations::from_vec(input.data().to_vec(), input.width());
        self.run(layer, vec![x], pass, None)
    }

    fn output_weights(&self, slot: KvSlot) -> Vec<Rows> {
        let owner = self.slots.owner(slot);
        let reads = |slot| self.slots.owner(slot) == owner;
        self.layers
            .iter()
            .flat_map(|layer| Block(layer).output_weights(reads))
            .map(Activations::into_rows)
            .collect()
    }
}
