//! The exact cache: keys and values as the model made them, in f32 or rounded to f16.

use super::{Cache, CacheFull, KvShape, LayerState, Queries, Scoring};
use crate::blocks::dot_block;
use half::f16;
use half::slice::HalfFloatSliceExt;
use kvant_threads::for_each_chunk;
use std::cell::RefCell;

/// Positions handled at a time. Blocks start at multiples of this, so where a chunk begins does not move them.
const BLOCK: usize = 64;
/// Query tokens that share one reading of a block of positions.
const QUERY_TOKENS: usize = 16;

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
    layers: Vec<Layer<T>>,
    len: usize,
    capacity: usize,
    /// Outputs of a call before they are put in their places; kept so that a step allocates nothing.
    gathered: Vec<f32>, // (query blocks, kv_heads, QUERY_TOKENS, group, value_dim)
}

struct Layer<T> {
    shape: KvShape,
    heads: Vec<Head<T>>,
}

struct Head<T> {
    keys: Vec<T>,   // (tokens, key_dim)
    values: Vec<T>, // (tokens, value_dim)
}

impl<T: Stored> ExactCache<T> {
    /// An empty cache for a model whose layers keep `states`, for at most `capacity` tokens. Memory is taken
    /// as tokens come.
    pub fn new(states: &[LayerState], capacity: usize) -> Self {
        let layers = states.iter().map(|&LayerState::KeysValues(shape)| Layer::new(shape)).collect();
        Self { layers, len: 0, capacity, gathered: Vec::new() }
    }

    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.truncate(len * layer.shape.key_dim);
                head.values.truncate(len * layer.shape.value_dim);
            }
        }
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens: a long context to measure speed on.
    ///
    /// # Errors
    /// If `len` is beyond the capacity.
    ///
    /// # Panics
    /// If nothing is held and `len` is not zero.
    pub fn fill(&mut self, len: usize) -> Result<(), CacheFull> {
        assert!(self.len > 0 || len == 0, "there is nothing to repeat");
        self.reserve(len.saturating_sub(self.len))?;
        let period = self.len;
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                for at in period..len {
                    let token = |dim: usize| at % period * dim..(at % period + 1) * dim;
                    head.keys.extend_from_within(token(layer.shape.key_dim));
                    head.values.extend_from_within(token(layer.shape.value_dim));
                }
            }
        }
        self.len = self.len.max(len);
        Ok(())
    }

    /// Bytes of the stored keys and values.
    pub fn bytes(&self) -> usize {
        let values = |head: &Head<T>| head.keys.len() + head.values.len();
        self.layers.iter().flat_map(|layer| &layer.heads).map(values).sum::<usize>() * size_of::<T>()
    }
}

impl<T: Stored> Cache for ExactCache<T> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn len(&self) -> usize {
        self.len
    }

    fn reserve(&mut self, tokens: usize) -> Result<(), CacheFull> {
        if tokens > self.capacity.saturating_sub(self.len) {
            return Err(CacheFull { held: self.len, asked: tokens, capacity: self.capacity });
        }
        for layer in &mut self.layers {
            for head in &mut layer.heads {
                head.keys.reserve(tokens * layer.shape.key_dim);
                head.values.reserve(tokens * layer.shape.value_dim);
            }
        }
        Ok(())
    }

    fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) {
        let Layer { shape, heads } = &mut self.layers[entry];
        for token in keys.chunks_exact(shape.heads * shape.key_dim) {
            let per_head = token.chunks_exact(shape.key_dim);
            heads.iter_mut().zip(per_head).for_each(|(head, key)| T::push(&mut head.keys, key));
        }
        for token in values.chunks_exact(shape.heads * shape.value_dim) {
            let per_head = token.chunks_exact(shape.value_dim);
            heads.iter_mut().zip(per_head).for_each(|(head, value)| T::push(&mut head.values, value));
        }
    }

    fn attend(&mut self, entry: usize, queries: Queries<'_>, scoring: &Scoring, out: &mut [f32]) {
        let queries = queries.own;
        let layer = &self.layers[entry];
        let shape = layer.shape;
        let tokens = layer.heads[0].keys.len() / shape.key_dim - self.len;
        let heads = queries.len() / shape.key_dim / tokens; // query heads
        let group = heads / shape.heads;
        let width = group * shape.value_dim;
        // One task per block of query tokens and kv head. A task's outputs do not lie side by side in `out`,
        // so tasks write to a buffer of their own order.
        let task_width = QUERY_TOKENS * width;
        let tasks = tokens.div_ceil(QUERY_TOKENS) * shape.heads;
        self.gathered.resize(tasks * task_width, 0.0);
        let place = |task: usize| (task / shape.heads * QUERY_TOKENS, task % shape.heads);
        for_each_chunk(&mut self.gathered, task_width, |task, result| {
            let (token, head) = place(task);
            let count = QUERY_TOKENS.min(tokens - token);
            SCRATCH.with_borrow_mut(|scratch| {
                scratch.queries.clear();
                for t in token..token + count {
                    let start = (t * heads + head * group) * shape.key_dim;
                    scratch.queries.extend_from_slice(&queries[start..][..group * shape.key_dim]);
                }
                let position = self.len + token;
                layer.attend_head(head, group, position, scoring, scratch, &mut result[..count * width]);
            });
        });
        for (task, result) in self.gathered.chunks_exact(task_width).enumerate() {
            let (token, head) = place(task);
            for (t, values) in result.chunks_exact(width).take(tokens - token).enumerate() {
                out[(token + t) * heads * shape.value_dim + head * width..][..width].copy_from_slice(values);
            }
        }
    }

    fn advance(&mut self, tokens: usize) {
        self.len += tokens;
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
    fn new(shape: KvShape) -> Self {
        let heads = (0..shape.heads).map(|_| Head { keys: Vec::new(), values: Vec::new() }).collect();
        Self { shape, heads }
    }

    /// Attention of `scratch.queries`, whose first token stands at `position`, to one kv head; `out` is
    /// `(tokens · group, value_dim)`.
    fn attend_head(
        &self,
        head: usize,
        group: usize,
        position: usize,
        scoring: &Scoring,
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
        for (out, running) in out.chunks_exact_mut(value_dim).zip(running) {
            out.iter_mut().for_each(|x| *x /= running.mass);
        }
    }
}

impl Running {
    /// Takes in the positions of a block that the query sees: raw scores and values `(positions, value_dim)`.
    fn take(&mut self, scores: &mut [f32], values: &[f32], scoring: &Scoring, out: &mut [f32]) {
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
        s: &Scoring,
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
    fn run<T: Stored>(shape: KvShape, group: usize, chunks: &[usize], scoring: &Scoring) -> Vec<f32> {
        let tokens: usize = chunks.iter().sum();
        let (kw, vw, qw) = (shape.heads * shape.key_dim, shape.heads * shape.value_dim, group * shape.heads);
        let (keys, values, queries) =
            (noise(tokens * kw, 1), noise(tokens * vw, 2), noise(tokens * qw * shape.key_dim, 3));
        let mut cache = ExactCache::<T>::new(&[LayerState::KeysValues(shape)], tokens);
        let mut out = vec![0.0; tokens * qw * shape.value_dim];
        let mut at = 0;
        for &n in chunks {
            cache.reserve(n).unwrap();
            cache.append(0, &keys[at * kw..][..n * kw], &values[at * vw..][..n * vw]);
            let (q, o) = (qw * shape.key_dim, qw * shape.value_dim);
            cache.attend(0, queries[at * q..][..n * q].into(), scoring, &mut out[at * o..][..n * o]);
            cache.advance(n);
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
            let shape = KvShape { heads, key_dim, value_dim, window };
            let scoring = Scoring { scale: 0.2, soft_cap: cap };
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
        let shape = KvShape { heads: 1, key_dim: 2, value_dim: 2, window: None };
        let mut cache = ExactCache::<f16>::new(&[LayerState::KeysValues(shape)], 3);
        cache.reserve(3).unwrap();
        cache.append(0, &[1.0; 6], &[1.0; 6]);
        cache.advance(3);
        assert_eq!(cache.bytes(), 24);
        assert_eq!(cache.reserve(1), Err(CacheFull { held: 3, asked: 1, capacity: 3 }));
        cache.truncate(1);
        assert_eq!((cache.len(), cache.bytes()), (1, 8));
        cache.reserve(2).unwrap();
    }

    #[test]
    fn a_filled_cache_repeats_what_it_held() {
        let shape = KvShape { heads: 1, key_dim: 2, value_dim: 1, window: None };
        let mut cache = ExactCache::<f32>::new(&[LayerState::KeysValues(shape)], 5);
        cache.fill(0).unwrap();
        cache.reserve(2).unwrap();
        cache.append(0, &[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0]);
        cache.advance(2);
        assert_eq!(cache.fill(6), Err(CacheFull { held: 2, asked: 4, capacity: 5 }));
        cache.fill(5).unwrap();
        let head = &cache.layers[0].heads[0];
        assert_eq!(head.keys, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        assert_eq!((head.values.as_slice(), cache.len()), ([5.0, 6.0, 5.0, 6.0, 5.0].as_slice(), 5));
        cache.fill(3).unwrap();
        assert_eq!(cache.len(), 5);
    }
}
