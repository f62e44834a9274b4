//! Random weights by place: the value of a weight depends on the seed, its tensor, its row and its column.
//!
//! SplitMix64 (Steele, Lea and Flood) turns a counter into well-mixed words, so a row begins anywhere without the rows
//! before it. Four 16-bit parts of a word add up to something near enough to a normal distribution.

/// The source of all tensors of a model.
pub struct Noise {
    seed: u64,
    tensors: u64,
}

/// The source of one tensor.
#[derive(Clone, Copy)]
pub struct TensorNoise {
    key: u64,
}

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self { seed, tensors: 0 }
    }

    /// The next tensor's source.
    pub fn next_tensor(&mut self) -> TensorNoise {
        self.tensors += 1;
        TensorNoise { key: word(word(self.seed, 0), self.tensors) }
    }
}

impl TensorNoise {
    /// Fills a row with numbers of mean 0 and standard deviation 1/√(length).
    pub fn fill_row(&self, row: usize, out: &mut [f32]) {
        // The sum of four even numbers in 0..1 has variance 4/12.
        let scale = (3.0 / out.len() as f32).sqrt();
        let key = word(self.key, row as u64);
        for (column, value) in (0u64..).zip(out) {
            let word = word(key, column);
            let sum: u32 = (0..4).map(|part| (word >> (16 * part)) as u32 & 0xffff).sum();
            // Four times 65,535/2 is the middle.
            *value = (sum as f32 - 131_070.0) / 65_536.0 * scale;
        }
    }
}

/// Word `index` of the stream that `key` begins.
fn word(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_words() {
        let words: Vec<u64> = (0..3).map(|index| word(1_234_567, index)).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn rows_have_the_promised_mean_and_deviation_and_no_pattern() {
        let mut noise = Noise::new(3);
        let (one, other) = (noise.next_tensor(), noise.next_tensor());
        let n = 4096;
        let row = |noise: TensorNoise, row| {
            let mut out = vec![0.0; n];
            noise.fill_row(row, &mut out);
            out
        };
        let a = row(one, 0);
        for b in [row(one, 1), row(other, 0)] {
            // Sums of n products of deviation 1/n each: five deviations.
            let product: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert!(product.abs() < 5.0 / (n as f32).sqrt(), "{product}");
        }
        let (mean, square) = (a.iter().sum::<f32>() / n as f32, a.iter().map(|x| x * x).sum::<f32>());
        assert!(mean.abs() < 5.0 / n as f32 && (square - 1.0).abs() < 0.1, "{mean} {square}");
    }
}
