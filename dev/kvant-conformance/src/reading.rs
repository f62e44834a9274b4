//! Logits of tokens, and how far they are apart.

use kvant_attention::KvCache;
use kvant_model::{Chunk, Model, Pass};

/// Ids of a vocabulary, always the same.
pub fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    kvant_codec::split_mix(7).map(|n| ((n >> 33) as usize % vocabulary) as u32).take(count).collect()
}

/// Logits of all tokens, read in chunks of these sizes, the last again and again.
pub fn read(model: &Model, cache: &mut KvCache, tokens: &[u32], chunks: &[usize]) -> Vec<f32> {
    let (mut left, mut logits, mut sizes) = (tokens, Vec::new(), chunks.iter().copied());
    let last = *chunks.last().unwrap();
    while !left.is_empty() {
        let (chunk, rest) = left.split_at(sizes.next().unwrap_or(last).min(left.len()));
        let pass = [Chunk::new(chunk, 0..chunk.len())];
        let outputs = model.forward(Pass::new(&pass), &mut [cache.sequence_mut()]).unwrap();
        logits.extend_from_slice(outputs.into_logits().data());
        left = rest;
    }
    logits
}

/// The largest difference; no number is as far as can be.
pub fn largest_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let off = a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs()));
    off.fold(0.0, |most, off| if off.is_nan() { f64::INFINITY } else { most.max(off) })
}

/// ‖a − b‖ / ‖b‖.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    let distance = (off / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt();
    if distance.is_nan() { f64::INFINITY } else { distance }
}

/// The median distance of rows. A token whose second and third expert are nearly alike may go to the other one, so one row says little.
pub fn median_distance(a: &[f32], b: &[f32], width: usize) -> f64 {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    let mut offs: Vec<f64> = rows.map(|(a, b)| distance(a, b)).collect();
    offs.sort_by(f64::total_cmp);
    offs[offs.len() / 2]
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

/// Rows of which both have the same largest logit, in percent.
pub fn same_choice(a: &[f32], b: &[f32], width: usize) -> usize {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    100 * rows.clone().filter(|(a, b)| largest(a) == largest(b)).count() / rows.count()
}
