//! What a cache makes of the keys, values and queries of a layer.

use super::capture::Captured;
use crate::error::EvalError;
use kvant_cache::{KvSlot, Scoring, Slots};
use kvant_codec::Side;
use kvant_engine::{KvCache, PassState, Policy};
use serde::Serialize;

/// Queries whose scores are looked at: the last ones of the window, spread over it.
const QUERIES: usize = 32;

/// Errors of one layer. Keys and values are those of encoded pages; exact rows have no error to speak of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LayerErrors {
    /// Root mean square of k − k̂ over that of k.
    pub key_error: f64,
    /// The same of values.
    pub value_error: f64,
    /// Root mean square of the error of scores in nats, less what all keys of a query have in common.
    pub score_error: f64,
    /// The same over the root mean square of α‖q‖‖k‖.
    pub score_share: f64,
    /// Root mean square of the error of attention's output over that of the output.
    pub output_error: f64,
}

/// A ratio of two sums of squares.
#[derive(Default)]
struct Share {
    part: f64,
    whole: f64,
}

impl Share {
    fn take(&mut self, part: f64, whole: f64) {
        self.part += part;
        self.whole += whole;
    }

    fn root(&self) -> f64 {
        if self.whole > 0.0 { (self.part / self.whole).sqrt() } else { 0.0 }
    }
}

/// Gives every layer's keys, values and queries to a cache of their own.
pub fn measure(captured: &[Captured], policy: &Policy) -> Result<Vec<LayerErrors>, EvalError> {
    let tokens = captured.iter().map(|one| one.tokens).max().unwrap_or(0);
    let mut slots = Slots::new();
    let own: Vec<KvSlot> = captured.iter().map(|one| slots.keys_values(one.layer, one.shape)).collect();
    let mut cache = KvCache::new(policy, &slots, tokens)?;
    cache.begin(&[tokens])?;
    let mut outputs = Vec::with_capacity(captured.len());
    for (&slot, one) in own.iter().zip(captured) {
        let scoring = Scoring { soft_cap: one.soft_cap, ..Scoring::new(one.scale) };
        let mut out = vec![0.0; one.outputs.len()]; // (tokens, heads, value_dim)
        cache.append(slot, &one.keys, &one.values)?;
        cache.attend(slot, one.queries[..].into(), &scoring, &mut out)?;
        outputs.push(out);
    }
    cache.end()?;
    let all = own.iter().zip(captured).zip(&outputs);
    all.map(|((&slot, one), out)| of_slot(&cache, slot, one, out)).collect()
}

fn of_slot(
    cache: &KvCache,
    slot: KvSlot,
    captured: &Captured,
    out: &[f32],
) -> Result<LayerErrors, EvalError> {
    let [mut keys, mut values, mut output, mut scores] = [(); 4].map(|()| Share::default());
    let mut pairs = 0;
    for head in 0..captured.shape.kv_heads {
        let exact = captured.head_rows(&captured.keys, captured.key_dim(), head);
        let (first, decoded) = decoded(cache, slot, head, Side::Key, captured.tokens)?;
        let exact = &exact[first * captured.key_dim()..][..decoded.len()];
        let difference: Vec<f32> = exact.iter().zip(&decoded).map(|(k, other)| k - other).collect();
        keys.take(squares(&difference), squares(exact));
        pairs += score_errors(captured, head, exact, &difference, &mut scores);

        let exact = captured.head_rows(&captured.values, captured.value_dim(), head);
        let (first, decoded) = self::decoded(cache, slot, head, Side::Value, captured.tokens)?;
        let exact = &exact[first * captured.value_dim()..][..decoded.len()];
        let difference: Vec<f32> = exact.iter().zip(&decoded).map(|(v, other)| v - other).collect();
        values.take(squares(&difference), squares(exact));
    }
    let difference: Vec<f32> = captured.outputs.iter().zip(out).map(|(exact, other)| exact - other).collect();
    output.take(squares(&difference), squares(&captured.outputs));
    Ok(LayerErrors {
        key_error: keys.root(),
        value_error: values.root(),
        score_error: (scores.part / f64::from(pairs.max(1))).sqrt(),
        score_share: scores.root(),
        output_error: output.root(),
    })
}

/// Adds up the errors of scores between the queries of a kv head and its encoded keys, and returns how many there were.
fn score_errors(captured: &Captured, head: usize, keys: &[f32], difference: &[f32], sums: &mut Share) -> u32 {
    let (dim, heads) = (captured.key_dim(), captured.heads());
    let group = heads / captured.shape.kv_heads.max(1);
    let count = keys.len() / dim.max(1);
    if count == 0 || group == 0 {
        return 0;
    }
    let norms: Vec<f64> = keys.chunks_exact(dim).map(squares).collect();
    let mut pairs = 0;
    for token in (0..captured.tokens).rev().step_by((captured.tokens / QUERIES).max(1)).take(QUERIES) {
        for query in head * group..(head + 1) * group {
            let query = &captured.queries[(token * heads + query) * dim..][..dim];
            let scale = f64::from(captured.scale);
            let errors: Vec<f64> =
                difference.chunks_exact(dim).map(|error| scale * dot(query, error)).collect();
            let mean = errors.iter().sum::<f64>() / count as f64;
            let part = errors.iter().map(|error| (error - mean).powi(2)).sum();
            sums.take(part, scale * scale * squares(query) * norms.iter().sum::<f64>());
            pairs += count as u32;
        }
    }
    pairs
}

/// What the encoded pages of a side hold, up to the last token, and the position of the first.
fn decoded(
    cache: &KvCache,
    slot: KvSlot,
    head: usize,
    side: Side,
    tokens: usize,
) -> Result<(usize, Vec<f32>), EvalError> {
    let sequence = cache.sequence();
    let Some(store) = sequence.side(slot, head, side) else { return Ok((0, Vec::new())) };
    let codec = store.codecs().codec();
    let rule = sequence.layout().exact_window();
    let first = rule.page_start(store.dropped(), codec.page_tokens());
    let mut rows = Vec::new();
    for page in store.pages() {
        let start = rows.len();
        rows.resize(start + codec.page_tokens() * codec.dim(), 0.0);
        codec.decode(&page.canonical(), &mut rows[start..])?;
    }
    // The last page of a strict cache is padded.
    rows.truncate(tokens.saturating_sub(first) * codec.dim());
    Ok((first.min(tokens), rows))
}

fn squares(numbers: &[f32]) -> f64 {
    numbers.iter().map(|&x| f64::from(x).powi(2)).sum()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}
