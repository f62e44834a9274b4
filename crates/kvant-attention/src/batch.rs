//! A pass over many sequences at once.

use crate::driver::Attention;
use crate::kv_cache::{KvCache, NOT_BEGUN};
use crate::plan::Sequences;
use kvant_cache::{
    KvSlot, PassState, Queries, RecurrentState, Scoring, Sequence, SequencePass, StateError, StateErrorKind,
    StateSlot,
};

/// The state of a pass over many sequences: one call of attention covers all of them, and threads share their work.
///
/// **Invariant:** a sequence gets the bits that it gets alone.
///
/// A pass that is dropped before its end is taken back.
pub struct Batch<'a> {
    attention: &'a mut Attention,
    caches: Vec<&'a mut KvCache>,
    passes: Vec<SequencePass>,
}

impl Sequences for Vec<&mut KvCache> {
    fn count(&self) -> usize {
        self.len()
    }

    fn sequence(&self, index: usize) -> &Sequence {
        self[index].sequence()
    }
}

impl<'a> Batch<'a> {
    /// Passes over these sequences; their rows come in this order.
    pub fn new(attention: &'a mut Attention, caches: Vec<&'a mut KvCache>) -> Batch<'a> {
        let passes = caches.iter().map(|cache| cache.sequences()[0]).collect();
        Batch { attention, caches, passes }
    }

    fn tokens(&self) -> usize {
        self.passes.iter().map(|pass| pass.tokens).sum()
    }

    /// Numbers of one row, if `got` are those of whole rows of all sequences.
    fn width(&self, got: usize) -> Option<usize> {
        let rows = self.tokens();
        got.checked_div(rows).filter(|width| width * rows == got)
    }
}

impl PassState for Batch<'_> {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        self.abandon();
        if tokens.len() != self.caches.len() {
            let what = "the pass has another number of sequences than the batch";
            return Err(StateError::new(0, StateErrorKind::Pass { what }));
        }
        for index in 0..tokens.len() {
            match self.caches[index].open(tokens[index]) {
                Ok(pass) => self.passes[index] = pass,
                Err(kind) => {
                    self.abandon();
                    return Err(StateError::new(index, kind));
                }
            }
        }
        Ok(())
    }

    fn sequences(&self) -> &[SequencePass] {
        &self.passes
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        if !self.caches.iter().all(|cache| cache.is_open()) {
            return Err(StateError::new(0, NOT_BEGUN));
        }
        let (Some(key_width), Some(value_width)) = (self.width(keys.len()), self.width(values.len())) else {
            let what = "keys or values are not those of a whole number of rows of the pass";
            return Err(StateError::new(0, StateErrorKind::Pass { what }));
        };
        let mut row = 0;
        for (index, cache) in self.caches.iter_mut().enumerate() {
            let rows = row..row + self.passes[index].tokens;
            let keys = &keys[rows.start * key_width..rows.end * key_width];
            let values = &values[rows.start * value_width..rows.end * value_width];
            cache.sequence.append(slot, keys, values).map_err(|error| StateError::new(index, error))?;
            row = rows.end;
        }
        Ok(())
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        self.attention.attend(&self.caches, slot, queries, scoring, out)
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        let what = "there is no such sequence in the pass";
        let missing = StateError::new(sequence, StateErrorKind::Pass { what });
        let cache = self.caches.get_mut(sequence).ok_or(missing)?;
        cache.state(slot).map_err(|kind| StateError::new(sequence, kind))
    }

    fn sequence_mut(&mut self, sequence: usize) -> Option<&mut Sequence> {
        self.caches.get_mut(sequence).map(|cache| &mut cache.sequence)
    }

    fn end(&mut self) -> Result<(), StateError> {
        // All or none: a sequence that cannot end its pass is found before any other has.
        for (index, cache) in self.caches.iter().enumerate() {
            let ready = if cache.is_open() { cache.ready() } else { Err(NOT_BEGUN) };
            if let Err(kind) = ready {
                self.abandon();
                return Err(StateError::new(index, kind));
            }
        }
        for (index, cache) in self.caches.iter_mut().enumerate() {
            cache.close().map_err(|kind| StateError::new(index, kind))?;
            self.passes[index] = cache.sequences()[0];
        }
        Ok(())
    }

    fn abandon(&mut self) {
        for (cache, pass) in self.caches.iter_mut().zip(&mut self.passes) {
            cache.take_back();
            *pass = cache.sequences()[0];
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.caches.iter().any(|cache| cache.is_open()) {
            self.abandon();
        }
    }
}
