//! What is counted is what a cache is given.

use kvant_cache::{AttentionObserver, KvShape, Scoring, SequencePass, Slots};
use kvant_calibrate::{Positions, Statistics};
use kvant_codec::{Rotation, Tier};

const SHAPE: KvShape = KvShape { kv_heads: 2, key_dim: 4, value_dim: 6, window: None };
const QUERY_HEADS: usize = 6;
const SINKS: usize = 3;

fn sequence(start: usize, tokens: usize) -> SequencePass {
    SequencePass { start, tokens, capacity: 100, streaming: None }
}

fn wave(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + seed * 104_729) as f32 * 0.618).sin() * 2.0).collect()
}

#[test]
fn every_head_is_counted_apart_and_sinks_are_not() {
    let slots = Slots::uniform(2, SHAPE);
    let mut statistics = Statistics::new(&slots, SINKS, (Rotation::Srft, 0), Tier::Scalar);
    let tokens: usize = 11;
    let (keys, values) = (wave(tokens * 8, 1), wave(tokens * 12, 2));
    let queries = wave(tokens * QUERY_HEADS * 4, 3);
    let mut at = 0;
    for chunk in [2, 5, 4] {
        let part = |rows: &[f32]| rows[at * rows.len() / tokens..(at + chunk) * rows.len() / tokens].to_vec();
        for slot in slots.kv_slots() {
            statistics.append(&[sequence(at, chunk)], slot, &part(&keys), &part(&values));
            let (queries, out) = (part(&queries), vec![0.0; chunk * QUERY_HEADS * 6]);
            statistics.attend(&[sequence(at, chunk)], slot, queries[..].into(), &Scoring::new(0.5), &out);
        }
        at += chunk;
    }

    for slot in statistics.slots() {
        for (head, found) in slot.iter().enumerate() {
            assert_eq!(found.keys.count(), (tokens - SINKS) as u64);
            assert_eq!(found.values.count(), (tokens - SINKS) as u64);
            assert_eq!(found.queries.count(), (tokens * 3) as u64);
            for channel in 0..4 {
                let key = |token: usize| f64::from(keys[(token * 2 + head) * 4 + channel]);
                let mean = (SINKS..tokens).map(key).sum::<f64>() / (tokens - SINKS) as f64;
                assert!((found.keys.mean()[channel] - mean).abs() < 1e-12);
                let query = |n: usize| {
                    let (token, one) = (n / 3, head * 3 + n % 3);
                    f64::from(queries[(token * QUERY_HEADS + one) * 4 + channel])
                };
                let square = (0..tokens * 3).map(|n| query(n) * query(n)).sum::<f64>() / (tokens * 3) as f64;
                assert!((found.queries.second()[(channel, channel)] - square).abs() < 1e-12);
            }
            let value = |token: usize| f64::from(values[(token * 2 + head) * 6 + 5]);
            let mean = (SINKS..tokens).map(value).sum::<f64>() / (tokens - SINKS) as f64;
            assert!((found.values.mean()[5] - mean).abs() < 1e-12);
            let [low, high] = found.key_extent.range().unwrap();
            assert!(low.iter().zip(&high).all(|(low, high)| low < high));
            assert!(found.samples.is_none());
        }
    }
}

/// Eleven tokens, in chunks, through statistics that have been told more.
fn seen(statistics: Statistics) -> Statistics {
    let (mut statistics, slots) = (statistics, Slots::uniform(1, SHAPE));
    let slot = slots.kv(0).unwrap();
    let (keys, values) = (wave(11 * 8, 1), wave(11 * 12, 2));
    for (at, chunk) in [(0, 2), (2, 5), (7, 4)] {
        let (keys, values) = (&keys[at * 8..(at + chunk) * 8], &values[at * 12..(at + chunk) * 12]);
        statistics.append(&[sequence(at, chunk)], slot, keys, values);
    }
    statistics
}

#[test]
fn sequences_of_a_pass_have_sinks_of_their_own() {
    let slots = Slots::uniform(1, SHAPE);
    let (keys, values) = (wave(9 * 8, 1), wave(9 * 12, 2));
    let mut found = statistics();
    // Of the first five tokens three are sinks, of the other four none: they come later.
    found.append(&[sequence(0, 5), sequence(7, 4)], slots.kv(0).unwrap(), &keys, &values);
    assert!(found.slots()[0].iter().all(|head| head.keys.count() == 2 + 4));
}

fn statistics() -> Statistics {
    Statistics::new(&Slots::uniform(1, SHAPE), SINKS, (Rotation::Identity, 0), Tier::Scalar)
}

#[test]
fn extents_are_those_of_the_positions_asked_for() {
    let keys = wave(11 * 8, 1);
    for (positions, counted) in [
        (Positions::All, vec![3, 4, 5, 6, 7, 8, 9, 10]),
        (Positions::First(6), vec![3, 4, 5]),
        (Positions::Every(4), vec![4, 8]),
    ] {
        let found = seen(statistics().with_extents(positions));
        for (head, found) in found.slots()[0].iter().enumerate() {
            assert_eq!(found.keys.count(), 8, "moments are of all");
            let [low, high] = found.key_extent.range().unwrap();
            for channel in 0..4 {
                let column = || counted.iter().map(|token| keys[(token * 2 + head) * 4 + channel]);
                assert_eq!(low[channel], column().fold(f32::INFINITY, f32::min), "{positions:?}");
                assert_eq!(high[channel], column().fold(f32::NEG_INFINITY, f32::max), "{positions:?}");
            }
        }
    }
}

#[test]
fn samples_are_rows_of_their_head() {
    let (keys, values) = (wave(11 * 8, 1), wave(11 * 12, 2));
    let found = seen(statistics().with_samples(100, 0));
    for (head, found) in found.slots()[0].iter().enumerate() {
        let [of_keys, of_values] = found.samples.as_ref().unwrap();
        let rows = |all: &[f32], dim: usize| {
            (SINKS..11)
                .flat_map(|token| all[(token * 2 + head) * dim..][..dim].to_vec())
                .collect::<Vec<f32>>()
        };
        assert_eq!((of_keys.rows(), of_values.rows()), (&rows(&keys, 4)[..], &rows(&values, 6)[..]));
    }
    assert_eq!(
        seen(statistics().with_samples(3, 0)).slots()[0][1].samples.as_ref().unwrap()[1].rows().len(),
        18
    );
}

#[test]
fn readers_of_values_are_counted_by_group() {
    let (outputs, mut found) = (5, statistics());
    let weights = wave(outputs * QUERY_HEADS * 6, 4);
    found.read_by(Slots::uniform(1, SHAPE).kv(0).unwrap(), &weights, outputs);
    for (head, found) in found.slots()[0].iter().enumerate() {
        assert_eq!(found.output_gram.count(), (outputs * 3) as u64);
        for (i, j) in [(0, 0), (2, 5)] {
            let product = |n: usize| {
                let row = &weights[(n / 3 * QUERY_HEADS + head * 3 + n % 3) * 6..][..6];
                f64::from(row[i]) * f64::from(row[j])
            };
            let mean = (0..outputs * 3).map(product).sum::<f64>() / (outputs * 3) as f64;
            assert!((found.output_gram.second()[(i, j)] - mean).abs() < 1e-12);
        }
    }
}
