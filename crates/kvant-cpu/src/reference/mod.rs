//! Attention to sequences of [`kvant_cache::CacheLayout::reference`], in f32: a block of positions at a time, with sums in one order.
//!
//! It is slower than `kvant-attention`, whose sums go as wide as the instruction set does. What is made with this, such as a plan, is
//! the same on every machine.

#[cfg(test)]
mod tests;

use crate::blocks::dot_block;
use kvant_cache::{KvShape, KvSlot, LatentShape, Scoring, Sequence, SlotKind, StateErrorKind};
use kvant_codec::{CodecError, Side};
use kvant_threads::for_each_chunk;
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// Positions handled at a time, which are a page. Blocks start at multiples of this, so where a chunk begins does not move them.
const BLOCK: usize = 64;

/// Query tokens that share one reading of a block of positions.
const QUERY_TOKENS: usize = 16;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Buffers of one task, kept by its thread.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>, // (tokens · group, key_dim)
    rotated: Vec<f32>, // (positions of a block, rope_dim)
    keys: Vec<f32>,    // (positions of a block, key_dim)
    values: Vec<f32>,  // (positions of a block, value_dim)
    scores: Vec<f32>,  // (tokens · group, positions of a block)
    running: Vec<Running>,
}

/// The running softmax of one query: the values seen so far, weighted relative to the largest score so far.
#[derive(Clone, Copy)]
struct Running {
    largest: f32,
    denominator: f32,
}

/// What a slot holds, as attention reads it.
struct Held<'a> {
    sequence: &'a Sequence,
    slot: KvSlot,
    /// Of what scores and sums read.
    shape: KvShape,
    /// Channels of values that keys have at their end: all where values are latents, none elsewhere.
    shared: usize,
}

/// Attends with the queries `(tokens, heads, key_dim)` of the pass of one sequence; `out` is `(tokens, heads, value_dim)`.
pub fn attend(
    sequence: &Sequence,
    slot: KvSlot,
    queries: &[f32],
    scoring: &Scoring<'_>,
    out: &mut [f32],
) -> Result<(), StateErrorKind> {
    let held = Held::new(sequence, slot)?;
    let (shape, start, tokens) = (held.shape, sequence.len(), sequence.pass().tokens);
    let heads = queries.len() / shape.key_dim / tokens; // query heads
    let group = heads / shape.kv_heads;
    let width = group * shape.value_dim;
    // One task per block of query tokens and kv head. A task's outputs do not lie side by side in `out`, so tasks write to a buffer
    // of their own order.
    let task_width = QUERY_TOKENS * width;
    let tasks = tokens.div_ceil(QUERY_TOKENS) * shape.kv_heads;
    let mut gathered = vec![0.0; tasks * task_width]; // (query blocks, kv_heads, QUERY_TOKENS, group, value_dim)
    let place = |task: usize| (task / shape.kv_heads * QUERY_TOKENS, task % shape.kv_heads);
    let failure = Mutex::new(None);
    for_each_chunk(&mut gathered, task_width, |task, result| {
        let (token, head) = place(task);
        let count = QUERY_TOKENS.min(tokens - token);
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.queries.clear();
            for t in token..token + count {
                let at = (t * heads + head * group) * shape.key_dim;
                scratch.queries.extend_from_slice(&queries[at..][..group * shape.key_dim]);
            }
            let result = &mut result[..count * width];
            if let Err(error) = held.attend_head(head, group, start + token, scoring, scratch, result) {
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
    });
    if let Some(source) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(StateErrorKind::Device(format!("a page cannot be read: {source}")));
    }
    for (task, result) in gathered.chunks_exact(task_width).enumerate() {
        let (token, head) = place(task);
        for (t, values) in result.chunks_exact(width).take(tokens - token).enumerate() {
            out[(token + t) * heads * shape.value_dim + head * width..][..width].copy_from_slice(values);
        }
    }
    Ok(())
}

impl<'a> Held<'a> {
    fn new(sequence: &'a Sequence, slot: KvSlot) -> Result<Held<'a>, StateErrorKind> {
        let layout = sequence.layout().held(slot);
        let (shape, shared) = match layout.map(|layout| *layout.kind()) {
            Some(SlotKind::KeysValues(shape)) => (shape, 0),
            Some(SlotKind::Latent(LatentShape { kv_heads, latent_dim, rope_dim, window })) => {
                let key_dim = rope_dim + latent_dim;
                (KvShape { kv_heads, key_dim, value_dim: latent_dim, window }, latent_dim)
            }
            Some(SlotKind::View(_) | SlotKind::Recurrent(_)) | None => {
                let found = layout.map_or("nothing", |layout| layout.kind().name());
                let (slot, wanted) = (slot.index(), "keys and values");
                return Err(StateErrorKind::Slot { slot, found, wanted });
            }
        };
        Ok(Held { sequence, slot, shape, shared })
    }

    /// Keys and values of one block, `(positions, key_dim)` and `(positions, value_dim)`.
    fn read(&self, head: usize, block: usize, scratch: &mut Scratch) -> Result<(), CodecError> {
        let KvShape { key_dim, value_dim, .. } = self.shape;
        let rotated = key_dim - self.shared;
        let side = |side| self.sequence.side(self.slot, head, side);
        let Scratch { rotated: own, keys, values, .. } = scratch;
        values.resize(BLOCK * value_dim, 0.0);
        if let Some(side) = side(Side::Value) {
            side.decode(block, values)?;
        }
        let own = if self.shared > 0 { own } else { &mut *keys };
        own.resize(BLOCK * rotated, 0.0);
        if let Some(side) = side(Side::Key) {
            side.decode(block, own)?;
        }
        if self.shared > 0 {
            let Scratch { rotated: own, keys, values, .. } = scratch;
            keys.clear();
            for position in 0..BLOCK {
                keys.extend_from_slice(&own[position * rotated..][..rotated]);
                keys.extend_from_slice(&values[position * value_dim..][..self.shared]);
            }
        }
        Ok(())
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
    ) -> Result<(), CodecError> {
        let KvShape { key_dim, value_dim, window, .. } = self.shape;
        let count = scratch.queries.len() / key_dim;
        let first_seen =
            |query: usize| window.map_or(0, |w| (position + query / group + 1).saturating_sub(w));
        let end = position + count / group;
        out.fill(0.0);
        scratch.running.clear();
        scratch.running.resize(count, Running { largest: f32::NEG_INFINITY, denominator: 0.0 });
        scratch.scores.resize(BLOCK * count, 0.0);
        for start in (first_seen(0) / BLOCK * BLOCK..end).step_by(BLOCK) {
            let size = BLOCK.min(end - start);
            self.read(head, start / BLOCK, scratch)?;
            let Scratch { queries, keys, values, scores, running, .. } = &mut *scratch;
            let scores = &mut scores[..count * size];
            dot_block(queries, &keys[..size * key_dim], key_dim, scores);
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
        for (query, (out, running)) in out.chunks_exact_mut(value_dim).zip(&scratch.running).enumerate() {
            let mut denominator = running.denominator;
            if let Some(logits) = scoring.sink_logits {
                let logit = logits[head * group + query % group];
                // The largest of all, so that no power overflows.
                let shrink = (running.largest - running.largest.max(logit)).exp();
                out.iter_mut().for_each(|x| *x *= shrink);
                denominator = denominator * shrink + (logit - running.largest.max(logit)).exp();
            }
            out.iter_mut().for_each(|x| *x /= denominator);
        }
        Ok(())
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
            self.denominator *= shrink;
            out.iter_mut().for_each(|x| *x *= shrink);
            self.largest = largest;
        }
        for (score, value) in scores.iter().zip(values.chunks_exact(out.len())) {
            let weight = (score - largest).exp();
            self.denominator += weight;
            out.iter_mut().zip(value).for_each(|(x, v)| *x += weight * v);
        }
    }
}
