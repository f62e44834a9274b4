//! One pass through the network: which tokens of which sequences are in it, and how they are rotated.

use crate::blocks::{Activations, Folded, RopeTable};
use kvant_cache::{KvSlot, PassState, Queries, Scoring, SequencePass, StateError};
use kvant_model::Chunk;
use kvant_model::description::{Rope, RopeId};
use std::sync::Arc;

/// The rotations of a pass's tokens.
#[derive(Clone)]
pub struct Rotations {
    /// By their positions.
    pub own: Arc<RopeTable>,
    /// As queries meet the sinks of a streaming window; none where no sequence has one.
    pub at_sinks: Option<Arc<RopeTable>>,
}

/// A pass under way. Rows of activations follow the chunks' tokens, chunk after chunk.
pub struct Pass<'p, 'c> {
    chunks: &'p [Chunk<'c>],
    /// The state of the chunks' sequences.
    pub state: &'p mut dyn PassState,
    /// Inputs of each layer's own, `(tokens, layers · width)`.
    pub per_layer: Option<Activations>,
    /// How queries and keys meet slots of latents, by slot.
    pub folded: &'p [Option<Folded>],
    ropes: &'p [Rope],
    rotations: Vec<Option<Rotations>>, // (ropes)
}

impl<'p, 'c> Pass<'p, 'c> {
    /// A pass over chunks of the sequences of `state`, which has begun it.
    pub fn new(
        chunks: &'p [Chunk<'c>],
        state: &'p mut dyn PassState,
        ropes: &'p [Rope],
        folded: &'p [Option<Folded>],
    ) -> Self {
        Self { chunks, state, per_layer: None, folded, ropes, rotations: vec![None; ropes.len()] }
    }

    /// Every token of the pass with its position.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, usize)> {
        let starts = self.state.sequences().iter().map(|sequence| sequence.start);
        self.chunks.iter().zip(starts).flat_map(|(chunk, start)| chunk.tokens.iter().copied().zip(start..))
    }

    /// The rows that logits are wanted for.
    pub fn wanted(&self) -> Vec<usize> {
        let mut start = 0;
        let mut rows = Vec::new();
        for chunk in self.chunks {
            rows.extend(chunk.wanted.clone().map(|token| start + token));
            start += chunk.tokens.len();
        }
        rows
    }

    /// The rotations of this pass, made on first use.
    pub fn rotations(&mut self, id: RopeId) -> Rotations {
        if let Some(Some(rotations)) = self.rotations.get(id.0) {
            return rotations.clone();
        }
        let rope = &self.ropes[id.0];
        let sequences = self.state.sequences();
        // A sequence without end is to the model one as long as its window.
        let capacity = |of: &SequencePass| of.streaming.map_or(of.capacity, |streaming| streaming.span());
        let own = sequences.iter().map(|of| (of.start..of.start + of.tokens, capacity(of)));
        let at_sinks = sequences.iter().any(|of| of.streaming.is_some()).then(|| {
            let tokens = sequences.iter().flat_map(|of| {
                (of.start..of.start + of.tokens).map(move |position| {
                    let position = of.streaming.map_or(position, |streaming| streaming.at_sinks(position));
                    (position..position + 1, capacity(of))
                })
            });
            Arc::new(RopeTable::new(rope, tokens))
        });
        let rotations = Rotations { own: Arc::new(RopeTable::new(rope, own)), at_sinks };
        self.rotations[id.0] = Some(rotations.clone());
        rotations
    }

    /// Attends with the queries of all sequences; the result is `out_width` wide. `at_sinks` are the queries as they meet the
    /// sinks of a streaming window, where a sequence has one.
    pub fn attend(
        &mut self,
        slot: KvSlot,
        queries: &Activations,
        at_sinks: Option<&Activations>,
        scoring: &Scoring<'_>,
        out_width: usize,
    ) -> Result<Activations, StateError> {
        let mut out = Activations::unset(queries.tokens(), out_width);
        let queries = Queries { own: queries.data(), at_sinks: at_sinks.map(Activations::data) };
        self.state.attend(slot, queries, scoring, out.data_mut())?;
        Ok(out)
    }
}
