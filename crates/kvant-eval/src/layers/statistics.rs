//! What keys and values of a layer are like.

use super::capture::Captured;
use kvant_codec::{Basis, Rotation, Tier};
use serde::Serialize;

/// Channels that are named.
const LOUDEST: usize = 3;

/// Keys and values of a layer, over all its heads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerStatistics {
    /// Number of the layer's entry in the cache.
    pub layer: usize,
    /// Excess kurtosis of keys: 0 for a bell curve, large where few numbers are much larger than the rest.
    pub key_kurtosis: f64,
    /// The same after a rotation (SRHT).
    pub key_kurtosis_rotated: f64,
    /// Excess kurtosis of values.
    pub value_kurtosis: f64,
    /// The same after a rotation.
    pub value_kurtosis_rotated: f64,
    /// The channels of keys with the largest root mean square, largest first.
    pub loud_channels: Vec<LoudChannel>,
    /// Mean of α‖q‖‖k‖: how large scores could be, in nats.
    pub score_scale: f64,
}

/// A channel of the keys of one head.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LoudChannel {
    /// The kv head.
    pub head: usize,
    /// The channel.
    pub channel: usize,
    /// Its root mean square over that of the whole head.
    pub times: f64,
}

impl LayerStatistics {
    /// From what a layer appended and asked.
    pub fn of(layer: usize, captured: &Captured) -> Self {
        let (key_dim, value_dim) = (captured.key_dim(), captured.value_dim());
        let [mut key, mut key_rotated, mut value, mut value_rotated] = [0.0; 4];
        let mut loud = Vec::new();
        for head in 0..captured.shape.kv_heads {
            let mut keys = captured.head_rows(&captured.keys, key_dim, head);
            let mut values = captured.head_rows(&captured.values, value_dim, head);
            loud.extend(channels(&keys, key_dim).map(|(channel, times)| LoudChannel {
                head,
                channel,
                times,
            }));
            key += kurtosis(&keys);
            value += kurtosis(&values);
            rotate(&mut keys, key_dim);
            rotate(&mut values, value_dim);
            key_rotated += kurtosis(&keys);
            value_rotated += kurtosis(&values);
        }
        loud.sort_by(|a, b| b.times.total_cmp(&a.times));
        loud.truncate(LOUDEST);
        let heads = captured.shape.kv_heads.max(1) as f64;
        Self {
            layer,
            key_kurtosis: key / heads,
            key_kurtosis_rotated: key_rotated / heads,
            value_kurtosis: value / heads,
            value_kurtosis_rotated: value_rotated / heads,
            loud_channels: loud,
            score_scale: f64::from(captured.scale)
                * mean_norm(&captured.queries, key_dim)
                * mean_norm(&captured.keys, key_dim),
        }
    }
}

/// E[(x − m)⁴] / E[(x − m)²]² − 3; zero for numbers that are all the same.
pub fn kurtosis(numbers: &[f32]) -> f64 {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let moment = |power: i32| numbers.iter().map(|&x| (f64::from(x) - mean).powi(power)).sum::<f64>() / count;
    let variance = moment(2);
    if variance > 0.0 { moment(4) / (variance * variance) - 3.0 } else { 0.0 }
}

fn rotate(rows: &mut [f32], dim: usize) {
    // Whoever runs a model has an instruction set to run it on, and `rows` are whole vectors.
    if let Ok(tier) = Tier::select() {
        let applied = Basis::new(Rotation::Srht, dim, 0).apply(rows, tier);
        debug_assert!(applied.is_ok(), "rows of {dim}");
    }
}

/// Every channel with its root mean square over that of all.
fn channels(rows: &[f32], dim: usize) -> impl Iterator<Item = (usize, f64)> {
    let mut squares = vec![0.0; dim];
    for row in rows.chunks_exact(dim) {
        squares.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x).powi(2));
    }
    let mean = squares.iter().sum::<f64>() / dim as f64;
    let times = move |sum: f64| if mean > 0.0 { (sum / mean).sqrt() } else { 0.0 };
    squares.into_iter().map(times).enumerate()
}

fn mean_norm(rows: &[f32], dim: usize) -> f64 {
    let norm = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let count = (rows.len() / dim.max(1)).max(1) as f64;
    rows.chunks_exact(dim.max(1)).map(norm).sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::KvShape;

    #[test]
    fn kurtosis_knows_coins_and_outliers() {
        let coin: Vec<f32> = (0..1000).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        assert!((kurtosis(&coin) + 2.0).abs() < 1e-9);
        let uniform: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        assert!((kurtosis(&uniform) + 1.2).abs() < 1e-3);
        let mut spiky = vec![0.0; 999];
        spiky.push(1.0);
        assert!(kurtosis(&spiky) > 900.0);
        assert_eq!(kurtosis(&[2.0; 9]), 0.0);
    }

    #[test]
    fn a_loud_channel_is_found_and_a_rotation_spreads_it() {
        let (tokens, dim) = (64, 32);
        let key = |i: usize| if i % dim == 5 { 40.0 } else { (i as f32 * 0.7).sin() };
        let keys: Vec<f32> = (0..tokens * dim).map(key).collect();
        let shape = KvShape { kv_heads: 1, key_dim: dim, value_dim: dim, window: None };
        let captured = Captured {
            tokens,
            values: keys.clone(),
            queries: vec![1.0; keys.len()],
            keys,
            scale: 0.5,
            ..Captured::new(3, shape)
        };
        let found = LayerStatistics::of(3, &captured);
        assert_eq!((found.layer, found.loud_channels[0].channel), (3, 5));
        assert!(found.loud_channels[0].times > 5.0 && found.loud_channels.len() == LOUDEST);
        assert!(found.key_kurtosis > 10.0 && found.key_kurtosis_rotated < 3.0, "{found:?}");
        // |q| = √32, and |k| is a little more than its loud channel.
        assert!(
            (found.score_scale / (0.5 * 32f64.sqrt() * 40.2) - 1.0).abs() < 0.01,
            "{}",
            found.score_scale
        );
    }
}
