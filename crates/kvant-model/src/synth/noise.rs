//! Random weights by place: the value of a weight depends on the seed, its tensor, its row and its column.
//!
//! SplitMix64 (Steele, Lea and Flood) turns a counter into well-mixed words, so a row begins anywhere without the rows
//! before it. Four 16-bit parts of a word add up to something near enough to a normal distribution.

use crate::dtype::DType;
use half::f16;

/// The source of all tensors of a model.
pub struct Noise {
    seed: u64,
    tensors: u64,
}

/// The source of one tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorNoise {
    key: u64,
}

impl Noise {
    /// Of a seed.
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

/// Numbers of a block, and what a code's deviation is: codes are made at once, without a number that is rounded.
const GROUP: usize = 32;

impl TensorNoise {
    /// Fills a row of blocks of this type with codes whose numbers have mean 0 and standard deviation 1/√(length); false for types it makes
    /// none of. Codes of 4 bits are sums of two even numbers, those of 8 bits too; floats of 4 bits are all alike.
    pub fn fill_blocks(&self, dtype: DType, row: usize, columns: usize, out: &mut [u8]) -> bool {
        let deviation = match dtype {
            DType::Q4_0 => 10.5f32.sqrt(),
            DType::Q8_0 => 2730.5f32.sqrt(),
            DType::MXFP4 => 8.5625f32.sqrt(),
            _ => return false,
        };
        let step = 1.0 / (deviation * (columns.max(1) as f32).sqrt());
        let half = f16::from_f32(step).to_le_bytes();
        let exponent = (127.0 + step.log2().round()).clamp(0.0, 254.0) as u8;
        let key = word(self.key, row as u64);
        for (block, out) in out.chunks_exact_mut(dtype.block_bytes()).enumerate() {
            let noise = |index: usize| word(key, (block * GROUP / 4 + index) as u64);
            // Two sums of 0..8 in every byte, from 1 to 15 of 16.
            let sums = |noise: u64| {
                (noise & 0x0707_0707_0707_0707) + (noise >> 3 & 0x0707_0707_0707_0707) + 0x0101_0101_0101_0101
            };
            match dtype {
                DType::Q4_0 => {
                    out[..2].copy_from_slice(&half);
                    for (index, codes) in out[2..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
                        let word = sums(noise(2 * index)) | sums(noise(2 * index + 1)) << 4;
                        *codes = word.to_le_bytes();
                    }
                }
                DType::Q8_0 => {
                    out[..2].copy_from_slice(&half);
                    for (index, codes) in out[2..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
                        let (a, b) = (noise(2 * index).to_le_bytes(), noise(2 * index + 1).to_le_bytes());
                        *codes = std::array::from_fn(|i| ((a[i] >> 1) + (b[i] >> 1)).wrapping_sub(127));
                    }
                }
                _ => {
                    out[0] = exponent;
                    for (index, codes) in out[1..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
                        *codes = noise(index).to_le_bytes();
                    }
                }
            }
        }
        true
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
    use crate::quant::dequantize_row;

    #[test]
    fn published_words() {
        let words: Vec<u64> = (0..3).map(|index| word(1_234_567, index)).collect();
        assert_eq!(words, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn blocks_have_the_promised_mean_and_deviation() {
        let n = 8192;
        for dtype in [DType::Q4_0, DType::Q8_0, DType::MXFP4] {
            let noise = Noise::new(3).next_tensor();
            let mut bytes = vec![0; dtype.row_bytes(n).unwrap()];
            assert!(noise.fill_blocks(dtype, 5, n, &mut bytes));
            let mut row = vec![0.0; n];
            dequantize_row(dtype, &bytes, &mut row).unwrap();
            let (mean, square) = (row.iter().sum::<f32>() / n as f32, row.iter().map(|x| x * x).sum::<f32>());
            // A power of two as scale is off by up to √2 either way.
            let room = if dtype == DType::MXFP4 { 0.5..2.0 } else { 0.9..1.1 };
            assert!(mean.abs() < 5.0 / n as f32 && room.contains(&square), "{dtype}: {mean} {square}");
            let mut other = vec![0; bytes.len()];
            assert!(noise.fill_blocks(dtype, 6, n, &mut other) && other != bytes);
        }
        assert!(!Noise::new(3).next_tensor().fill_blocks(DType::Q4_K, 0, 256, &mut [0; 144]));
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
