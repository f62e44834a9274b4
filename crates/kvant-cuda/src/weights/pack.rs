//! Rows of a file into tiles, which threads share.

use super::{TILE_ROWS, WeightError, WeightType};
use kvant_threads::for_each_chunk;

impl WeightType {
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
        for_each_chunk(&mut packed, channels / block * bytes, |tile, device| {
            let rows = file.chunks_exact(row_bytes).skip(tile * TILE_ROWS).take(TILE_ROWS);
            for (row, source) in rows.enumerate() {
                for (device, source) in device.chunks_exact_mut(bytes).zip(source.chunks_exact(of_block)) {
                    self.pack_row(row, source, device);
                }
            }
        });
        Ok(packed)
    }

    /// One row of one block.
    fn pack_row(self, row: usize, source: &[u8], device: &mut [u8]) {
        let (g, r) = (row % 8, row / 8);
        let mut codes = [0; 64];
        match self {
            WeightType::Q4_0 => {
                for (block, source) in source.chunks_exact(18).enumerate() {
                    put(device, 512 + 2 * (4 * g + 2 * block + r), &source[..2]);
                    of_halves(&source[2..], &mut codes[32 * block..][..32]);
                }
                put_nibbles(device, row, &codes);
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
                let part_bytes = self.device_part().0;
                put(device, 4 * part_bytes + 4 * (2 * g + r), &source[..4]);
                let scales = &source[4..16];
                let (fifth, codes_of_pairs) = match self {
                    WeightType::Q5K => (Some(&source[16..48]), &source[48..]),
                    _ => (None, &source[16..]),
                };
                for (part, bytes) in codes_of_pairs.chunks_exact(32).enumerate() {
                    of_halves(bytes, &mut codes);
                    put_nibbles(&mut device[part_bytes * part..], row, &codes);
                }
                for block in 0..8 {
                    let at = block / 2 * part_bytes + 512 + g * 8 + block % 2 * 4 + r * 2;
                    put(device, at, &scale_and_minimum(scales, block));
                    for (i, fifth) in fifth.into_iter().flatten().enumerate() {
                        let channel = 32 * block + i;
                        let (ks, lane, c, e) = place(row, channel % 64);
                        let bit = r + 2 * c + 4 * ks + 16 * e;
                        let word = channel / 64 * part_bytes + 576 + 4 * lane;
                        device[word + bit / 8] |= ((fifth >> block) & 1) << (bit % 8);
                    }
                }
            }
            WeightType::Q4_1 => {
                for (block, source) in source.chunks_exact(20).enumerate() {
                    put(device, 512 + 4 * (4 * g + 2 * block + r), &source[..4]);
                    of_halves(&source[4..], &mut codes[32 * block..][..32]);
                }
                put_nibbles(device, row, &codes);
            }
            WeightType::Mxfp4 => {
                for (block, source) in source.chunks_exact(17).enumerate() {
                    device[512 + 4 * g + 2 * block + r] = source[0];
                    of_halves(&source[1..], &mut codes[32 * block..][..32]);
                }
                put_nibbles(device, row, &codes);
            }
            WeightType::Q6K => {
                let (low, high, scales) = (&source[..128], &source[128..192], &source[192..208]);
                put(device, 3328 + 2 * (2 * g + r), &source[208..210]);
                for (i, scale) in scales.iter().enumerate() {
                    device[i / 4 * 832 + 768 + g * 8 + i % 4 * 2 + r] = scale ^ 128;
                }
                for part in 0..4 {
                    for (code, byte) in codes.iter_mut().zip(&low[part / 2 * 64..]) {
                        *code = byte >> (4 * (part % 2)) & 15;
                    }
                    put_nibbles(&mut device[832 * part..], row, &codes);
                }
                for channel in 0..256 {
                    let (half, quarter, i) = (channel / 128, channel % 128 / 32, channel % 32);
                    let top = (high[32 * half + i] >> (2 * quarter)) & 3;
                    let (ks, lane, c, e) = place(row, channel % 64);
                    let bit = 2 * r + 4 * c + 8 * (ks % 2) + 16 * e;
                    let word = channel / 64 * 832 + 512 + 4 * (lane * 2 + ks / 2);
                    device[word + bit / 8] |= top << (bit % 8);
                }
            }
        }
    }
}

/// (ks, lane, c, e) of a row and a channel of 64.
fn place(row: usize, channel: usize) -> (usize, usize, usize, usize) {
    (channel / 16, 4 * (row % 8) + channel / 2 % 4, channel / 8 % 2, channel % 2)
}

fn put(device: &mut [u8], at: usize, bytes: &[u8]) {
    device[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Two codes from every byte: the first half of the channels has the low nibbles.
fn of_halves(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for (byte, (low, high)) in bytes.iter().zip(low.iter_mut().zip(high)) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

/// Codes of a row's 64 channels among words [lane][ks], each 4r + 8c + 16e bits up.
fn put_nibbles(device: &mut [u8], row: usize, codes: &[u8; 64]) {
    let (words, _) = device[64 * (row % 8)..][..64].as_chunks_mut::<4>();
    for (ks, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
        for t in 0..4 {
            let four = [codes[2 * t], codes[2 * t + 8], codes[2 * t + 1], codes[2 * t + 9]];
            let word = u32::from_le_bytes(four) << (4 * (row / 8));
            let own = &mut words[4 * t + ks];
            *own = (u32::from_le_bytes(*own) | word).to_le_bytes();
        }
    }
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
        let (g, r, lane) = (row % 8, row / 8, 4 * (row % 8) + channel / 2 % 4);
        let (ks, shift) = (channel / 16, 4 * r + 8 * (channel / 8 % 2) + 16 * (channel % 2));
        let part = channel / 64 * kind.device_part().0;
        let nibble = |p: &[u8]| word(&p[part..], lane * 4 + ks % 4) >> shift & 15;
        match kind {
            WeightType::Q4_0 => {
                number(p, 512 + 2 * (g * 4 + channel / 32 * 2 + r)) * (nibble(p) as f32 - 8.0)
            }
            WeightType::Q8_0 => {
                let w = word(p, ks / 2 * 128 + lane * 4 + ks % 2 * 2 + channel / 8 % 2);
                let n = (w >> (16 * (channel % 2) + 8 * r)) & 255;
                number(p, 1024 + 2 * (g * 4 + channel / 32 * 2 + r)) * (n as f32 - 128.0)
            }
            WeightType::F16 => {
                number(p, 2 * (ks * 256 + lane * 8 + channel / 8 % 2 * 4 + r * 2 + channel % 2))
            }
            WeightType::Q4_1 => {
                let pair = 512 + 4 * (g * 4 + channel / 32 * 2 + r);
                number(p, pair) * nibble(p) as f32 + number(p, pair + 2)
            }
            WeightType::Mxfp4 => fp4(nibble(p) as u8, p[512 + g * 4 + channel / 32 * 2 + r]),
            WeightType::Q4K | WeightType::Q5K => {
                let s = part + 512 + g * 8 + channel / 32 % 2 * 4 + r * 2;
                let supers = 4 * kind.device_part().0 + 4 * (g * 2 + r);
                let (d, m) = (number(p, supers), number(p, supers + 2));
                let bit = r + channel / 8 % 2 * 2 + 4 * (ks % 4) + channel % 2 * 16;
                let fifth = match kind {
                    WeightType::Q5K => word(&p[part + 576..], lane) >> bit & 1,
                    _ => 0,
                };
                d * f32::from(p[s]) * (nibble(p) | fifth << 4) as f32 - m * f32::from(p[s + 1])
            }
            WeightType::Q6K => {
                let ks = ks % 4;
                let high = word(&p[part + 512..], lane * 2 + ks / 2)
                    >> (2 * r + 4 * (channel / 8 % 2) + 8 * (ks % 2) + 16 * (channel % 2))
                    & 3;
                let s = p[part + 768 + g * 8 + ks * 2 + r].wrapping_sub(128) as i8;
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
