use super::*;
use kvant_cache::{Arena, CacheLayout, Slots};
use proptest::prelude::*;
use std::sync::Arc;

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
    let denominator: f64 = weights.iter().sum();
    (0..shape.value_dim)
        .map(|c| {
            let value = |i: usize| f64::from(values[(from + i) * shape.value_dim + c]);
            weights.iter().enumerate().map(|(i, w)| w * value(i)).sum::<f64>() / denominator
        })
        .collect()
}

fn noise(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 2.0).collect()
}

/// Feeds `tokens` in the given chunks and returns the outputs.
fn run(shape: KvShape, group: usize, chunks: &[usize], scoring: &Scoring<'_>) -> Vec<f32> {
    let tokens: usize = chunks.iter().sum();
    let (kw, vw, qw) =
        (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim, group * shape.kv_heads);
    let (keys, values, queries) =
        (noise(tokens * kw, 1), noise(tokens * vw, 2), noise(tokens * qw * shape.key_dim, 3));
    let mut slots = Slots::new();
    let slot = slots.keys_values(0, shape);
    let mut sequence = empty(&slots);
    let mut out = vec![0.0; tokens * qw * shape.value_dim];
    let mut at = 0;
    for &n in chunks {
        sequence.begin(n).unwrap();
        sequence.append(slot, &keys[at * kw..][..n * kw], &values[at * vw..][..n * vw]).unwrap();
        let (q, o) = (qw * shape.key_dim, qw * shape.value_dim);
        attend(&sequence, slot, &queries[at * q..][..n * q], scoring, &mut out[at * o..][..n * o]).unwrap();
        sequence.end().unwrap();
        at += n;
    }
    out
}

fn empty(slots: &Slots) -> Sequence {
    Sequence::new(Arc::new(CacheLayout::reference(slots).unwrap()), Arena::new())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn attention_matches_its_definition_and_chunks_do_not_change_a_bit(
        heads in 1usize..4, group in 1usize..4, key_dim in 1usize..40, value_dim in 1usize..40,
        window in prop::option::of(1usize..90), cap in prop::option::of(0.5f32..4.0),
        chunks in prop::collection::vec(1usize..90, 1..5),
    ) {
        let shape = KvShape { kv_heads: heads, key_dim, value_dim, window };
        let scoring = Scoring { soft_cap: cap, ..Scoring::new(0.2) };
        let tokens: usize = chunks.iter().sum();
        let whole = run(shape, group, &[tokens], &scoring);
        let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&whole), bits(&run(shape, group, &chunks, &scoring)));

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
fn a_sink_logit_takes_its_share_and_adds_no_value() {
    let mut slots = Slots::new();
    let slot = slots.keys_values(0, KvShape { kv_heads: 1, key_dim: 1, value_dim: 1, window: None });
    let view = slots.view(1, slot);
    let mut sequence = empty(&slots);
    sequence.begin(1).unwrap();
    sequence.append(slot, &[0.5], &[8.0]).unwrap();
    let scoring = Scoring { sink_logits: Some(&[1.0, 2.0]), ..Scoring::new(1.0) };
    let mut out = [0.0; 2];
    attend(&sequence, view, &[2.0, 2.0], &scoring, &mut out).unwrap();
    // Both scores are 1: e / (e + e) and e / (e + e²) of the value.
    let expected = [4.0, 8.0 / (1.0 + 1f32.exp())];
    assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
}
