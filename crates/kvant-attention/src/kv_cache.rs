//! The cache of one sequence, by the policy a user named: what a forward pass appends to and attends with.

use crate::driver::Attention;
use kvant_cache::snapshot::Signature;
use kvant_cache::{
    Arena, CacheLayout, Footprint, KvSlot, Policy, Queries, RecurrentState, Scoring, Sequence, SequencePass,
    Slots, Snapshot, SnapshotError, StateError, StateErrorKind, StateSlot, Store, pass,
};
use kvant_codec::Tier;
use std::sync::Arc;

/// The cache of one sequence.
///
/// A backend gets its [`sequence`](KvCache::sequence_mut). To an engine of one's own it is the [`PassState`] of a pass over this
/// sequence alone; [`Batch`](crate::Batch) is that of a pass over several.
pub struct KvCache {
    policy: Policy,
    pub(crate) sequence: Sequence,
    tier: Tier,
    /// Made by the first call that attends.
    attention: Option<Attention>,
    /// As the last pass began.
    pass: [SequencePass; 1],
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
        KvCache::with(policy, Sequence::new(Arc::new(layout), store).with_capacity(capacity))
    }

    /// An empty cache of [`CacheLayout::reference`]: keys and values in f32, and the sums of attention in one order on every
    /// instruction set.
    ///
    /// # Errors
    /// If a head has more channels than a page can hold.
    pub fn reference(slots: &Slots, capacity: usize) -> Result<KvCache, KvUnsupported> {
        let policy = Policy::reference();
        let layout = CacheLayout::reference(slots).map_err(|e| KvUnsupported::new(&policy, &e))?;
        KvCache::with(policy, Sequence::new(Arc::new(layout), Arena::new()).with_capacity(capacity))
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
        let sequence = sequence.with_capacity(self.capacity());
        let pass = [sequence.pass()];
        KvCache { policy: self.policy.clone(), sequence, tier: self.tier, attention: None, pass }
    }

    fn with(policy: Policy, sequence: Sequence) -> Result<KvCache, KvUnsupported> {
        let tier = Tier::select().map_err(|e| KvUnsupported::new(&policy, &e))?;
        let pass = [sequence.pass()];
        Ok(KvCache { policy, sequence, tier, attention: None, pass })
    }

    /// A driver of the same instruction set, for passes of many such caches: see [`Batch`](crate::Batch).
    pub fn driver(&self) -> Attention {
        Attention::with_tier(self.tier)
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
        self.sequence.capacity()
    }

    /// Lets it hold another number of tokens at most: [`Sequence::set_capacity`].
    pub fn set_capacity(&mut self, capacity: usize) {
        self.sequence.set_capacity(capacity);
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
        let capacity = self.capacity();
        self.sequence = saved.sequence(signature, layout, store)?.with_capacity(capacity);
        self.settle();
        Ok(())
    }

    /// Goes back to at most `len` tokens and returns how many are left: fewer than `len` where the cut lies inside a
    /// page that is encoded. The tokens from there on must be read again.
    pub fn truncate(&mut self, len: usize) -> usize {
        let left = self.sequence.truncate(len).unwrap_or_else(|_| {
            self.sequence.clear();
            0
        });
        self.settle();
        left
    }

    /// Its part of the pass is what the sequence says.
    fn settle(&mut self) {
        self.pass = [self.sequence.pass()];
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context
    /// to measure the speed of generation on, without reading one.
    ///
    /// # Errors
    /// If `len` is beyond the capacity, nothing is held, or memory is full.
    pub fn fill(&mut self, len: usize) -> Result<(), StateError> {
        let alone = |kind: StateErrorKind| StateError::new(0, kind);
        self.sequence.check_capacity(len.saturating_sub(self.len())).map_err(|full| alone(full.into()))?;
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
}

/// The state of a pass, as an engine of one's own sees it. Rows of activations follow the sequences' tokens, one sequence after another.
///
/// A pass: [`begin`](PassState::begin) once, with the tokens of each sequence; per layer one [`append`](PassState::append) by
/// the owner of a slot, then [`attend`](PassState::attend) by it and by the layers that view it, or
/// [`recurrent`](PassState::recurrent); [`end`](PassState::end) once. If anything fails, nothing counts as held:
/// [`abandon`](PassState::abandon) (also called by `begin` if a pass was left open, and by whoever gets an error) takes back
/// what was appended.
///
/// **Invariant:** what a query gets depends on positions and on what was appended, never on how tokens were cut into
/// chunks, on the other sequences of the pass, or on threads.
pub trait PassState {
    /// Makes room for these many tokens of each sequence, or refuses with the first sequence that cannot take them.
    ///
    /// # Errors
    /// When the context or the memory of a sequence is full, or the pass has another number of sequences.
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError>;

    /// The sequences of the pass that has begun, in the order of rows. Before `begin`: tokens are 0.
    fn sequences(&self) -> &[SequencePass];

    /// Takes keys and values of all sequences: [`kvant_cache::pass::append`].
    ///
    /// # Errors
    /// When sizes do not fit, a number cannot be stored or memory is full.
    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError>;

    /// Attends with the queries of all sequences at once; `out` is `(rows, heads, value dim)`.
    ///
    /// # Errors
    /// When sizes do not fit, or nothing was appended to the slot.
    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError>;

    /// The recurrent state of one sequence, to be read and advanced by the mixer.
    ///
    /// # Errors
    /// When there is no such slot or sequence.
    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError>;

    /// Ends the pass: its tokens now count as held.
    ///
    /// # Errors
    /// When a slot has got another number of tokens than the pass has; nothing counts as held then.
    fn end(&mut self) -> Result<(), StateError>;

    /// Takes back an unfinished pass.
    fn abandon(&mut self);
}

impl PassState for KvCache {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        if tokens.len() != 1 {
            let what = "the pass has another number of sequences than one: use a batch for several";
            return Err(StateError::new(0, StateErrorKind::Pass { what }));
        }
        let begun = pass::begin(&mut [&mut self.sequence], tokens);
        self.settle();
        begun
    }

    fn sequences(&self) -> &[SequencePass] {
        &self.pass
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        pass::append(&mut [&mut self.sequence], slot, keys, values)
    }

    fn attend(
        &mut self,
        slot: KvSlot,
        queries: Queries<'_>,
        scoring: &Scoring<'_>,
        out: &mut [f32],
    ) -> Result<(), StateError> {
        let attention = self.attention.get_or_insert_with(|| Attention::with_tier(self.tier));
        attention.attend(&self.sequence, slot, queries, scoring, out)
    }

    fn recurrent(&mut self, slot: StateSlot, sequence: usize) -> Result<&mut RecurrentState, StateError> {
        if sequence != 0 {
            return Err(no_sequence(sequence));
        }
        self.sequence.host_state(slot).map_err(|kind| StateError::new(0, kind))
    }

    fn end(&mut self) -> Result<(), StateError> {
        let ended = pass::end(&mut [&mut self.sequence]);
        self.settle();
        ended
    }

    fn abandon(&mut self) {
        self.sequence.take_back();
        self.settle();
    }
}

pub(crate) fn no_sequence(sequence: usize) -> StateError {
    let what = "there is no such sequence in the pass";
    StateError::new(sequence, StateErrorKind::Pass { what })
}
