//! One pass through the network: which tokens of which sequences are in it.

use crate::blocks::{Rope, RopeTable, Rows};
use crate::cache::{Cache, Scoring};
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

/// A pass under way. Rows of activations follow the chunks' tokens, chunk after chunk.
pub struct Pass<'p, 'c> {
    chunks: &'p mut [Chunk<'c>],
    ropes: Vec<(Arc<Rope>, Arc<RopeTable>)>,
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
    pub fn rotations(&mut self, rope: &Arc<Rope>) -> Arc<RopeTable> {
        if let Some((_, table)) = self.ropes.iter().find(|(known, _)| Arc::ptr_eq(known, rope)) {
            return table.clone();
        }
        let sequences = self.chunks.iter().map(|chunk| {
            let start = chunk.cache.len();
            (start..start + chunk.tokens.len(), chunk.cache.capacity())
        });
        let table = Arc::new(rope.table(sequences));
        self.ropes.push((rope.clone(), table.clone()));
        table
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

    /// Attends with every chunk's queries to the entry of its cache; the result is `out_width` wide.
    pub fn attend(&mut self, entry: usize, queries: &Rows, scoring: &Scoring, out_width: usize) -> Rows {
        let mut out = Rows::zeros(queries.tokens(), out_width);
        let (mut queries_left, mut out_left) = (queries.data(), out.data_mut());
        for chunk in &mut *self.chunks {
            let (q, q_rest) = queries_left.split_at(chunk.tokens.len() * queries.width());
            let (o, o_rest) = out_left.split_at_mut(chunk.tokens.len() * out_width);
            chunk.cache.attend(entry, q, scoring, o);
            (queries_left, out_left) = (q_rest, o_rest);
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
