//! Attention to one kv head, a block of positions at a time.

use super::{Layer, Stored};
use crate::blocks::dot_block;
use kvant_cache::{KvShape, Scoring};
use std::cell::RefCell;

/// Positions handled at a time. Blocks start at multiples of this, so where a chunk begins does not move them.
const BLOCK: usize = 64;
thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Buffers of one task, kept by its thread.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) queries: Vec<f32>, // (tokens · group, key_dim)
    keys: Vec<f32>,               // (positions of a block, key_dim)
    values: Vec<f32>,             // (positions of a block, value_dim)
    scores: Vec<f32>,             // (tokens · group, positions of a block)
    running: Vec<Running>,
}

/// The running softmax of one query: the values seen so far, weighted relative to the largest score so far.
#[derive(Clone, Copy)]
struct Running {
    largest: f32,
    mass: f32,
}

impl<T: Stored> Layer<T> {
    /// Attention of `scratch.queries`, whose first token stands at `position`, to one kv head; `out` is
    /// `(tokens · group, value_dim)`.
    pub(super) fn attend_head(
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
