//! A pass over many sequences at once.

use crate::driver::Attention;
use crate::kv_cache::{KvCache, PassState, no_sequence};
use kvant_cache::{
    KvSlot, Queries, RecurrentState, Scoring, Sequence, SequencePass, StateError, StateSlot, pass,
};

/// The state of a pass over many sequences: one call of attention covers all of them, and threads share their work.
///
/// **Invariant:** a sequence gets the bits that it gets alone.
///
/// A pass that is dropped before its end is taken back.
pub struct Batch<'a> {
    attention: &'a mut Attention,
    sequences: Vec<&'a mut Sequence>,
    passes: Vec<SequencePass>,
}

impl<'a> Batch<'a> {
    /// Passes over these sequences; their rows come in this order.
    pub fn new(attention: &'a mut Attention, caches: Vec<&'a mut KvCache>) -> Batch<'a> {
        let sequences: Vec<_> = caches.into_iter().map(KvCache::sequence_mut).collect();
        let passes = sequences.iter().map(|sequence| sequence.pass()).collect();
        Batch { attention, sequences, passes }
    }

    fn settle(&mut self) {
        self.passes.clear();
        self.passes.extend(self.sequences.iter().map(|sequence| sequence.pass()));
    }
}

impl PassState for Batch<'_> {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        let begun = pass::begin(&mut self.sequences, tokens);
        self.settle();
        begun
    }

    fn sequences(&self) -> &[SequencePass] {
        &self.passes
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        pass::append(&mut self.sequences, slot, keys, values)
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        self.attention.attend(&self.sequences[..], slot, queries, scoring, out)
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        let own = self.sequences.get_mut(sequence).ok_or_else(|| no_sequence(sequence))?;
        own.host_state(slot).map_err(|kind| StateError::new(sequence, kind))
    }

    fn end(&mut self) -> Result<(), StateError> {
        let ended = pass::end(&mut self.sequences);
        self.settle();
        ended
    }

    fn abandon(&mut self) {
        pass::abandon(&mut self.sequences);
        self.settle();
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if self.sequences.iter().any(|sequence| sequence.is_under_way()) {
            self.abandon();
        }
    }
}
