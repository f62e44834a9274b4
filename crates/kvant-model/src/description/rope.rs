//! Rotary position embedding: pairs of a head's channels turn by an angle proportional to the position.
//!
//! A pair `i` turns by `position · frequency(i)`, with `frequency(i) = theta^(−2i/dims)` unless a scaling rule
//! stretches it for contexts longer than the model was first trained on. Some rules also multiply the rotated
//! channels by a constant (`amplitude`), which sharpens attention a little.

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
        /// How much of its trained frequency a kept pair keeps: all of it at 1, none at 0.
        extrapolation: f64,
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
    /// The fastest of a whole head's pairs turn, as trained; the others do not (Gemma 4).
    Proportional {
        /// Pairs that turn.
        pairs: usize,
        /// Divisor of their frequencies.
        factor: f64,
    },
    /// The base `theta · alpha^(dims / (dims − 2))` in every context (Hunyuan).
    LargerBase {
        /// How much longer contexts are than the trained ones.
        alpha: f64,
    },
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

/// A rotary embedding: frequencies, and how channels pair up.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pairing: Pairing,
    frequencies: Vec<f32>, // (dims / 2)
    /// Other frequencies for sequences that may grow beyond a number of tokens, and that number.
    long: Option<(Long, usize)>,
    amplitude: f32,
}

/// Frequencies of long sequences.
#[derive(Debug, Clone, PartialEq)]
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
            RopeScaling::Yarn { factor, amplitude: by, extrapolation, .. } => {
                amplitude = *by;
                let kept = yarn_kept(scaling, dims, theta).into_iter().map(|keep| keep * extrapolation);
                plain.iter().zip(kept).map(|(f, keep)| f / factor * (1.0 - keep) + f * keep).collect()
            }
            RopeScaling::LongRope { short, long: by, original_context, amplitude: multiplier } => {
                amplitude = *multiplier;
                long = Some((Long::Fixed(rounded(&divided(by))), *original_context as usize));
                divided(short)
            }
            // Converters write a huge divisor for a pair that does not turn.
            RopeScaling::Divisors(by) => {
                let still = |(f, d): (f64, &f64)| if *d > 1e29 { 0.0 } else { f };
                divided(by).into_iter().zip(by).map(still).collect()
            }
            RopeScaling::Proportional { pairs, factor } => {
                let one = |(i, f): (usize, &f64)| if i < *pairs { f / factor } else { 0.0 };
                plain.iter().enumerate().map(one).collect()
            }
            RopeScaling::LargerBase { alpha } => {
                frequencies(dims, theta * alpha.powf(dims as f64 / (dims as f64 - 2.0)))
            }
            RopeScaling::Dynamic { factor, context } => {
                long = Some((Long::Dynamic { dims, theta, factor: *factor }, *context as usize));
                plain
            }
        };
        Self { pairing, frequencies: rounded(&frequencies), long, amplitude: amplitude as f32 }
    }

    /// The same rotation of channels that pair up otherwise.
    pub fn paired(self, pairing: Pairing) -> Self {
        Self { pairing, ..self }
    }

    /// The same rotation, with lengths left as they are.
    pub fn without_amplitude(self) -> Self {
        Self { amplitude: 1.0, ..self }
    }

    /// The angle per position of each pair, `(dims / 2)`, in a sequence that may hold `capacity` tokens.
    ///
    /// **Invariant:** it depends on the capacity a sequence was opened with, never on how much of it is there; so chunks do
    /// not change a rotation, and keys already cached never need another one.
    pub fn frequencies(&self, capacity: usize) -> Cow<'_, [f32]> {
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

    /// Channels of a head that it turns.
    pub fn dims(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// The channels that turn at all, in their order: all of [`dims`](Self::dims) but those of pairs without a frequency.
    pub fn turning_channels(&self) -> Vec<usize> {
        let pairs = self.frequencies.len();
        let turns = |i: usize| self.long.is_some() || self.frequencies[i] != 0.0;
        let pair_of = |channel: usize| match self.pairing {
            Pairing::Halves => channel % pairs,
            Pairing::Neighbours => channel / 2,
        };
        (0..self.dims()).filter(|&channel| turns(pair_of(channel))).collect()
    }

    /// Which channels make a pair.
    pub fn pairing(&self) -> Pairing {
        self.pairing
    }

    /// Multiplier of the rotated channels.
    pub fn amplitude(&self) -> f32 {
        self.amplitude
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

    #[test]
    fn long_divisors_serve_sequences_opened_for_more_than_the_original_context() {
        let scaling = RopeScaling::LongRope {
            short: vec![1.0, 1.0],
            long: vec![2.0, 2.0],
            original_context: 32.0,
            amplitude: 1.0,
        };
        let rope = Rope::new(4, 100.0, &scaling, Pairing::Halves);
        let halved: Vec<f32> = rope.frequencies(32).iter().map(|f| f / 2.0).collect();
        assert_eq!(*rope.frequencies(33), halved);
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
    }

    #[test]
    fn a_larger_base_is_larger_in_every_context() {
        let rope = Rope::new(8, 100.0, &RopeScaling::LargerBase { alpha: 3.0 }, Pairing::Halves);
        let plain = Rope::new(8, 100.0 * 3f64.powf(8.0 / 6.0), &RopeScaling::None, Pairing::Halves);
        assert_eq!(rope, plain);
    }
}
