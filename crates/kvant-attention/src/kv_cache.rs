//! The cache of one sequence, by the policy a user named: what a forward pass appends to and attends with.

use crate::driver::Attention;
use kvant_cache::snapshot::Signature;
use kvant_cache::{
    Arena, AttendError, CacheError, CacheFull, CacheLayout, Footprint, KvSlot, PassState, Policy, Queries,
    RecurrentState, Scoring, Sequence, SequencePass, Slots, Snapshot, SnapshotError, StateError,
    StateErrorKind, StateSlot, Store, Streaming,
};
use std::sync::Arc;

/// The cache of one sequence.
///
/// It is the [`PassState`] of a pass over this sequence alone; [`Batch`](crate::Batch) is that of a pass over several.
pub struct KvCache {
    policy: Policy,
    pub(crate) sequence: Sequence,
    attention: Attention,
    capacity: usize,
    /// As the last pass began.
    pass: [SequencePass; 1],
    is_open: bool,
}

/// A policy that no cache of this model can keep.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("keys and values cannot be kept as {policy}: {reason}")]
pub struct KvUnsupported {
    policy: String,
    reason: String,
}

impl KvUnsupported {
    /// Why a policy cannot be had.
    pub fn new(policy: &Policy, reason: &dyn std::error::Error) -> KvUnsupported {
        KvUnsupported { policy: policy.to_string(), reason: reason.to_string() }
    }
}

impl KvCache {
    /// An empty cache for at most `capacity` tokens of a model whose layers keep `slots`. Memory is taken as tokens come.
    ///
    /// # Errors
    /// If no cache keeps keys and values that way: another codec is never put in its place.
    pub fn new(kv: impl Into<Policy>, slots: &Slots, capacity: usize) -> Result<KvCache, KvUnsupported> {
        KvCache::in_arena(kv, slots, capacity, Arena::new())
    }

    /// The same with pages from an arena that may have a cap, and may be shared; or from any other store.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn in_arena(
        kv: impl Into<Policy>,
        slots: &Slots,
        capacity: usize,
        store: impl Into<Store>,
    ) -> Result<KvCache, KvUnsupported> {
        let policy = kv.into();
        let layout = CacheLayout::new(&policy, slots).map_err(|e| KvUnsupported::new(&policy, &e))?;
        let attention = Attention::new().map_err(|e| KvUnsupported::new(&policy, &e))?;
        Ok(KvCache::with(policy, Sequence::new(Arc::new(layout), store), capacity, attention))
    }

    /// [`KvCache::new`], with pages that are decoded to f32 before they are attended to: [`CacheLayout::decoded`].
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn decoded(kv: impl Into<Policy>, slots: &Slots, capacity: usize) -> Result<KvCache, KvUnsupported> {
        let cache = KvCache::new(kv, slots, capacity)?;
        let layout = cache.sequence.layout().decoded();
        Ok(cache.over(Sequence::new(Arc::new(layout), Arena::new())))
    }

    /// Another cache of the same kind over what a sequence of its layout holds.
    pub fn over(&self, sequence: Sequence) -> KvCache {
        KvCache::with(self.policy.clone(), sequence, self.capacity, self.attention.fresh())
    }

    fn with(policy: Policy, sequence: Sequence, capacity: usize, attention: Attention) -> KvCache {
        let pass = [pass(&sequence, 0, capacity)];
        KvCache { policy, sequence, attention, capacity, pass, is_open: false }
    }

    /// A driver of the same instruction set, for passes of many such caches: see [`Batch`](crate::Batch).
    pub fn driver(&self) -> Attention {
        self.attention.fresh()
    }

    /// How keys and values are kept.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Tokens held: the position of the next one.
    pub fn len(&self) -> usize {
        self.sequence.len()
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.sequence.is_empty()
    }

    /// The most tokens it may ever hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Lets it hold this many tokens at most from now on, and never fewer than it holds. A model that rotates by its capacity (LongRoPE,
    /// dynamic scaling) has to read again what is held: its keys are rotated for the old one.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.take_back();
        self.capacity = capacity.max(self.len());
        self.settle();
    }

    /// What is stored.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    /// The same, to be changed between passes.
    pub fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    /// Holds what a saved cache held, in place of what it holds now. On an error nothing has changed.
    ///
    /// # Errors
    /// If it was saved under another signature or from another kind of cache, or the memory does not suffice.
    pub fn restore(&mut self, saved: &Snapshot, signature: &Signature) -> Result<(), SnapshotError> {
        let (layout, store) = (Arc::clone(self.sequence.layout()), self.sequence.store().clone());
        self.sequence = saved.sequence(signature, layout, store)?;
        self.settle();
        Ok(())
    }

    /// Goes back to at most `len` tokens and returns how many are left: fewer than `len` where the cut lies inside a
    /// page that is encoded. The tokens from there on must be read again.
    pub fn truncate(&mut self, len: usize) -> usize {
        let left = self.sequence.truncate(len).unwrap_or_else(|_| self.start_over());
        self.settle();
        left
    }

    /// No pass is under way, and the next one starts after what is held.
    fn settle(&mut self) {
        self.is_open = false;
        self.pass = [pass(&self.sequence, 0, self.capacity)];
    }

    /// There is no room even for the copy of a tail: nothing is held any more.
    fn start_over(&mut self) -> usize {
        self.sequence = Sequence::new(Arc::clone(self.sequence.layout()), self.sequence.store().clone());
        0
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context
    /// to measure the speed of generation on, without reading one.
    ///
    /// # Errors
    /// If `len` is beyond the capacity, nothing is held, or memory is full.
    pub fn fill(&mut self, len: usize) -> Result<(), StateError> {
        let alone = |kind: StateErrorKind| StateError::new(0, kind);
        self.check_capacity(len.saturating_sub(self.len())).map_err(|full| alone(full.into()))?;
        self.sequence.repeat(len).map_err(|error| alone(error.into()))?;
        self.settle();
        Ok(())
    }

    /// Bytes of the stored keys and values.
    pub fn bytes(&self) -> u64 {
        self.sequence.footprint().stored as u64
    }

    /// Bytes and bits of everything it holds.
    pub fn footprint(&self) -> Footprint {
        self.sequence.footprint()
    }

    fn check_capacity(&self, asked: usize) -> Result<(), CacheFull> {
        let (held, capacity) = (self.len(), self.capacity);
        if asked > capacity.saturating_sub(held) {
            return Err(CacheFull { held, asked, capacity });
        }
        Ok(())
    }

    /// Its part of a pass: makes room for `tokens` more.
    pub(crate) fn open(&mut self, tokens: usize) -> Result<SequencePass, StateErrorKind> {
        self.take_back();
        self.check_capacity(tokens)?;
        self.is_open = true;
        self.sequence.reserve(tokens).map_err(CacheError::from)?;
        let begun = pass(&self.sequence, tokens, self.capacity);
        self.pass = [begun];
        Ok(begun)
    }

    /// Refuses to end a pass in which a slot has got another number of tokens.
    pub(crate) fn ready(&self) -> Result<(), StateErrorKind> {
        Ok(self.sequence.check_advance(self.pass[0].tokens)?)
    }

    /// Ends its part of a pass.
    pub(crate) fn close(&mut self) -> Result<(), StateErrorKind> {
        self.sequence.advance(self.pass[0].tokens)?;
        self.is_open = false;
        self.pass = [pass(&self.sequence, 0, self.capacity)];
        Ok(())
    }

    /// Takes back its part of a pass that was not ended.
    pub(crate) fn take_back(&mut self) {
        if self.is_open && self.sequence.abandon().is_err() {
            self.start_over();
        }
        self.is_open = false;
        self.pass = [pass(&self.sequence, 0, self.capacity)];
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(crate) fn state(&mut self, slot: StateSlot) -> Result<&mut RecurrentState, StateErrorKind> {
        let index = slot.index();
        let found = self.sequence.layout().slots().get(index).map_or("nothing", |slot| slot.kind().name());
        let missing = StateErrorKind::Slot { slot: index, found, wanted: "recurrent state" };
        let store = self.sequence.store();
        if !store.is_host() {
            return Err(AttendError::NotHost { store: store.name().to_owned() }.into());
        }
        self.sequence.recurrent_mut(slot).ok_or(missing)
    }
}

/// A sequence's part of a pass.
fn pass(sequence: &Sequence, tokens: usize, capacity: usize) -> SequencePass {
    let rule = sequence.layout().rule();
    let streaming = rule.streaming.map(|window| Streaming { sinks: rule.sinks, window });
    SequencePass { start: sequence.len(), tokens, capacity, streaming }
}

/// What is said of calls outside a pass.
pub(crate) const NOT_BEGUN: StateErrorKind =
    StateErrorKind::Pass { what: "no pass is under way: begin one, then append and attend" };

impl PassState for KvCache {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        let &[tokens] = tokens else {
            let what = "the pass has another number of sequences than one: use a batch for several";
            return Err(StateError::new(0, StateErrorKind::Pass { what }));
        };
        let opened = self.open(tokens);
        opened.map(drop).map_err(|kind| {
            self.take_back();
            StateError::new(0, kind)
        })
    }

    fn sequences(&self) -> &[SequencePass] {
        &self.pass
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        if !self.is_open {
            return Err(StateError::new(0, NOT_BEGUN));
        }
        self.sequence.append(slot, keys, values).map_err(|error| StateError::new(0, error))
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        self.attention.attend(&self.sequence, slot, queries, scoring, out)
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        if sequence != 0 {
            let what = "there is no such sequence in the pass";
            return Err(StateError::new(sequence, StateErrorKind::Pass { what }));
        }
        self.state(slot).map_err(|kind| StateError::new(0, kind))
    }

    fn sequence_mut(&mut self, sequence: usize) -> Option<&mut Sequence> {
        (sequence == 0).then_some(&mut self.sequence)
    }

    fn end(&mut self) -> Result<(), StateError> {
        if !self.is_open {
            return Err(StateError::new(0, NOT_BEGUN));
        }
        self.close().map_err(|kind| {
            self.take_back();
            StateError::new(0, kind)
        })
    }

    fn abandon(&mut self) {
        self.take_back();
    }
}
