//! The exact cache: keys and values as the model made them, in f32 or rounded to f16.

use crate::blocks::dot_block;
use half::f16;
use half::slice::HalfFloatSliceExt;
use kvant_cache::{
    Arena, CacheFull, KvShape, KvSlot, LatentShape, PassState, Queries, RecurrentState, Scoring,
    SequencePass, Slot, SlotKind, Slots, StateError, StateErrorKind, StateSlot,
};
use kvant_threads::for_each_chunk;
use std::cell::RefCell;
use std::ops::Range;

/// Positions handled at a time. Blocks start at multiples of this, so where a chunk begins does not move them.
const BLOCK: usize = 64;
/// Query tokens that share one reading of a block of positions.
const QUERY_TOKENS: usize = 16;

/// Chunks of recurrent state before the open one that can be gone back to.
const CHUNKS_KEPT: usize = 2;

/// A number type the exact cache can store.
pub trait Stored: Copy + Send + Sync + 'static {
    /// Appends values, rounding to the stored type.
    fn push(store: &mut Vec<Self>, values: &[f32]);
    /// The stored values as f32, by way of `scratch` where they need converting.
    fn read<'a>(store: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32];
}

impl Stored for f32 {
    fn push(store: &mut Vec<Self>, values: &[f32]) {
        store.extend_from_slice(values);
    }

    fn read<'a>(store: &'a [Self], _: &'a mut Vec<f32>) -> &'a [f32] {
        store
    }
}

impl Stored for f16 {
    fn push(store: &mut Vec<Self>, values: &[f32]) {
        let start = store.len();
        store.resize(start + values.len(), f16::ZERO);
        store[start..].convert_from_f32_slice(values);
    }

    fn read<'a>(store: &'a [Self], scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.resize(store.len(), 0.0);
        store.convert_to_f32_slice(scratch);
        scratch
    }
}

/// An exact cache of one sequence.
pub struct ExactCache<T: Stored> {
    slots: Slots,
    layers: Vec<Layer<T>>, // (slots); empty where a slot holds no keys and values of its own
    states: Vec<Option<RecurrentState>>, // (slots)
    pass: SequencePass,
    /// Outputs of a call before they are put in their places; kept so that a step allocates nothing.
    gathered: Vec<f32>, // (query blocks, kv_heads, QUERY_TOKENS, group, value_dim)
}

struct Layer<T> {
    /// Of what scores and sums read.
    shape: KvShape,
    /// Channels of values that keys have at their end: all where values are latents, none elsewhere.
    shared: usize,
    heads: Vec<Head<T>>,
}

struct Head<T> {
    keys: Vec<T>,   // (tokens, key_dim)
    values: Vec<T>, // (tokens, value_dim)
}

impl<T: Stored> ExactCache<T> {
    /// An empty cache for a model with these slots, for at most `capacity` tokens. Memory is taken as tokens come.
    pub fn new(slots: &Slots, capacity: usize) -> Self {
        let layers = slots.iter().map(|(_, slot)| Layer::new(slot.kind)).collect();
        let arena = Arena::new();
        let state = |slot: &Slot| match slot.kind {
            SlotKind::Recurrent(shape) => {
                Some(RecurrentState::detached(slot.layer, shape, CHUNKS_KEPT, arena.clone()))
            }
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => None,
        };
        let states = slots.iter().map(|(_, slot)| state(slot)).collect();
        let pass = SequencePass { start: 0, tokens: 0, capacity, streaming: None };
        Self { slots: slots.clone(), layers, states, pass, gathered: Vec::new() }
    }

    /// Tokens held.
    pub fn len(&self) -> usize {
        self.pass.start
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything from position `len` on, and returns how many tokens are left: all before it or, where recurrent
    /// state of that position is no longer held, none.
    pub fn truncate(&mut self, len: usize) -> usize {
        let mut len = self.pass.start.min(len);
        let mut covered = true;
        for state in self.states.iter_mut().flatten() {
            covered &= state.roll_back(len) == Ok(true);
        }
        if !covered {
            let arena = Arena::new();
            self.states.iter_mut().flatten().for_each(|state| {
                *state = RecurrentState::detached(state.layer(), state.shape(), CHUNKS_KEPT, arena.clone());
            });
            len = 0;
        }
        self.pass.start = len;
        self.pass.tokens = 0;
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.truncate(len * layer.shape.key_dim);
                head.values.truncate(len * layer.shape.value_dim);
            }
        }
        len
    }

    /// Bytes of the stored keys and values.
    pub fn bytes(&self) -> usize {
        let values = |head: &Head<T>| head.keys.len() + head.values.len();
        self.layers.iter().flat_map(|layer| &layer.heads).map(values).sum::<usize>() * size_of::<T>()
    }
}

impl<T: Stored> PassState for ExactCache<T> {
    fn begin(&mut self, tokens: &[usize]) -> Result<(), StateError> {
        self.abandon();
        let &[tokens] = tokens else {
            return Err(StateError::new(
                0,
                StateErrorKind::Pass { what: "an exact cache is one sequence: give it one chunk" },
            ));
        };
        let SequencePass { start: held, capacity, .. } = self.pass;
        if tokens > capacity.saturating_sub(held) {
            return Err(StateError::new(0, CacheFull { held, asked: tokens, capacity }));
        }
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.reserve(tokens * layer.shape.key_dim);
                head.values.reserve(tokens * layer.shape.value_dim);
            }
        }
        self.pass.tokens = tokens;
        Ok(())
    }

    fn sequences(&self) -> &[SequencePass] {
        std::slice::from_ref(&self.pass)
    }

    fn append(&mut self, slot: KvSlot, keys: &[f32], values: &[f32]) -> Result<(), StateError> {
        let Layer { shape, shared, heads } = self.layer_mut(slot)?;
        let (key_dim, kv_heads) = (shape.key_dim - *shared, shape.kv_heads);
        for (head, store) in heads.iter_mut().enumerate() {
            let values = || values.chunks_exact(shape.value_dim).skip(head).step_by(kv_heads);
            values().for_each(|value| T::push(&mut store.values, value));
            let keys = keys.chunks_exact(key_dim).skip(head).step_by(kv_heads);
            for (key, value) in keys.zip(values()) {
                T::push(&mut store.keys, key);
                T::push(&mut store.keys, &value[..*shared]);
            }
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
        let queries = queries.own;
        self.layer_mut(slot)?;
        let SequencePass { start, tokens, .. } = self.pass;
        let layer = &self.layers[self.slots.owner(slot).index()];
        let shape = layer.shape;
        let heads = queries.len() / shape.key_dim / tokens; // query heads
        let group = heads / shape.kv_heads;
        let width = group * shape.value_dim;
        // One task per block of query tokens and kv head. A task's outputs do not lie side by side in `out`,
        // so tasks write to a buffer of their own order.
        let task_width = QUERY_TOKENS * width;
        let tasks = tokens.div_ceil(QUERY_TOKENS) * shape.kv_heads;
        self.gathered.resize(tasks * task_width, 0.0);
        let place = |task: usize| (task / shape.kv_heads * QUERY_TOKENS, task % shape.kv_heads);
        for_each_chunk(&mut self.gathered, task_width, |task, result| {
            let (token, head) = place(task);
            let count = QUERY_TOKENS.min(tokens - token);
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.queries.clear();
                for t in token..token + count {
                    let start = (t * heads + head * group) * shape.key_dim;
                    scratch.queries.extend_from_slice(&queries[start..][..group * shape.key_dim]);
                }
                let result = &mut result[..count * width];
                layer.attend_head(head, group, start + token, scoring, scratch, result);
            });
        });
        for (task, result) in self.gathered.chunks_exact(task_width).enumerate() {
            let (token, head) = place(task);
            for (t, values) in result.chunks_exact(width).take(tokens - token).enumerate() {
                out[(token + t) * heads * shape.value_dim + head * width..][..width].copy_from_slice(values);
            }
        }
        Ok(())
    }

    fn recurrent(&mut self, slot: StateSlot, _: usize) -> Result<&mut RecurrentState, StateError> {
        let error = self.mismatch(slot.index(), "recurrent state");
        self.states.get_mut(slot.index()).and_then(Option::as_mut).ok_or(error)
    }

    fn end(&mut self) -> Result<(), StateError> {
        self.states.iter_mut().flatten().for_each(RecurrentState::end_pass);
        self.pass.start += self.pass.tokens;
        self.pass.tokens = 0;
        Ok(())
    }

    fn abandon(&mut self) {
        self.truncate(self.pass.start);
    }
}

impl<T: Stored> ExactCache<T> {
    /// What a slot holds, or that of another layer which it views.
    fn layer_mut(&mut self, slot: KvSlot) -> Result<&mut Layer<T>, StateError> {
        let owner = self.slots.owner(slot).index();
        let error = self.mismatch(owner, "keys and values");
        self.layers.get_mut(owner).filter(|layer| !layer.heads.is_empty()).ok_or(error)
    }

    fn mismatch(&self, slot: usize, wanted: &'static str) -> StateError {
        let found = self.slots.get(slot).map_or("nothing", |slot| slot.kind.name());
        StateError::new(0, StateErrorKind::Slot { slot, found, wanted })
    }
}

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

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Buffers of one task, kept by its thread.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>, // (tokens · group, key_dim)
    keys: Vec<f32>,    // (positions of a block, key_dim)
    values: Vec<f32>,  // (positions of a block, value_dim)
    scores: Vec<f32>,  // (tokens · group, positions of a block)
    running: Vec<Running>,
}

/// The running softmax of one query: the values seen so far, weighted relative to the largest score so far.
#[derive(Clone, Copy)]
struct Running {
    largest: f32,
    mass: f32,
}

impl<T: Stored> Layer<T> {
    fn new(kind: SlotKind) -> Self {
        let (shape, shared) = match kind {
            SlotKind::KeysValues(shape) => (shape, 0),
            SlotKind::Latent(LatentShape { kv_heads, latent_dim, rope_dim, window }) => {
                let key_dim = rope_dim + latent_dim;
                (KvShape { kv_heads, key_dim, value_dim: latent_dim, window }, latent_dim)
            }
            SlotKind::View(_) | SlotKind::Recurrent(_) => {
                (KvShape { kv_heads: 0, key_dim: 0, value_dim: 0, window: None }, 0)
            }
        };
        let heads = (0..shape.kv_heads).map(|_| Head { keys: Vec::new(), values: Vec::new() }).collect();
        Self { shape, shared, heads }
    }

    /// Attention of `scratch.queries`, whose first token stands at `position`, to one kv head; `out` is
    /// `(tokens · group, value_dim)`.
    fn attend_head(
        &self,
        head: usize,
        group: usize,
        position: usize,
        scoring: &Scoring<'_>,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let KvShape { key_dim, value_dim, window, .. } = self.shape;
        let Scratch { queries, keys, values, scores, running } = scratch;
        let count = queries.len() / key_dim;
        let first_seen =
            |query: usize| window.map_or(0, |w| (position + query / group + 1).saturating_sub(w));
        let end = position + count / group;
        out.fill(0.0);
        running.clear();
        running.resize(count, Running { largest: f32::NEG_INFINITY, mass: 0.0 });
        scores.resize(BLOCK * count, 0.0);
        for start in (first_seen(0) / BLOCK * BLOCK..end).step_by(BLOCK) {
            let size = BLOCK.min(end - start);
            let stored = &self.heads[head];
            let keys = T::read(&stored.keys[start * key_dim..][..size * key_dim], keys);
            let values = T::read(&stored.values[start * value_dim..][..size * value_dim], values);
            let scores = &mut scores[..count * size];
            dot_block(queries, keys, key_dim, scores);
            for (query, scores) in scores.chunks_exact_mut(size).enumerate() {
                let seen = first_seen(query).saturating_sub(start)
                    ..size.min((position + query / group + 1).saturating_sub(start));
                if seen.start < seen.end {
                    let values = &values[seen.start * value_dim..seen.end * value_dim];
                    let out = &mut out[query * value_dim..][..value_dim];
                    running[query].take(&mut scores[seen], values, scoring, out);
                }
            }
        }
        for (query, (out, running)) in out.chunks_exact_mut(value_dim).zip(running).enumerate() {
            let mut mass = running.mass;
            if let Some(logits) = scoring.sink_logits {
                let logit = logits[head * group + query % group];
                // The largest of all, so that no power overflows.
                let shrink = (running.largest - running.largest.max(logit)).exp();
                out.iter_mut().for_each(|x| *x *= shrink);
                mass = mass * shrink + (logit - running.largest.max(logit)).exp();
            }
            out.iter_mut().for_each(|x| *x /= mass);
        }
    }
}

impl Running {
    /// Takes in the positions of a block that the query sees: raw scores and values `(positions, value_dim)`.
    fn take(&mut self, scores: &mut [f32], values: &[f32], scoring: &Scoring<'_>, out: &mut [f32]) {
        let mut largest = self.largest;
        for score in scores.iter_mut() {
            *score *= scoring.scale;
            if let Some(cap) = scoring.soft_cap {
                *score = cap * (*score / cap).tanh();
            }
            largest = largest.max(*score);
        }
        if largest > self.largest {
            let shrink = (self.largest - largest).exp();
            self.mass *= shrink;
            out.iter_mut().for_each(|x| *x *= shrink);
            self.largest = largest;
        }
        for (score, value) in scores.iter().zip(values.chunks_exact(out.len())) {
            let weight = (score - largest).exp();
            self.mass += weight;
            out.iter_mut().zip(value).for_each(|(x, v)| *x += weight * v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Attention by its definition, in f64, of the query at `position`.
    fn naive(
        q: &[f32],
        keys: &[f32],
        values: &[f32],
        shape: &KvShape,
        position: usize,
        s: &Scoring<'_>,
    ) -> Vec<f64> {
        let from = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
        let weights: Vec<f64> = (from..=position)
            .map(|t| {
                let key = &keys[t * shape.key_dim..][..shape.key_dim];
                let dot: f64 = q.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                let score = dot * f64::from(s.scale);
                s.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh()).exp()
            })
            .collect();
        let mass: f64 = weights.iter().sum();
        (0..shape.value_dim)
            .map(|c| {
                let value = |i: usize| f64::from(values[(from + i) * shape.value_dim + c]);
                weights.iter().enumerate().map(|(i, w)| w * value(i)).sum::<f64>() / mass
            })
            .collect()
    }

    fn noise(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 2.0).collect()
    }

    /// Feeds `tokens` in the given chunks and returns the outputs.
    fn run<T: Stored>(shape: KvShape, group: usize, chunks: &[usize], scoring: &Scoring<'_>) -> Vec<f32> {
        let tokens: usize = chunks.iter().sum();
        let (kw, vw, qw) =
            (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim, group * shape.kv_heads);
        let (keys, values, queries) =
            (noise(tokens * kw, 1), noise(tokens * vw, 2), noise(tokens * qw * shape.key_dim, 3));
        let mut slots = Slots::new();
        let slot = slots.keys_values(0, shape);
        let mut cache = ExactCache::<T>::new(&slots, tokens);
        let mut out = vec![0.0; tokens * qw * shape.value_dim];
        let mut at = 0;
        for &n in chunks {
            cache.begin(&[n]).unwrap();
            cache.append(slot, &keys[at * kw..][..n * kw], &values[at * vw..][..n * vw]).unwrap();
            let (q, o) = (qw * shape.key_dim, qw * shape.value_dim);
            let queries = queries[at * q..][..n * q].into();
            cache.attend(slot, queries, scoring, &mut out[at * o..][..n * o]).unwrap();
            cache.end().unwrap();
            at += n;
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn attention_matches_its_definition_and_chunks_do_not_change_a_bit(
            heads in 1usize..4, group in 1usize..4, key_dim in 1usize..40, value_dim in 1usize..40,
            window in prop::option::of(1usize..90), cap in prop::option::of(0.5f32..4.0),
            chunks in prop::collection::vec(1usize..50, 1..5),
        ) {
            let shape = KvShape { kv_heads: heads, key_dim, value_dim, window };
            let scoring = Scoring { soft_cap: cap, ..Scoring::new(0.2) };
            let tokens: usize = chunks.iter().sum();
            let whole = run::<f32>(shape, group, &[tokens], &scoring);
            let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&whole), bits(&run::<f32>(shape, group, &chunks, &scoring)));
            prop_assert_eq!(bits(&run::<f16>(shape, group, &[tokens], &scoring)),
                            bits(&run::<f16>(shape, group, &chunks, &scoring)));

            let (keys, values) = (noise(tokens * heads * key_dim, 1), noise(tokens * heads * value_dim, 2));
            let queries = noise(tokens * heads * group * key_dim, 3);
            let of = |all: &[f32], dim: usize, head: usize| -> Vec<f32> {
                all.chunks_exact(heads * dim).flat_map(|t| t[head * dim..][..dim].to_vec()).collect()
            };
            for position in [0, tokens / 2, tokens - 1] {
                for q in 0..heads * group {
                    let index = position * heads * group + q;
                    let expected = naive(&queries[index * key_dim..][..key_dim], &of(&keys, key_dim, q / group),
                        &of(&values, value_dim, q / group), &shape, position, &scoring);
                    for (a, b) in whole[index * value_dim..][..value_dim].iter().zip(expected) {
                        prop_assert!((f64::from(*a) - b).abs() < 2e-5, "{a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_full_cache_refuses_and_a_truncated_one_takes_more() {
        let shape = KvShape { kv_heads: 1, key_dim: 2, value_dim: 2, window: None };
        let mut slots = Slots::new();
        let slot = slots.keys_values(0, shape);
        let mut cache = ExactCache::<f16>::new(&slots, 3);
        cache.begin(&[3]).unwrap();
        cache.append(slot, &[1.0; 6], &[1.0; 6]).unwrap();
        cache.end().unwrap();
        assert_eq!(cache.bytes(), 24);
        let full = CacheFull { held: 3, asked: 1, capacity: 3 };
        assert_eq!(cache.begin(&[1]), Err(StateError::new(0, full)));
        cache.truncate(1);
        assert_eq!((cache.len(), cache.bytes()), (1, 8));
        cache.begin(&[2]).unwrap();
        cache.append(slot, &[1.0; 4], &[1.0; 4]).unwrap();
        // A pass that is not ended leaves nothing behind.
        cache.abandon();
        assert_eq!((cache.len(), cache.bytes()), (1, 8));
    }

    #[test]
    fn a_sink_logit_takes_its_share_and_adds_no_value() {
        let mut slots = Slots::new();
        let slot = slots.keys_values(0, KvShape { kv_heads: 1, key_dim: 1, value_dim: 1, window: None });
        let view = slots.view(1, slot);
        let mut cache = ExactCache::<f32>::new(&slots, 1);
        cache.begin(&[1]).unwrap();
        cache.append(slot, &[0.5], &[8.0]).unwrap();
        let scoring = Scoring { sink_logits: Some(&[1.0, 2.0]), ..Scoring::new(1.0) };
        let mut out = [0.0; 2];
        cache.attend(view, [2.0, 2.0][..].into(), &scoring, &mut out).unwrap();
        // Both scores are 1: e / (e + e) and e / (e + e²) of the value.
        let expected = [4.0, 8.0 / (1.0 + 1f32.exp())];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
    }
}
