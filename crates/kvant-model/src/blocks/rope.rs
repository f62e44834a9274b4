//! Rotary position embedding: pairs of a head's channels turn by an angle proportional to the position.
//!
//! A pair `i` turns by `position · frequency(i)`, with `frequency(i) = theta^(−2i/dims)` unless a scaling rule
//! stretches it for contexts longer than the model was first trained on. Some rules also multiply the rotated
//! channels by a constant (`amplitude`), which sharpens attention a little.

use crate::blocks::rows::{Rows, for_each_row};
use std::borrow::Cow;
use std::f64::consts::PI;

/// Which channels make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Channel `i` with channel `i + dims/2`, as Hugging Face checkpoints store them.
    Halves,
    /// Channel `2i` with channel `2i + 1`, as GGUF files of the llama family store them.
    Neighbours,
}

/// How the frequencies are stretched for long contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// As trained.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, a ramp between (Llama 3.1).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low` count as low frequencies.
        low: f64,
        /// Wavelengths below `original_context / high` count as high frequencies.
        high: f64,
        /// Context of the first training.
        original_context: f64,
    },
    /// "YaRN": a ramp over channel pairs between two numbers of turns within the original context.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Context of the first training.
        original_context: f64,
        /// Pairs with more turns than this are kept.
        beta_fast: f64,
        /// Pairs with fewer turns than this are divided.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded to whole pairs.
        truncate: bool,
        /// Multiplier of the rotated channels.
        amplitude: f64,
    },
    /// A divisor for each pair, one list for short and one for long sequences (Phi-3).
    LongRope {
        /// Divisors for sequences that stay within the original context.
        short: Vec<f64>,
        /// Divisors for longer ones.
        long: Vec<f64>,
        /// Context of the first training.
        original_context: f64,
        /// Multiplier of the rotated channels.
        amplitude: f64,
    },
    /// A divisor for each pair, as GGUF files store the result of another rule.
    Divisors(Vec<f64>),
    /// "Dynamic NTK": as trained for sequences within the trained context; a larger base for longer ones, the
    /// larger the longer they may grow.
    ///
    /// The reference chooses the base by the tokens that are there, and so turns the keys of one sequence by
    /// different bases as it grows. Here the base is that of the whole sequence from its first token on: what
    /// the reference computes when it reads a sequence of that length at once.
    Dynamic {
        /// How fast the base grows with the length.
        factor: f64,
        /// Context of the training.
        context: f64,
    },
}

/// A rotary embedding, ready to make tables of.
#[derive(Debug, Clone)]
pub struct Rope {
    pairing: Pairing,
    frequencies: Vec<f32>, // (dims / 2)
    /// Other frequencies for sequences that may grow beyond a number of tokens, and that number.
    long: Option<(Long, usize)>,
    amplitude: f32,
}

/// Frequencies of long sequences.
#[derive(Debug, Clone)]
enum Long {
    /// The same for all of them.
    Fixed(Vec<f32>), // (dims / 2)
    /// Those of a base that grows with the capacity.
    Dynamic { dims: usize, theta: f64, factor: f64 },
}

impl Rope {
    /// An embedding of the first `dims` channels of every head; an even number.
    ///
    /// # Panics
    /// When a list of divisors has not `dims / 2` entries; reading a configuration checks that.
    pub fn new(dims: usize, theta: f64, scaling: &RopeScaling, pairing: Pairing) -> Self {
        let plain = frequencies(dims, theta);
        let divided = |by: &[f64]| {
            assert_eq!(by.len(), plain.len(), "one divisor per pair");
            plain.iter().zip(by).map(|(f, d)| f / d).collect::<Vec<f64>>()
        };
        let mut amplitude = 1.0;
        let mut long = None;
        let frequencies = match scaling {
            RopeScaling::None => plain,
            RopeScaling::Linear { factor } => plain.iter().map(|f| f / factor).collect(),
            RopeScaling::Llama3 { factor, low, high, original_context } => {
                plain.iter().map(|&f| llama3(f, *factor, *low, *high, *original_context)).collect()
            }
            RopeScaling::Yarn { factor, amplitude: by, .. } => {
                amplitude = *by;
                let kept = yarn_kept(scaling, dims, theta);
                plain.iter().zip(kept).map(|(f, keep)| f / factor * (1.0 - keep) + f * keep).collect()
            }
            RopeScaling::LongRope { short, long: by, original_context, amplitude: multiplier } => {
                amplitude = *multiplier;
                long = Some((Long::Fixed(rounded(&divided(by))), *original_context as usize));
                divided(short)
            }
            RopeScaling::Divisors(by) => divided(by),
            RopeScaling::Dynamic { factor, context } => {
                long = Some((Long::Dynamic { dims, theta, factor: *factor }, *context as usize));
                plain
            }
        };
        Self { pairing, frequencies: rounded(&frequencies), long, amplitude: amplitude as f32 }
    }

    /// The same rotation, with lengths left as they are.
    pub fn without_amplitude(self) -> Self {
        Self { amplitude: 1.0, ..self }
    }

    /// The frequencies of a sequence that may hold `capacity` tokens.
    fn frequencies(&self, capacity: usize) -> Cow<'_, [f32]> {
        match &self.long {
            Some((Long::Fixed(long), above)) if capacity > *above => long.into(),
            Some((Long::Dynamic { dims, theta, factor }, above)) if capacity > *above => {
                let stretch = factor * capacity as f64 / *above as f64 - (factor - 1.0);
                let theta = theta * stretch.powf(*dims as f64 / (*dims as f64 - 2.0));
                rounded(&frequencies(*dims, theta)).into()
            }
            _ => (&self.frequencies).into(),
        }
    }

    /// Appends the cosines and sines of `positions` in a sequence that may hold `capacity` tokens to `table`.
    ///
    /// **Invariant:** the rotation of a token depends on its position and on the capacity its sequence was
    /// opened with, never on how much of the sequence is there; so chunks do not change it, and keys already
    /// cached never need another rotation.
    fn extend(&self, table: &mut RopeTable, positions: std::ops::Range<usize>, capacity: usize) {
        let frequencies = self.frequencies(capacity);
        for position in positions {
            for &frequency in &*frequencies {
                let (sin, cos) = (position as f64 * f64::from(frequency)).sin_cos();
                table.turns.push([cos as f32 * self.amplitude, sin as f32 * self.amplitude]);
            }
        }
    }

    /// The rotations of a pass, for sequences given as (positions, capacity).
    pub fn table(&self, sequences: impl Iterator<Item = (std::ops::Range<usize>, usize)>) -> RopeTable {
        let mut table = RopeTable { turns: Vec::new(), pairs: self.frequencies.len(), pairing: self.pairing };
        sequences.for_each(|(positions, capacity)| self.extend(&mut table, positions, capacity));
        table
    }
}

/// The rotation of every (token, pair) of a pass.
#[derive(Debug)]
pub struct RopeTable {
    turns: Vec<[f32; 2]>, // (tokens, pairs) of (cos, sin)
    pairs: usize,
    pairing: Pairing,
}

impl RopeTable {
    /// Turns every head of every row; channels beyond the rotated ones stay.
    pub fn rotate(&self, x: &mut Rows, head_dim: usize) {
        let (width, pairs, pairing) = (x.width(), self.pairs, self.pairing);
        for_each_row(x.data_mut(), width, |token, row| {
            let turns = &self.turns[token * pairs..][..pairs];
            for head in row.chunks_exact_mut(head_dim) {
                for (i, &[cos, sin]) in turns.iter().enumerate() {
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

/// `theta^(−2i/dims)` for each pair `i`.
fn frequencies(dims: usize, theta: f64) -> Vec<f64> {
    (0..dims / 2).map(|i| theta.powf(-2.0 * i as f64 / dims as f64)).collect()
}

/// The reference keeps its frequencies in single precision.
fn rounded(frequencies: &[f64]) -> Vec<f32> {
    frequencies.iter().map(|&f| f as f32).collect()
}

fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original_context: f64) -> f64 {
    let turns = original_context * frequency / (2.0 * PI);
    if turns < low {
        frequency / factor
    } else if turns > high {
        frequency
    } else {
        let keep = (turns - low) / (high - low);
        (1.0 - keep) * frequency / factor + keep * frequency
    }
}

/// For each pair the share of its trained frequency that YaRN keeps: 1 for fast pairs, 0 for slow ones.
fn yarn_kept(scaling: &RopeScaling, dims: usize, theta: f64) -> Vec<f64> {
    let &RopeScaling::Yarn { original_context, beta_fast, beta_slow, truncate, .. } = scaling else {
        unreachable!("called for YaRN only")
    };
    // The pair that makes `turns` turns within the original context.
    let pair_of =
        |turns: f64| dims as f64 * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    let (mut first, mut last) = (pair_of(beta_fast), pair_of(beta_slow));
    if truncate {
        (first, last) = (first.floor(), last.ceil());
    }
    (first, last) = (first.max(0.0), last.min(dims as f64 - 1.0));
    if first == last {
        last += 0.001; // a step, but no division by zero
    }
    (0..dims / 2).map(|i| 1.0 - ((i as f64 - first) / (last - first)).clamp(0.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotated(rope: &Rope, head: &[f32], position: usize) -> Vec<f32> {
        let mut rows = Rows::from_vec(head.to_vec(), head.len());
        rope.table(std::iter::once((position..position + 1, 64))).rotate(&mut rows, head.len());
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

    #[test]
    fn long_divisors_serve_sequences_opened_for_more_than_the_original_context() {
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 1.0],
            long: vec![2.0, 2.0],
            original_context: 32.0,
            amplitude: 1.0,
        };
        let rope = Rope::new(4, 100.0, &scaling, Pairing::Halves);
        let table = rope.table([(3..4, 32), (6..7, 33)].into_iter());
        assert_eq!(table.turns[..2], table.turns[2..], "half the angle at twice the position");
    }
    #[test]
    fn a_dynamic_base_serves_the_capacity_and_is_the_trained_one_within_the_context() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, context: 32.0 };
        let rope = Rope::new(8, 100.0, &scaling, Pairing::Halves);
        let plain = |theta: f64| Rope::new(8, theta, &RopeScaling::None, Pairing::Halves).frequencies;
        assert_eq!(*rope.frequencies(7), plain(100.0));
        assert_eq!(*rope.frequencies(32), plain(100.0));
        // At twice the context: 2 · 64/32 − 1 = 3, to the power 8/6.
        assert_eq!(*rope.frequencies(64), plain(100.0 * 3f64.powf(8.0 / 6.0)));
        assert_eq!(rotated(&rope, &[1.0; 8], 5).len(), 8);
    }
}
