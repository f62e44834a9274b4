//! The cache a session keeps, by the spec a user named.

use crate::session::PREFILL_CHUNK;
use kvant_attention::{AttendError, Attention};
use kvant_cache::snapshot::Signature;
use kvant_cache::{
    Arena, CacheError, CacheLayout, EntryShape, Footprint, Policy, Sequence, Snapshot, SnapshotError, SparseV,
};
use kvant_model::cache::{Cache, CacheFull, LayerState, Queries, Scoring, Streaming};
use std::sync::Arc;

/// The cache of one sequence: what a forward pass appends to and attends with.
pub struct KvCache {
    policy: Policy,
    sequence: Sequence,
    attention: Attention,
    capacity: usize,
    /// What went wrong first. A forward pass cannot be told, so its output is made unusable and the reason kept.
    failure: Option<KvFailure>,
}

/// A spec that no cache of this model can keep.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("keys and values cannot be kept as {policy}: {reason}")]
pub struct KvUnsupported {
    policy: String,
    reason: String,
}

/// A pass that the cache could not take part in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum KvFailure {
    /// Keys or values that cannot be stored.
    #[error(transparent)]
    Append(#[from] CacheError),
    /// Queries that cannot attend.
    #[error(transparent)]
    Attend(#[from] AttendError),
}

impl KvUnsupported {
    fn new(policy: &Policy, reason: &dyn std::error::Error) -> Self {
        Self { policy: policy.to_string(), reason: reason.to_string() }
    }
}

impl KvCache {
    /// An empty cache for at most `capacity` tokens of a model whose layers keep `states`. Memory is taken as tokens
    /// come.
    ///
    /// # Errors
    /// If no cache keeps keys and values that way: another codec is never put in its place.
    pub fn new(kv: impl Into<Policy>, states: &[LayerState], capacity: usize) -> Result<Self, KvUnsupported> {
        Self::in_arena(kv, states, capacity, Arena::new())
    }

    /// The same with pages from an arena that may have a cap, and may be shared.
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn in_arena(
        kv: impl Into<Policy>,
        states: &[LayerState],
        capacity: usize,
        arena: Arena,
    ) -> Result<Self, KvUnsupported> {
        let policy = kv.into();
        let layout = layout(&policy, states)?;
        let attention = Attention::new().map_err(|e| KvUnsupported::new(&policy, &e))?;
        let sequence = Sequence::new(Arc::new(layout), arena);
        Ok(Self { policy, sequence, attention, capacity, failure: None })
    }

    /// Another cache of the same kind over what a sequence of its layout holds.
    ///
    /// # Errors
    /// When a forced instruction set cannot run here.
    pub fn over(&self, sequence: Sequence) -> Result<Self, KvUnsupported> {
        let attention = Attention::new().map_err(|e| KvUnsupported::new(&self.policy, &e))?;
        let (policy, capacity) = (self.policy.clone(), self.capacity);
        Ok(Self { policy, sequence, attention, capacity, failure: None })
    }

    /// How keys and values are kept.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The cache as a forward pass sees it.
    pub fn cache(&self) -> &dyn Cache {
        self
    }

    /// The same, to be filled.
    pub fn cache_mut(&mut self) -> &mut dyn Cache {
        self
    }

    /// What is stored.
    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub(crate) fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    /// Holds what a saved cache held, in place of what it holds now. On an error nothing has changed.
    ///
    /// # Errors
    /// If it was saved under another signature or from another kind of cache, or the memory does not suffice.
    pub fn restore(&mut self, saved: &Snapshot, signature: &Signature) -> Result<(), SnapshotError> {
        let (layout, arena) = (Arc::clone(self.sequence.layout()), self.sequence.arena().clone());
        self.sequence = saved.sequence(signature, layout, arena)?;
        self.failure = None;
        Ok(())
    }

    /// Goes back to at most `len` tokens and returns how many are left: fewer than `len` where the cut lies inside a
    /// page that is encoded. The tokens from there on must be read again.
    pub fn truncate(&mut self, len: usize) -> usize {
        self.failure = None;
        match self.sequence.truncate(len) {
            Ok(left) => left,
            // No room even for the copy of a tail: start over.
            Err(_) => {
                self.sequence =
                    Sequence::new(Arc::clone(self.sequence.layout()), self.sequence.arena().clone());
                0
            }
        }
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context
    /// to measure the speed of generation on, without reading one.
    ///
    /// # Errors
    /// If `len` is beyond the capacity.
    ///
    /// # Panics
    /// If nothing is held and `len` is not zero.
    pub fn fill(&mut self, len: usize) -> Result<(), CacheFull> {
        self.check_capacity(len.saturating_sub(self.sequence.len()))?;
        assert!(!self.sequence.is_empty() || len == 0, "there is nothing to repeat");
        if let Err(error) = self.sequence.repeat(len) {
            self.failure.get_or_insert(error.into());
        }
        Ok(())
    }

    /// What the last passes failed of, if they did: their output is of no use.
    ///
    /// # Errors
    /// The first reason.
    pub fn check(&self) -> Result<(), KvFailure> {
        self.failure.clone().map_or(Ok(()), Err)
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
        let (held, capacity) = (self.sequence.len(), self.capacity);
        if asked > capacity.saturating_sub(held) {
            return Err(CacheFull { held, asked, capacity });
        }
        Ok(())
    }

    fn note(&mut self, result: Result<(), impl Into<KvFailure>>) {
        if let Err(error) = result {
            self.failure.get_or_insert(error.into());
        }
    }
}

impl Cache for KvCache {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn streaming(&self) -> Option<Streaming> {
        let rule = self.sequence.layout().rule();
        rule.streaming.map(|window| Streaming { sinks: rule.sinks, window })
    }

    fn len(&self) -> usize {
        self.sequence.len()
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull> {
        self.check_capacity(tokens)?;
        let (held, capacity) = (self.sequence.len(), self.capacity);
        self.sequence.reserve(tokens).map_err(|full| {
            // The pass is refused either way; this is the reason to tell.
            self.failure.get_or_insert(CacheError::from(full).into());
            CacheFull { held, asked: tokens, capacity }
        })
    }

    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) {
        if self.failure.is_none() {
            let result = self.sequence.append(entry, keys, values);
            self.note(result);
        }
    }

    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]) {
        if self.failure.is_none() {
            let scoring = kvant_attention::Scoring {
                soft_cap: scoring.soft_cap,
                sink_queries: queries.at_sinks,
                sparse_v: self.policy.sparse_v.map(SparseV::get),
                ..kvant_attention::Scoring::new(scoring.scale)
            };
            let result = self.attention.attend(&self.sequence, entry, queries.own, &scoring, out);
            self.note(result);
        }
        if self.failure.is_some() {
            // Nobody may take this for an answer.
            out.fill(f32::NAN);
        }
    }

    fn advance(&mut self, tokens: usize) {
        self.sequence.advance(tokens);
    }
}

fn shapes(states: &[LayerState]) -> Vec<EntryShape> {
    states
        .iter()
        .filter_map(|state| match state {
            LayerState::KeysValues(shape) => Some(EntryShape {
                kv_heads: shape.heads,
                key_dim: shape.key_dim,
                value_dim: shape.value_dim,
                window: shape.window,
            }),
            _ => None,
        })
        .collect()
}

/// Bytes that a policy takes for each token of a long context, scales and all, over everything a model keeps.
///
/// # Errors
/// If a codec does not exist for the width of a head, or needs a plan.
pub fn bytes_per_token(kv: impl Into<Policy>, states: &[LayerState]) -> Result<f64, KvUnsupported> {
    Ok(layout(&kv.into(), states)?.bytes_per_token())
}

/// Bytes that 16 bits a number would take for each token: what compression is measured against.
pub fn f16_bytes_per_token(states: &[LayerState]) -> u64 {
    let numbers = |shape: EntryShape| shape.kv_heads * (shape.key_dim + shape.value_dim);
    2 * shapes(states).into_iter().map(numbers).sum::<usize>() as u64
}

/// The most bytes that a sequence takes while it grows to `context` tokens: its pages, and the exact rows of the pass that
/// is being made.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn memory(kv: impl Into<Policy>, states: &[LayerState], context: usize) -> Result<usize, KvUnsupported> {
    Ok(layout(&kv.into(), states)?.arena_bytes(context, PREFILL_CHUNK))
}

/// Bytes of memory that a sequence of `context` tokens comes to hold: [`memory`], and the handles of its pages.
///
/// # Errors
/// As [`bytes_per_token`].
pub fn resident(
    kv: impl Into<Policy>,
    states: &[LayerState],
    context: usize,
) -> Result<usize, KvUnsupported> {
    Ok(layout(&kv.into(), states)?.resident_bytes(context, PREFILL_CHUNK))
}

/// How one entry of a cache is kept and read.
#[derive(Debug, Clone, PartialEq)]
pub struct EntryKernels {
    /// Bits per number of the encoded keys and values.
    pub bits: [f64; 2],
    /// The instructions that make scores of encoded keys and sums of encoded values; `decode` where pages are decoded.
    pub kernels: [&'static str; 2],
}

/// What runs for every entry of a model's cache; heads whose codecs differ are told by the first.
///
/// # Errors
/// As [`KvCache::new`].
pub fn kernels(kv: impl Into<Policy>, states: &[LayerState]) -> Result<Vec<EntryKernels>, KvUnsupported> {
    let layout = layout(&kv.into(), states)?;
    let of_entry = |entry: &kvant_cache::EntryLayout| {
        let head = entry.heads().first()?;
        let (key, value) = (head.key.codec(), head.value.codec());
        Some(EntryKernels {
            bits: [key.bits_per_value(), value.bits_per_value()],
            kernels: [key.kernels().scores, value.kernels().accumulate],
        })
    };
    Ok(layout.entries().iter().filter_map(of_entry).collect())
}

fn layout(policy: &Policy, states: &[LayerState]) -> Result<CacheLayout, KvUnsupported> {
    CacheLayout::new(policy, &shapes(states)).map_err(|e| KvUnsupported::new(policy, &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::cache::{ExactCache, KvShape};

    fn states() -> Vec<LayerState> {
        vec![LayerState::KeysValues(KvShape { heads: 3, key_dim: 64, value_dim: 32, window: None }); 2]
    }

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    fn wave(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 2.0).collect()
    }

    #[test]
    fn bytes_per_token_add_up_over_layers_heads_and_sides() {
        assert_eq!(bytes_per_token(policy("f16"), &states()).unwrap(), 2.0 * 3.0 * (64.0 + 32.0) * 2.0);
        let both = bytes_per_token(policy("k=f32,v=f16"), &states()).unwrap();
        assert_eq!(both, 2.0 * 3.0 * (64.0 * 4.0 + 32.0 * 2.0));
        let packed = bytes_per_token(policy("int4"), &states()).unwrap();
        assert!(packed < 0.3 * 1152.0 && packed > 0.25 * 1152.0, "{packed}");
    }

    #[test]
    fn a_spec_that_needs_a_plan_is_refused_by_name() {
        let error = KvCache::new(policy("klt"), &states(), 8).err().unwrap().to_string();
        assert!(error.contains("klt") && error.contains("plan"), "{error}");
        let layers = KvCache::new(policy("int4;layers 2:k=f16"), &states(), 8).err().unwrap().to_string();
        assert!(layers.contains("layer 2"), "{layers}");
    }

    #[test]
    fn numbers_that_cannot_be_kept_spoil_the_output_and_say_why() {
        let mut kv = KvCache::new(policy("int4"), &states(), 100).unwrap();
        let (keys, mut values, queries) = (wave(5 * 192, 1), wave(5 * 96, 2), wave(5 * 384, 3));
        values[40] = f32::INFINITY;
        kv.reserve(5).unwrap();
        kv.append(0, &keys, &values);
        let mut out = vec![0.0; 5 * 6 * 32];
        kv.attend(0, queries[..].into(), &Scoring { scale: 1.0, soft_cap: None }, &mut out);
        assert!(out.iter().all(|x| x.is_nan()));
        let message = kv.check().unwrap_err().to_string();
        assert!(message.contains("values of kv head 1, entry 0, at position 0: inf"), "{message}");
        assert_eq!(kv.truncate(0), 0);
        assert_eq!(kv.check(), Ok(()));
    }

    #[test]
    fn f32_attends_as_the_exact_cache_does_and_capacity_is_kept() {
        let mut kv = KvCache::new(policy("f32"), &states(), 150).unwrap();
        let mut exact = ExactCache::<f32>::new(&states(), 150);
        let scoring = Scoring { scale: 0.1, soft_cap: Some(3.0) };
        for chunk in [100, 1, 40] {
            let (keys, values) = (wave(chunk * 192, chunk), wave(chunk * 96, chunk + 1));
            let queries = wave(chunk * 2 * 192, chunk + 2);
            let run = |cache: &mut dyn Cache| {
                let mut out = vec![0.0; chunk * 6 * 32];
                cache.reserve(chunk).unwrap();
                for entry in 0..2 {
                    cache.append(entry, &keys, &values);
                    cache.attend(entry, queries[..].into(), &scoring, &mut out);
                }
                cache.advance(chunk);
                out
            };
            let (ours, theirs) = (run(&mut kv), run(&mut exact));
            assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 2e-5));
        }
        assert_eq!((kv.len(), kv.bytes()), (141, 141 * 2 * 3 * 96 * 4));
        assert_eq!(kv.reserve(10), Err(CacheFull { held: 141, asked: 10, capacity: 150 }));
        kv.fill(150).unwrap();
        assert_eq!(kv.len(), 150);
        // 141 lies in the third page, whose rows are exact; 100 in the second, which starts at 68.
        assert_eq!((kv.truncate(141), kv.truncate(100)), (141, 68));
    }
}
