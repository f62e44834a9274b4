//! Exact caches of several sequences.

use super::{ExactCache, Stored};
use kvant_cache::{KvSlot, PassState, Queries, RecurrentState, Scoring, SequencePass, StateError, StateSlot};
use std::ops::Range;

/// Several exact caches in one pass.
pub struct ExactBatch<'a, T: Stored> {
    caches: Vec<&'a mut ExactCache<T>>,
    passes: Vec<SequencePass>,
}

impl<'a, T: Stored> ExactBatch<'a, T> {
    /// A pass of these sequences, in this order.
    pub fn new(caches: impl IntoIterator<Item = &'a mut ExactCache<T>>) -> Self {
        let caches: Vec<_> = caches.into_iter().collect();
        let passes = caches.iter().map(|cache| cache.pass).collect();
        Self { caches, passes }
    }

    /// Runs `call` for every sequence with the range of its rows in this pass.
    fn each(
        &mut self,
        mut call: impl FnMut(&mut ExactCache<T>, Range<usize>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        let mut row = 0;
        for (sequence, cache) in self.caches.iter_mut().enumerate() {
            let end = row + cache.pass.tokens;
            call(cache, row..end).map_err(|error| StateError { sequence, ..error })?;
            row = end;
        }
        self.passes = self.caches.iter().map(|cache| cache.pass).collect();
        Ok(())
    }

    fn rows(&self) -> usize {
        self.passes.iter().map(|pass| pass.tokens).sum::<usize>().max(1)
    }
}

impl<T: Stored> PassState for ExactBatch<'_, T> {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        let mut tokens = tokens.iter();
        self.each(|cache, _| cache.begin(&[tokens.next().copied().unwrap_or(0)]))
    }

    fn sequences(&self) -> &[SequencePass] {
        &self.passes
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        let (k, v) = (keys.len() / self.rows(), values.len() / self.rows());
        self.each(|cache, own| {
            cache.append(slot, &keys[own.start * k..own.end * k], &values[own.start * v..own.end * v])
        })
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let (q, o) = (queries.own.len() / self.rows(), out.len() / self.rows());
        self.each(|cache, own| {
            let queries = queries.own[own.start * q..own.end * q].into();
            cache.attend(slot, queries, scoring, &mut out[own.start * o..own.end * o])
        })
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        self.caches[sequence].recurrent(slot, 0)
    }

    fn end(&mut self) -> Result<(), StateError> {
        self.each(|cache, _| cache.end())
    }

    fn abandon(&mut self) {
        self.caches.iter_mut().for_each(|cache| cache.abandon());
        self.passes = self.caches.iter().map(|cache| cache.pass).collect();
    }
}
