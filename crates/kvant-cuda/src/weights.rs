//! Packed weights: the blocks of a model file in the order of A fragments (`kernels/weights.cuh`). Codes and scales are moved, never
//! rounded.
//!
//! Rows come in tiles of 16, channels in blocks of 64 or 256. Within a tile, row = 8r + g; within 16 channels (k-step ks),
//! channel = 4t + 2c + e; the lane is 4g + t. Rows past the last are zero.

/// Rows of a tile.
pub const TILE_ROWS: usize = 16;

/// A type of weights that there are products for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// w = d·(n − 8) per 32 channels.
    Q4_0,
    /// w = d·n per 32 channels.
    Q8_0,
    /// binary16.
    F16,
    /// w = d·s·n − m·z per 32 channels, in blocks of 256.
    Q4K,
    /// w = d·s·(n − 32) per 16 channels, in blocks of 256.
    Q6K,
    /// w = d·n + m per 32 channels.
    Q4_1,
    /// As Q4_K with codes of 5 bits.
    Q5K,
    /// w = 2^(e − 127)·f per 32 channels, f of 4 bits.
    Mxfp4,
}

/// Weights that cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Rows are not whole blocks.
    #[error("rows of {channels} channels are not whole blocks of {block}")]
    Channels {
        /// Channels of a row.
        channels: usize,
        /// Channels of a block.
        block: usize,
    },
    /// The bytes are not those of the rows.
    #[error("{got} bytes of weights, {want} expected")]
    Size {
        /// Bytes given.
        got: usize,
        /// Bytes of the rows.
        want: usize,
    },
}

impl WeightType {
    /// What kernels of the type are called: `linear_{name}_t8`.
    pub fn name(self) -> &'static str {
        match self {
            WeightType::Q4_0 => "q4_0",
            WeightType::Q8_0 => "q8_0",
            WeightType::F16 => "f16",
            WeightType::Q4K => "q4_k",
            WeightType::Q6K => "q6_k",
            WeightType::Q4_1 => "q4_1",
            WeightType::Q5K => "q5_k",
            WeightType::Mxfp4 => "mxfp4",
        }
    }

    /// (channels, bytes) of a block in a file.
    fn file_block(self) -> (usize, usize) {
        match self {
            WeightType::Q4_0 => (32, 18),
            WeightType::Q8_0 => (32, 34),
            WeightType::F16 => (1, 2),
            WeightType::Q4K => (256, 144),
            WeightType::Q6K => (256, 210),
            WeightType::Q4_1 => (32, 20),
            WeightType::Q5K => (256, 176),
            WeightType::Mxfp4 => (32, 17),
        }
    }

    /// (channels, bytes of 16 rows) of a block on the device.
    pub fn device_block(self) -> (usize, usize) {
        match self {
            WeightType::Q4_0 => (64, 576),
            WeightType::Q8_0 => (64, 1088),
            WeightType::F16 => (64, 2048),
            WeightType::Q4K => (256, 2368),
            WeightType::Q6K => (256, 3360),
            WeightType::Q4_1 => (64, 640),
            WeightType::Q5K => (256, 2880),
            WeightType::Mxfp4 => (64, 544),
        }
    }

    /// Bytes of a packed matrix.
    pub fn packed_bytes(self, rows: usize, channels: usize) -> usize {
        let (block, bytes) = self.device_block();
        rows.div_ceil(TILE_ROWS) * (channels / block) * bytes
    }

    /// Packs the rows of a file, (rows, channels) in its blocks.
    ///
    /// # Errors
    /// When channels are not whole blocks, or the bytes are too many or too few.
    pub fn pack(self, rows: usize, channels: usize, file: &[u8]) -> Result<Vec<u8>, WeightError> {
        let ((file_channels, file_bytes), (block, bytes)) = (self.file_block(), self.device_block());
        if channels == 0 || !channels.is_multiple_of(block) {
            return Err(WeightError::Channels { channels, block });
        }
        let row_bytes = channels / file_channels * file_bytes;
        if file.len() != rows * row_bytes {
            return Err(WeightError::Size { got: file.len(), want: rows * row_bytes });
        }
        let mut packed = vec![0; self.packed_bytes(rows, channels)];
        let of_block = block / file_channels * file_bytes; // bytes of one row in the file
        for (row, source) in file.chunks_exact(row_bytes).enumerate() {
            let tile = row / TILE_ROWS * (channels / block) * bytes;
            let blocks = packed[tile..].chunks_exact_mut(bytes).zip(source.chunks_exact(of_block));
            for (device, source) in blocks {
                self.pack_row(row % TILE_ROWS, source, device);
            }
        }
        Ok(packed)
    }

    /// Blocks of a packed matrix with numbers that mean nothing: random codes under scales that keep activations near unit variance.
    /// For measuring speed without a file.
    pub fn noise(self, channels: usize, bytes: usize, seed: u64) -> Vec<u8> {
        let mut noise: Vec<u8> =
            kvant_codec::split_mix(seed).flat_map(u64::to_le_bytes).take(bytes).collect();
        // Where a block has its scales in f16, and about how large a number is before they are applied.
        let (scales, size) = match self {
            WeightType::Q4_0 => (512..576, 4.6),
            WeightType::Q8_0 => (1024..1088, 74.0),
            WeightType::F16 => (0..2048, 1.5),
            WeightType::Q4K => (2048..2112, 180.0),
            WeightType::Q6K => (3328..3360, 1365.0),
            WeightType::Q4_1 => (512..640, 4.6),
            WeightType::Q5K => (2048..2112, 400.0),
            WeightType::Mxfp4 => (512..544, 3.0),
        };
        // 2⁻ᵏ as f16.
        let k = (size * (channels as f64).sqrt()).log2().round().clamp(0.0, 14.0) as u16;
        let one = (15 - k) << 10;
        let (_, block) = self.device_block();
        for block in noise.chunks_exact_mut(block) {
            if self == WeightType::Mxfp4 {
                block[scales.clone()].fill((127 - k) as u8);
                continue;
            }
            for (i, half) in block[scales.clone()].as_chunks_mut().0.iter_mut().enumerate() {
                // Of f16 weights the sign and the fraction stay random.
                let kept = if self == WeightType::F16 { u16::from_le_bytes(*half) & 0x83ff } else { 0 };
                // Minima of Q4_1 are eight times their scales, below zero.
                let minimum = if self == WeightType::Q4_1 && i % 2 == 1 { 0x8000 + (3 << 10) } else { 0 };
                *half = (one | kept).wrapping_add(minimum).to_le_bytes();
            }
            if matches!(self, WeightType::Q4K | WeightType::Q5K) {
                block[2112..2368].iter_mut().for_each(|scale| *scale &= 63);
            }
        }
        noise
    }

    /// One row of one block.
    fn pack_row(self, row: usize, source: &[u8], device: &mut [u8]) {
        let (g, r) = (row % 8, row / 8);
        match self {
            WeightType::Q4_0 => {
                for (block, source) in source.chunks_exact(18).enumerate() {
                    put(device, 512 + 2 * (4 * g + 2 * block + r), &source[..2]);
                    for i in 0..32 {
                        let code = (source[2 + i % 16] >> (4 * (i / 16))) & 15;
                        put_nibble(device, row, 32 * block + i, code);
                    }
                }
            }
            WeightType::Q8_0 => {
                for (block, source) in source.chunks_exact(34).enumerate() {
                    put(device, 1024 + 2 * (4 * g + 2 * block + r), &source[..2]);
                    for (i, code) in source[2..].iter().enumerate() {
                        let (ks, lane, c, e) = place(row, 32 * block + i);
                        let word = ks / 2 * 128 + lane * 4 + ks % 2 * 2 + c;
                        device[4 * word + 2 * e + r] = code ^ 128;
                    }
                }
            }
            WeightType::F16 => {
                for (channel, number) in source.chunks_exact(2).enumerate() {
                    let (ks, lane, c, e) = place(row, channel);
                    put(device, 2 * (ks * 256 + lane * 8 + c * 4 + r * 2 + e), number);
                }
            }
            WeightType::Q4K | WeightType::Q5K => {
                put(device, 2048 + 4 * (2 * g + r), &source[..4]);
                let scales = &source[4..16];
                let (fifth, codes) = match self {
                    WeightType::Q5K => (Some(&source[16..48]), &source[48..]),
                    _ => (None, &source[16..]),
                };
                for block in 0..8 {
                    let at = 2112 + block / 2 * 64 + g * 8 + block % 2 * 4 + r * 2;
                    put(device, at, &scale_and_minimum(scales, block));
                    for i in 0..32 {
                        let (channel, code) =
                            (32 * block + i, codes[block / 2 * 32 + i] >> (4 * (block % 2)));
                        put_nibble(device, row, channel, code & 15);
                        if let Some(fifth) = fifth {
                            let (ks, lane, c, e) = place(row, channel % 64);
                            let bit = r + 2 * c + 4 * ks + 16 * e;
                            let word = 2368 + channel / 64 * 128 + 4 * lane;
                            device[word + bit / 8] |= ((fifth[i] >> block) & 1) << (bit % 8);
                        }
                    }
                }
            }
            WeightType::Q4_1 => {
                for (block, source) in source.chunks_exact(20).enumerate() {
                    put(device, 512 + 4 * (4 * g + 2 * block + r), &source[..4]);
                    for i in 0..32 {
                        let code = (source[4 + i % 16] >> (4 * (i / 16))) & 15;
                        put_nibble(device, row, 32 * block + i, code);
                    }
                }
            }
            WeightType::Mxfp4 => {
                for (block, source) in source.chunks_exact(17).enumerate() {
                    device[512 + 4 * g + 2 * block + r] = source[0];
                    for i in 0..32 {
                        let code = (source[1 + i % 16] >> (4 * (i / 16))) & 15;
                        put_nibble(device, row, 32 * block + i, code);
                    }
                }
            }
            WeightType::Q6K => {
                let (low, high, scales) = (&source[..128], &source[128..192], &source[192..208]);
                put(device, 3328 + 2 * (2 * g + r), &source[208..210]);
                for (i, scale) in scales.iter().enumerate() {
                    device[3072 + i / 4 * 64 + g * 8 + i % 4 * 2 + r] = *scale;
                }
                for channel in 0..256 {
                    let (half, quarter, i) = (channel / 128, channel % 128 / 32, channel % 32);
                    let nibble = (low[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2))) & 15;
                    let top = (high[32 * half + i] >> (2 * quarter)) & 3;
                    put_nibble(device, row, channel, nibble);
                    let (ks, lane, c, e) = place(row, channel % 64);
                    let bit = 2 * r + 4 * c + 8 * (ks % 2) + 16 * e;
                    let word = 2048 + channel / 64 * 256 + 4 * (lane * 2 + ks / 2);
                    device[word + bit / 8] |= top << (bit % 8);
                }
            }
        }
    }
}

/// (ks, lane, c, e) of a row and a channel of 64.
fn place(row: usize, channel: usize) -> (usize, usize, usize, usize) {
    (channel / 16, 4 * (row % 8) + channel / 4 % 4, channel / 2 % 2, channel % 2)
}

fn put(device: &mut [u8], at: usize, bytes: &[u8]) {
    device[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A nibble among words [64 channels][lane][ks], 4r + 8c + 16e bits up.
fn put_nibble(device: &mut [u8], row: usize, channel: usize, code: u8) {
    let (ks, lane, c, e) = place(row, channel % 64);
    device[channel / 64 * 512 + 4 * (lane * 4 + ks) + c + 2 * e] |= code << (4 * (row / 8));
}

/// Six bits each, of sub-block `block` of a Q4_K block.
fn scale_and_minimum(scales: &[u8], block: usize) -> [u8; 2] {
    if block < 4 {
        return [scales[block] & 63, scales[block + 4] & 63];
    }
    [
        (scales[block + 4] & 15) | (scales[block - 4] >> 6 << 4),
        (scales[block + 4] >> 4) | (scales[block] >> 6 << 4),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use proptest::prelude::*;

    const TYPES: [WeightType; 8] = [
        WeightType::Q4_0,
        WeightType::Q8_0,
        WeightType::F16,
        WeightType::Q4K,
        WeightType::Q6K,
        WeightType::Q4_1,
        WeightType::Q5K,
        WeightType::Mxfp4,
    ];

    /// Half a unit each: 0, ½, 1, 1½, 2, 3, 4, 6, and the same below zero.
    const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

    fn fp4(code: u8, exponent: u8) -> f32 {
        let sign = if code == 8 { -0.0 } else { f32::from(FP4[usize::from(code)]) };
        (f64::from(sign) * (f64::from(exponent) - 128.0).exp2()) as f32
    }

    fn number(bytes: &[u8], at: usize) -> f32 {
        f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
    }

    /// A weight by the definition of the file's format.
    fn in_file(kind: WeightType, row: &[u8], channel: usize) -> f32 {
        let (channels, bytes) = kind.file_block();
        let b = &row[channel / channels * bytes..][..bytes];
        let i = channel % channels;
        match kind {
            WeightType::Q4_0 => {
                number(b, 0) * (f32::from(if i < 16 { b[2 + i] & 15 } else { b[2 + i - 16] >> 4 }) - 8.0)
            }
            WeightType::Q8_0 => number(b, 0) * f32::from(b[2 + i] as i8),
            WeightType::F16 => number(b, 0),
            WeightType::Q4_1 => {
                let n = if i < 16 { b[4 + i] & 15 } else { b[4 + i - 16] >> 4 };
                number(b, 0) * f32::from(n) + number(b, 2)
            }
            WeightType::Mxfp4 => fp4(if i < 16 { b[1 + i] & 15 } else { b[1 + i - 16] >> 4 }, b[0]),
            WeightType::Q4K | WeightType::Q5K => {
                let block = i / 32;
                let is_q5 = kind == WeightType::Q5K;
                let byte = b[if is_q5 { 48 } else { 16 } + block / 2 * 32 + i % 32];
                let [s, z] = scale_and_minimum(&b[4..16], block);
                let n = if block.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
                let n = if is_q5 { n + 16 * ((b[16 + i % 32] >> block) & 1) } else { n };
                number(b, 0) * f32::from(s) * f32::from(n) - number(b, 2) * f32::from(z)
            }
            WeightType::Q6K => {
                let (half, l) = (i / 128, i % 128);
                let (low, high) = (&b[64 * half..], &b[128 + 32 * half..]);
                let n = match l / 32 {
                    0 => (low[l] & 15) | ((high[l] & 3) << 4),
                    1 => (low[l] & 15) | ((high[l - 32] >> 2 & 3) << 4),
                    2 => (low[l - 64] >> 4) | ((high[l - 64] >> 4 & 3) << 4),
                    _ => (low[l - 64] >> 4) | ((high[l - 96] >> 6) << 4),
                };
                number(b, 208) * f32::from(b[192 + i / 16] as i8) * (f32::from(n) - 32.0)
            }
        }
    }

    fn word(p: &[u8], i: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|k| p[4 * i + k]))
    }

    /// A weight by the kernels' `at`.
    fn on_device(kind: WeightType, p: &[u8], row: usize, channel: usize) -> f32 {
        let (g, r, lane) = (row % 8, row / 8, 4 * (row % 8) + channel / 4 % 4);
        let (ks, shift) = (channel / 16, 4 * r + 8 * (channel / 2 % 2) + 16 * (channel % 2));
        let nibble = |p: &[u8]| word(p, channel / 64 * 128 + lane * 4 + ks % 4) >> shift & 15;
        match kind {
            WeightType::Q4_0 => {
                number(p, 512 + 2 * (g * 4 + channel / 32 * 2 + r)) * (nibble(p) as f32 - 8.0)
            }
            WeightType::Q8_0 => {
                let w = word(p, ks / 2 * 128 + lane * 4 + ks % 2 * 2 + channel / 2 % 2);
                let n = (w >> (16 * (channel % 2) + 8 * r)) & 255;
                number(p, 1024 + 2 * (g * 4 + channel / 32 * 2 + r)) * (n as f32 - 128.0)
            }
            WeightType::F16 => {
                number(p, 2 * (ks * 256 + lane * 8 + channel / 2 % 2 * 4 + r * 2 + channel % 2))
            }
            WeightType::Q4_1 => {
                let pair = 512 + 4 * (g * 4 + channel / 32 * 2 + r);
                number(p, pair) * nibble(p) as f32 + number(p, pair + 2)
            }
            WeightType::Mxfp4 => fp4(nibble(p) as u8, p[512 + g * 4 + channel / 32 * 2 + r]),
            WeightType::Q4K | WeightType::Q5K => {
                let s = 2112 + channel / 64 * 64 + g * 8 + channel / 32 % 2 * 4 + r * 2;
                let (d, m) =
                    (number(p, 2048 + 2 * (g * 4 + r * 2)), number(p, 2048 + 2 * (g * 4 + r * 2 + 1)));
                let bit = r + channel / 2 % 2 * 2 + 4 * (ks % 4) + channel % 2 * 16;
                let fifth = match kind {
                    WeightType::Q5K => word(&p[2368..], channel / 64 * 32 + lane) >> bit & 1,
                    _ => 0,
                };
                d * f32::from(p[s]) * (nibble(p) | fifth << 4) as f32 - m * f32::from(p[s + 1])
            }
            WeightType::Q6K => {
                let ks = ks % 4;
                let high = word(&p[2048..], channel / 64 * 64 + lane * 2 + ks / 2)
                    >> (2 * r + 4 * (channel / 2 % 2) + 8 * (ks % 2) + 16 * (channel % 2))
                    & 3;
                let s = p[3072 + channel / 64 * 64 + g * 8 + ks * 2 + r] as i8;
                number(p, 3328 + 2 * (g * 2 + r)) * f32::from(s) * ((nibble(p) | high << 4) as f32 - 32.0)
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn every_weight_is_where_the_kernels_look_for_it(rows in 1usize..36, blocks in 1usize..3, seed in any::<u64>()) {
            for kind in TYPES {
                let (channels, bytes) = kind.device_block();
                let width = channels * blocks;
                let (file_channels, file_bytes) = kind.file_block();
                let row_bytes = width / file_channels * file_bytes;
                let file: Vec<u8> = kvant_codec::split_mix(seed).flat_map(u64::to_le_bytes).take(rows * row_bytes).collect();
                let packed = kind.pack(rows, width, &file).unwrap();
                for row in 0..rows {
                    for channel in 0..width {
                        let want = in_file(kind, &file[row * row_bytes..], channel);
                        let at = (row / 16 * blocks + channel / channels) * bytes;
                        let got = on_device(kind, &packed[at..at + bytes], row % 16, channel % channels);
                        prop_assert!(want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan()), "{kind:?} {row} {channel}");
                    }
                }
            }
        }
    }

    #[test]
    fn noise_is_finite_and_of_the_size_of_weights() {
        for kind in TYPES {
            let (channels, bytes) = kind.device_block();
            let (width, blocks) = (4 * channels, 4);
            let packed = kind.noise(width, kind.packed_bytes(16, width), 3);
            let mut squares = 0.0;
            for n in 0..16 * width {
                let (row, channel) = (n / width, n % width);
                let at = channel / channels * bytes;
                squares += on_device(kind, &packed[at..at + bytes], row, channel % channels).powi(2);
            }
            assert_eq!(packed.len(), blocks * bytes);
            let size = (squares / 16.0).sqrt();
            assert!(size.is_finite() && (0.2..5.0).contains(&size), "{kind:?} {size}");
        }
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        assert_eq!(
            WeightType::Q4K.pack(1, 128, &[]),
            Err(WeightError::Channels { channels: 128, block: 256 })
        );
        assert_eq!(WeightType::Q8_0.pack(2, 64, &[0; 68]), Err(WeightError::Size { got: 68, want: 136 }));
    }
}
