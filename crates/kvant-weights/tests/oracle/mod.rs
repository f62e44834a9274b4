//! The block formats by their formulas, one weight at a time, in f64.

use half::f16;
use kvant_weights::Layout;

/// A small generator (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }

    /// Roughly normal: a sum of uniform numbers.
    pub fn normal(&mut self) -> f32 {
        (0..6).map(|_| self.uniform()).sum::<f32>() - 3.0
    }
}

/// Random blocks with scales of an ordinary size: every code and byte scale occurs.
pub fn random_blocks(layout: Layout, rows: usize, columns: usize, random: &mut Random) -> Vec<u8> {
    let mut blocks = Vec::new();
    for _ in 0..rows * columns / layout.block_len() {
        let start = blocks.len();
        blocks.extend((0..layout.block_bytes()).map(|_| random.bits() as u8));
        if layout == Layout::MXFP4 {
            // Exponents near those of weights, and now and then any.
            let any = random.bits().is_multiple_of(64);
            blocks[start] = if any { random.bits() as u8 % 140 } else { 110 + random.bits() as u8 % 16 };
        }
        for at in halves(layout) {
            let scale = f16::from_f32(random.normal() * 0.02).to_bits().to_le_bytes();
            blocks[start + at..][..2].copy_from_slice(&scale);
        }
    }
    blocks
}

/// Where the f16 numbers of a block are.
fn halves(layout: Layout) -> &'static [usize] {
    match layout {
        Layout::Q4_0 | Layout::Q5_0 | Layout::Q8_0 => &[0],
        Layout::Q4_1 | Layout::Q5_1 | Layout::Q4K | Layout::Q5K => &[0, 2],
        Layout::Q6K => &[208],
        Layout::Q2K => &[80, 82],
        Layout::Q3K => &[108],
        Layout::IQ4NL | Layout::IQ4XS => &[0],
        Layout::MXFP4 => &[],
        Layout::Int4G16 | Layout::Int8G16 => &[0, 2],
        Layout::Int4G64 | Layout::Int8G64 => &[0],
    }
}

/// The weights of a row.
pub fn decode_row(layout: Layout, row: &[u8]) -> Vec<f64> {
    row.chunks_exact(layout.block_bytes())
        .flat_map(|block| (0..layout.block_len()).map(move |i| weight(layout, block, i)))
        .collect()
}

fn half(block: &[u8], at: usize) -> f64 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f64()
}

/// Nibble `i` of 32 in 16 bytes.
fn nibble(bytes: &[u8], i: usize) -> f64 {
    f64::from(if i < 16 { bytes[i] & 15 } else { bytes[i - 16] >> 4 })
}

fn bit(bytes: &[u8], i: usize) -> f64 {
    f64::from(bytes[i / 8] >> (i % 8) & 1)
}

/// The six-bit scale (`kind` 0) or minimum (1) of group `g` of `Q4_K` and `Q5_K`.
fn six_bits(packed: &[u8], g: usize, kind: usize) -> f64 {
    let first = packed[4 * kind + g % 4];
    if g < 4 {
        return f64::from(first & 63);
    }
    let nibbles = packed[8 + g % 4];
    let low = if kind == 0 { nibbles & 15 } else { nibbles >> 4 };
    f64::from(low | first >> 6 << 4)
}

const IQ4: [f64; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

fn weight(layout: Layout, block: &[u8], i: usize) -> f64 {
    match layout {
        Layout::Q4_0 => half(block, 0) * (nibble(&block[2..], i) - 8.0),
        Layout::Q4_1 => half(block, 0) * nibble(&block[4..], i) + half(block, 2),
        Layout::Q5_0 => half(block, 0) * (nibble(&block[6..], i) + 16.0 * bit(&block[2..], i) - 16.0),
        Layout::Q5_1 => {
            half(block, 0) * (nibble(&block[8..], i) + 16.0 * bit(&block[4..], i)) + half(block, 2)
        }
        Layout::Q8_0 => half(block, 0) * f64::from(block[2 + i] as i8),
        Layout::Q4K | Layout::Q5K => {
            let (group, l) = (i / 32, i % 32);
            let codes = if layout == Layout::Q4K { &block[16..] } else { &block[48..] };
            let code = f64::from(codes[32 * (group / 2) + l] >> (4 * (group % 2)) & 15);
            let fifth = if layout == Layout::Q4K { 0.0 } else { f64::from(block[16 + l] >> group & 1) };
            let scale = half(block, 0) * six_bits(&block[4..16], group, 0);
            scale * (code + 16.0 * fifth) - half(block, 2) * six_bits(&block[4..16], group, 1)
        }
        Layout::Q6K => {
            let (part, k, l) = (i / 128, i % 128 / 32, i % 32);
            let low = block[64 * part + 32 * (k % 2) + l] >> (4 * (k / 2)) & 15;
            let high = block[128 + 32 * part + l] >> (2 * k) & 3;
            let scale = f64::from(block[192 + i / 16] as i8);
            half(block, 208) * scale * (f64::from(low) + 16.0 * f64::from(high) - 32.0)
        }
        Layout::Q2K => {
            let code = f64::from(block[16 + i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3);
            let (scale, minimum) = (f64::from(block[i / 16] & 15), f64::from(block[i / 16] >> 4));
            half(block, 80) * scale * code - half(block, 82) * minimum
        }
        Layout::Q3K => {
            let (g, packed) = (i / 16, &block[96..108]);
            let low = packed[g % 8] >> (4 * (g / 8)) & 15;
            let scale = f64::from(low) + 16.0 * f64::from(packed[8 + g % 4] >> (2 * (g / 4)) & 3) - 32.0;
            let code = block[32 + i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3;
            let third = f64::from(block[i % 32] >> (i / 32) & 1);
            half(block, 108) * scale * (f64::from(code) + 4.0 * third - 4.0)
        }
        Layout::Int4G16 => half(block, 2 * (i / 16)) * (nibble(&block[4..], i) - 8.0),
        Layout::Int4G64 => half(block, 0) * (nibble(&block[2 + i / 32 * 16..], i % 32) - 8.0),
        Layout::Int8G16 => half(block, 2 * (i / 16)) * f64::from(block[4 + i] as i8),
        Layout::Int8G64 => half(block, 0) * f64::from(block[2 + i] as i8),
        Layout::IQ4NL => half(block, 0) * IQ4[nibble(&block[2..], i) as usize],
        Layout::IQ4XS => {
            let g = i / 32;
            let low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
            let high = block[2 + g / 4] >> (2 * (g % 4)) & 3;
            let scale = f64::from(low) + 16.0 * f64::from(high) - 32.0;
            half(block, 0) * scale * IQ4[nibble(&block[8 + 16 * g..], i % 32) as usize]
        }
        Layout::MXFP4 => {
            let code = nibble(&block[1..], i) as usize;
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let (exponent, mantissa) = (code % 8 / 2, (code % 2) as f64);
            let size = if exponent == 0 {
                mantissa / 2.0
            } else {
                (1.0 + mantissa / 2.0) * [1.0, 2.0, 4.0][exponent - 1]
            };
            sign * size * 2f64.powi(i32::from(block[0]) - 127)
        }
    }
}
