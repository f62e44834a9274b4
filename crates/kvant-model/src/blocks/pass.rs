//! One pass through the network: which tokens of which sequences are in it.

use crate::blocks::{Rope, RopeTable, Rows};
use crate::cache::{Cache, Queries, Scoring};
use std::ops::Range;
use std::sync::Arc;

/// What is shown the activations of a pass: a layer's number and its input, `(tokens, hidden)`.
pub type Observer<'o> = dyn FnMut(usize, &Rows) + 'o;

/// The next tokens of one sequence. A pass may hold chunks of several sequences; weights are read once for all.
pub struct Chunk<'a> {
    /// Token ids, at least one.
    pub tokens: &'a [u32],
    /// The sequence's state; the first token stands at position `cache.len()`.
    pub cache: &'a mut dyn Cache,
    /// Which of the tokens to give logits for; `0..0` for none.
    pub wanted: Range<usize>,
}

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
    chunks: &'p mut [Chunk<'c>],
    ropes: Vec<(Arc<Rope>, Rotations)>,
    observer: Option<&'p mut Observer<'p>>,
}

impl<'p, 'c> Pass<'p, 'c> {
    /// A pass over `chunks`; `observer` is shown the input of every layer, and last the normed output.
    pub fn new(chunks: &'p mut [Chunk<'c>], observer: Option<&'p mut Observer<'p>>) -> Self {
        Self { chunks, ropes: Vec::new(), observer }
    }

    /// Every token of the pass with its position.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, usize)> {
        self.chunks.iter().flat_map(|chunk| chunk.tokens.iter().copied().zip(chunk.cache.len()..))
    }

    /// The rows that logits are wanted for.
    pub fn wanted(&self) -> Vec<usize> {
        let mut start = 0;
        let mut rows = Vec::new();
        for chunk in &*self.chunks {
            rows.extend(chunk.wanted.clone().map(|token| start + token));
            start += chunk.tokens.len();
        }
        rows
    }

    /// The rotations of this pass, made on first use.
    pub fn rotations(&mut self, rope: &Arc<Rope>) -> Rotations {
        if let Some((_, rotations)) = self.ropes.iter().find(|(known, _)| Arc::ptr_eq(known, rope)) {
            return rotations.clone();
        }
        // A sequence without end is to the model one as long as its window.
        let capacity =
            |cache: &dyn Cache| cache.streaming().map_or(cache.capacity(), |streaming| streaming.span());
        let own = self.chunks.iter().map(|chunk| {
            let start = chunk.cache.len();
            (start..start + chunk.tokens.len(), capacity(chunk.cache))
        });
        let at_sinks = self.chunks.iter().any(|chunk| chunk.cache.streaming().is_some()).then(|| {
            let tokens = self.chunks.iter().flat_map(|chunk| {
                let (start, streaming) = (chunk.cache.len(), chunk.cache.streaming());
                (start..start + chunk.tokens.len()).map(move |position| {
                    let position = streaming.map_or(position, |streaming| streaming.at_sinks(position));
                    (position..position + 1, capacity(chunk.cache))
                })
            });
            Arc::new(rope.table(tokens))
        });
        let rotations = Rotations { own: Arc::new(rope.table(own)), at_sinks };
        self.ropes.push((rope.clone(), rotations.clone()));
        rotations
    }

    /// Hands keys and values of every chunk to the entry of its cache.
    pub fn append(&mut self, entry: usize, keys: &Rows, values: &Rows) {
        let (mut keys_left, mut values_left) = (keys.data(), values.data());
        for chunk in &mut *self.chunks {
            let (k, k_rest) = keys_left.split_at(chunk.tokens.len() * keys.width());
            let (v, v_rest) = values_left.split_at(chunk.tokens.len() * values.width());
            chunk.cache.append(entry, k, v);
            (keys_left, values_left) = (k_rest, v_rest);
        }
    }

    /// Attends with every chunk's queries to the entry of its cache; the result is `out_width` wide. `at_sinks` are
    /// the queries as they meet the sinks of a streaming window, where a sequence has one.
    pub fn attend(
        &mut self,
        entry: usize,
        queries: &Rows,
        at_sinks: Option<&Rows>,
        scoring: &Scoring,
        out_width: usize,
    ) -> Rows {
        let mut out = Rows::unset(queries.tokens(), out_width);
        let (mut at, mut out_left) = (0, out.data_mut());
        for chunk in &mut *self.chunks {
            let own = at..at + chunk.tokens.len() * queries.width();
            let (o, o_rest) = out_left.split_at_mut(chunk.tokens.len() * out_width);
            let streams = chunk.cache.streaming().is_some();
            let at_sinks = at_sinks.filter(|_| streams).map(|rows| &rows.data()[own.clone()]);
            chunk.cache.attend(entry, Queries { own: &queries.data()[own.clone()], at_sinks }, scoring, o);
            (at, out_left) = (own.end, o_rest);
        }
        out
    }

    /// Shows `x`, the input of layer `layer`, to the observer.
    pub fn observe(&mut self, layer: usize, x: &Rows) {
        if let Some(observer) = &mut self.observer {
            observer(layer, x);
        }
    }

    /// Ends the pass: the caches now hold the chunks' tokens.
    pub fn finish(self) {
        for chunk in self.chunks {
            chunk.cache.advance(chunk.tokens.len());
        }
    }
}
