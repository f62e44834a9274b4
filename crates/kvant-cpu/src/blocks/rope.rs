//! Rotary position embedding in a pass: the rotation of every token, made once and used by all layers that share it.

use crate::blocks::activations::{Activations, for_each_row};
use kvant_model::description::{Pairing, Rope};
use std::ops::Range;

/// The rotation of every (token, pair) of a pass.
#[derive(Debug)]
pub struct RopeTable {
    rotations: Vec<[f32; 2]>, // (tokens, pairs) of (cos, sin)
    pairs: usize,
    pairing: Pairing,
}

impl RopeTable {
    /// The rotations of a pass, for sequences given as (positions, capacity).
    ///
    /// **Invariant:** the rotation of a token depends on its position and on the capacity its sequence was opened with,
    /// never on how much of the sequence is there.
    pub fn new(rope: &Rope, sequences: impl Iterator<Item = (Range<usize>, usize)>) -> Self {
        let (mut rotations, amplitude) = (Vec::new(), rope.amplitude());
        for (positions, capacity) in sequences {
            let frequencies = rope.frequencies(capacity);
            for position in positions {
                for &frequency in &*frequencies {
                    let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                    rotations.push([cos as f32 * amplitude, sin as f32 * amplitude]);
                }
            }
        }
        Self { rotations, pairs: rope.dims() / 2, pairing: rope.pairing() }
    }

    /// Turns every head of every row; channels beyond the rotated ones stay.
    pub fn rotate(&self, x: &mut Activations, head_dim: usize) {
        let (width, pairs, pairing) = (x.width(), self.pairs, self.pairing);
        for_each_row(x.data_mut(), width, |token, row| {
            let rotations = &self.rotations[token * pairs..][..pairs];
            for head in row.chunks_exact_mut(head_dim) {
                for (i, &[cos, sin]) in rotations.iter().enumerate() {
                    let (a, b) = match pairing {
                        Pairing::Halves => (i, i + pairs),
                        Pairing::Neighbours => (2 * i, 2 * i + 1),
                    };
                    (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[b] * cos + head[a] * sin);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::description::RopeScaling;

    fn rotated(rope: &Rope, head: &[f32], position: usize) -> Vec<f32> {
        let mut rows = Activations::from_vec(head.to_vec(), head.len());
        RopeTable::new(rope, std::iter::once((position..position + 1, 64))).rotate(&mut rows, head.len());
        rows.into_vec()
    }

    #[test]
    fn scores_depend_on_the_distance_alone_and_position_zero_turns_nothing() {
        for pairing in [Pairing::Halves, Pairing::Neighbours] {
            let rope = Rope::new(4, 100.0, &RopeScaling::None, pairing);
            let (q, k) = ([0.3, -1.0, 2.0, 0.7, 9.0], [1.1, 0.4, -0.2, 0.5, 2.0]);
            assert_eq!(rotated(&rope, &q, 0), q);
            let score = |p: usize, r: usize| {
                rotated(&rope, &q, p).iter().zip(rotated(&rope, &k, r)).map(|(a, b)| a * b).sum::<f32>()
            };
            assert!((score(9, 4) - score(15, 10)).abs() < 1e-4);
            assert!((score(9, 4) - score(9, 5)).abs() > 1e-3);
        }
    }

    #[test]
    fn the_pairings_are_one_rotation_in_two_orders() {
        let halves = Rope::new(6, 50.0, &RopeScaling::None, Pairing::Halves);
        let neighbours = Rope::new(6, 50.0, &RopeScaling::None, Pairing::Neighbours);
        let a = rotated(&halves, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 7);
        let b = rotated(&neighbours, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0], 7);
        assert_eq!([a[0], a[3], a[1], a[4], a[2], a[5]], b[..]);
    }
}
