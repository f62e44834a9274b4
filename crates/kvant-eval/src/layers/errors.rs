//! What a cache makes of the keys, values and queries of a layer.

use super::capture::Captured;
use crate::error::EvalError;
use kvant_codec::Side;
use kvant_engine::{KvCache, Policy};
use kvant_model::Model;
use kvant_model::cache::{Cache, Scoring};
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
pub fn measure(model: &Model, captured: &[Captured], policy: &Policy) -> Result<Vec<LayerErrors>, EvalError> {
    let tokens = captured.iter().map(|entry| entry.tokens).max().unwrap_or(0);
    let mut cache = KvCache::new(policy, model.states(), tokens)?;
    cache.cache_mut().reserve(tokens)?;
    let mut outputs = Vec::with_capacity(captured.len());
    for (number, entry) in captured.iter().enumerate() {
        let scoring = Scoring { scale: entry.scale, soft_cap: entry.soft_cap };
        let mut out = vec![0.0; entry.outputs.len()]; // (tokens, heads, value_dim)
        cache.append(number, &entry.keys, &entry.values);
        cache.attend(number, entry.queries[..].into(), &scoring, &mut out);
        outputs.push(out);
    }
    cache.check()?;
    cache.advance(tokens);
    captured
        .iter()
        .zip(&outputs)
        .enumerate()
        .map(|(number, (entry, out))| of_entry(&cache, number, entry, out))
        .collect()
}

fn of_entry(cache: &KvCache, number: usize, entry: &Captured, out: &[f32]) -> Result<LayerErrors, EvalError> {
    let [mut keys, mut values, mut output, mut scores] = [(); 4].map(|()| Share::default());
    let mut pairs = 0;
    for head in 0..entry.kv_heads {
        let exact = entry.head_rows(&entry.keys, entry.key_dim(), head);
        let (first, decoded) = decoded(cache, number, head, Side::Key, entry.tokens)?;
        let exact = &exact[first * entry.key_dim()..][..decoded.len()];
        let difference: Vec<f32> = exact.iter().zip(&decoded).map(|(k, other)| k - other).collect();
        keys.take(squares(&difference), squares(exact));
        pairs += score_errors(entry, head, exact, &difference, &mut scores);

        let exact = entry.head_rows(&entry.values, entry.value_dim(), head);
        let (first, decoded) = self::decoded(cache, number, head, Side::Value, entry.tokens)?;
        let exact = &exact[first * entry.value_dim()..][..decoded.len()];
        let difference: Vec<f32> = exact.iter().zip(&decoded).map(|(v, other)| v - other).collect();
        values.take(squares(&difference), squares(exact));
    }
    let difference: Vec<f32> = entry.outputs.iter().zip(out).map(|(exact, other)| exact - other).collect();
    output.take(squares(&difference), squares(&entry.outputs));
    Ok(LayerErrors {
        key_error: keys.root(),
        value_error: values.root(),
        score_error: (scores.part / f64::from(pairs.max(1))).sqrt(),
        score_share: scores.root(),
        output_error: output.root(),
    })
}

/// Adds up the errors of scores between the queries of a kv head and its encoded keys, and returns how many there were.
fn score_errors(entry: &Captured, head: usize, keys: &[f32], difference: &[f32], sums: &mut Share) -> u32 {
    let (dim, heads) = (entry.key_dim(), entry.heads());
    let group = heads / entry.kv_heads.max(1);
    let count = keys.len() / dim.max(1);
    if count == 0 || group == 0 {
        return 0;
    }
    let norms: Vec<f64> = keys.chunks_exact(dim).map(squares).collect();
    let mut pairs = 0;
    for token in (0..entry.tokens).rev().step_by((entry.tokens / QUERIES).max(1)).take(QUERIES) {
        for query in head * group..(head + 1) * group {
            let query = &entry.queries[(token * heads + query) * dim..][..dim];
            let scale = f64::from(entry.scale);
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
    entry: usize,
    head: usize,
    side: Side,
    tokens: usize,
) -> Result<(usize, Vec<f32>), EvalError> {
    let sequence = cache.sequence();
    let Some(store) = sequence.side(entry, head, side) else { return Ok((0, Vec::new())) };
    let codec = store.codecs().codec();
    let rule = sequence.layout().rule();
    let first = rule.page_start(store.dropped(), codec.page_tokens());
    let mut rows = Vec::new();
    for page in store.pages() {
        let start = rows.len();
        rows.resize(start + codec.page_tokens() * codec.dim(), 0.0);
        codec.decode(page, &mut rows[start..])?;
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
