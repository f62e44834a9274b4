//! Blocks as files have them, read into what the packer deals out: codes by the word, scales by the group.

use crate::Layout;
use crate::format::{
    BLOCK, F2K, F3K, F4, F4By16, F4By64, F4Float, F4K, F4Levels, F4LevelsK, F4Min, F5, F5K, F5Min, F6K, F8,
    F8By16, F8By64, Format,
};

/// The codes of 32 inputs of one row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Codes {
    /// Nibbles: word v has inputs 4v … 4v + 3 in the low halves of its bytes and inputs 16 + 4v … in the high ones.
    /// Whole bytes, and codes of two bits in the low bits of bytes: words 0 to 7 have inputs 4v … 4v + 3.
    pub words: [u32; 8],
    /// Bits above the nibbles, or above the two: bit i belongs to input i.
    pub planes: [u32; 2],
}

/// The scales of a unit of one row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scales {
    /// f16 bits: the scale and the minimum, which is added; or the scales of two groups.
    pub halves: [u16; 2],
    /// Byte scales and byte minima of the groups of a unit of 256; the exponent of a unit, where that is its scale.
    pub bytes: [[u8; 2]; 16],
}

/// A format together with the file's way of writing it.
pub(crate) trait Source: Format {
    const LAYOUT: Layout;
    /// The scales of a unit.
    fn scales(unit: &[u8]) -> Scales;
    /// The codes of block `index` of a unit.
    fn codes(unit: &[u8], index: usize) -> Codes;
}

#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn word_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// `N` words from byte `at` on, then zeros.
#[inline(always)]
fn words_at<const N: usize>(bytes: &[u8], at: usize) -> [u32; 8] {
    let bytes = &bytes[at..at + 4 * N];
    let mut words = [0; 8];
    for v in 0..N {
        words[v] = word_at(bytes, 4 * v);
    }
    words
}

/// The file's order of 32 nibbles is ours; `high` is where the fifth bits are.
#[inline(always)]
fn nibbles(unit: &[u8], at: usize, high: Option<usize>) -> Codes {
    let fifth = high.map_or(0, |at| word_at(unit, at));
    Codes { words: words_at::<4>(unit, at), planes: [fifth, 0] }
}

/// Signed bytes become unsigned ones around 128.
#[inline(always)]
fn signed(unit: &[u8], at: usize) -> Codes {
    Codes { words: words_at::<8>(unit, at).map(|w| w ^ 0x8080_8080), planes: [0; 2] }
}

macro_rules! blocks_of_32 {
    ($($format:ident = $layout:ident: minimum $minimum:expr, codes |$unit:ident| $codes:expr;)*) => {
        $(impl Source for $format {
            const LAYOUT: Layout = Layout::$layout;

            #[inline(always)]
            fn scales(unit: &[u8]) -> Scales {
                let minimum = $minimum.map_or(0, |at| half_at(unit, at));
                Scales { halves: [half_at(unit, 0), minimum], ..Scales::default() }
            }

            #[inline(always)]
            fn codes($unit: &[u8], _: usize) -> Codes {
                $codes
            }
        })*
    };
}
blocks_of_32! {
    F4 = Q4_0: minimum None, codes |unit| nibbles(unit, 2, None);
    F4Min = Q4_1: minimum Some(2), codes |unit| nibbles(unit, 4, None);
    F5 = Q5_0: minimum None, codes |unit| nibbles(unit, 6, Some(2));
    F5Min = Q5_1: minimum Some(2), codes |unit| nibbles(unit, 8, Some(4));
    F4Levels = IQ4NL: minimum None, codes |unit| nibbles(unit, 2, None);
    F8 = Q8_0: minimum None, codes |unit| signed(unit, 2);
}

/// `d` of each half of 32 inputs, and codes behind them; or one `d`, and codes of 64 inputs.
macro_rules! other_groups {
    ($($format:ident = $layout:ident: scales $scales:literal, codes |$unit:ident, $at:ident| $codes:expr, of $bytes:literal bytes;)*) => {
        $(impl Source for $format {
            const LAYOUT: Layout = Layout::$layout;

            #[inline(always)]
            fn scales(unit: &[u8]) -> Scales {
                Scales { halves: [half_at(unit, 0), half_at(unit, 2 * ($scales - 1))], ..Scales::default() }
            }

            #[inline(always)]
            fn codes($unit: &[u8], index: usize) -> Codes {
                let $at = 2 * $scales + $bytes * index;
                $codes
            }
        })*
    };
}
other_groups! {
    F4By16 = Int4G16: scales 2, codes |unit, at| nibbles(unit, at, None), of 16 bytes;
    F4By64 = Int4G64: scales 1, codes |unit, at| nibbles(unit, at, None), of 16 bytes;
    F8By16 = Int8G16: scales 2, codes |unit, at| signed(unit, at), of 32 bytes;
    F8By64 = Int8G64: scales 1, codes |unit, at| signed(unit, at), of 32 bytes;
}

/// Scales of `Q4_K` and `Q5_K`: `d, dmin`, then 12 bytes with a six-bit scale and minimum for each of 8 groups.
/// Groups 0 to 3 have a byte each, whose two top bits complete the nibbles of groups 4 to 7.
#[inline(always)]
fn six_bit_scales(unit: &[u8]) -> Scales {
    let packed = &unit[4..16];
    let mut bytes = [[0; 2]; 16];
    for g in 0..8 {
        bytes[g] = if g < 4 {
            [packed[g] & 63, packed[g + 4] & 63]
        } else {
            [packed[g + 4] & 15 | packed[g - 4] >> 6 << 4, packed[g + 4] >> 4 | packed[g] >> 6 << 4]
        };
    }
    // The file subtracts its minima.
    Scales { halves: [half_at(unit, 0), half_at(unit, 2) ^ 0x8000], bytes }
}

/// Nibbles of block `index` where 32 bytes from `at + 32 · (index / 2)` hold two blocks, one in the low halves and one
/// in the high ones.
#[inline(always)]
fn paired_nibbles(unit: &[u8], at: usize, index: usize) -> [u32; 8] {
    const LOW: u32 = 0x0f0f_0f0f;
    let bytes = words_at::<8>(unit, at + 32 * (index / 2));
    let mut words = [0; 8];
    for v in 0..4 {
        let (first, second) = (bytes[v], bytes[v + 4]);
        words[v] = if index.is_multiple_of(2) {
            first & LOW | (second & LOW) << 4
        } else {
            first >> 4 & LOW | second & !LOW
        };
    }
    words
}

/// One bit of each of 32 bytes, as a word. Eight at a time: the product brings bit 0 of byte i to bit 56 + i, and no
/// two terms of it meet.
#[inline(always)]
fn bits(bytes: &[u8], bit: usize) -> u32 {
    let mut word = 0;
    for (i, eight) in bytes[..BLOCK].as_chunks::<8>().0.iter().enumerate() {
        let ones = u64::from_le_bytes(*eight) >> bit & 0x0101_0101_0101_0101;
        let byte = ones.wrapping_mul(0x0102_0408_1020_4080) >> 56;
        word |= (byte as u32) << (8 * i);
    }
    word
}

impl Source for F4K {
    const LAYOUT: Layout = Layout::Q4K;

    #[inline(always)]
    fn scales(unit: &[u8]) -> Scales {
        six_bit_scales(unit)
    }

    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        Codes { words: paired_nibbles(unit, 16, index), planes: [0; 2] }
    }
}

impl Source for F5K {
    const LAYOUT: Layout = Layout::Q5K;

    #[inline(always)]
    fn scales(unit: &[u8]) -> Scales {
        six_bit_scales(unit)
    }

    /// The fifth bit of input l of block g is bit g of byte l of the 32 behind the scales.
    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        Codes { words: paired_nibbles(unit, 48, index), planes: [bits(&unit[16..], index), 0] }
    }
}

impl Source for F6K {
    const LAYOUT: Layout = Layout::Q6K;

    /// `low[128], high[64], scales[16], d`.
    fn scales(unit: &[u8]) -> Scales {
        let mut bytes = [[0; 2]; 16];
        for g in 0..16 {
            bytes[g] = [unit[192 + g], 0];
        }
        Scales { halves: [half_at(unit, 208), 0], bytes }
    }

    /// In each half of the unit, blocks 0 and 2 share 32 low bytes, 1 and 3 the next 32; the upper two bits of
    /// block k are bits 2k and 2k + 1 of 32 high bytes.
    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        let (half, k) = (index / 4, index % 4);
        let low = 64 * half + 32 * (k % 2);
        let high = &unit[128 + 32 * half..];
        let planes = [bits(high, 2 * k), bits(high, 2 * k + 1)];
        Codes { words: paired_nibbles(unit, low, k / 2), planes }
    }
}

/// Codes of two bits of block `index`, where 32 bytes from `at + 32 · (index / 4)` hold four blocks, two bits each.
#[inline(always)]
fn crumbs(unit: &[u8], at: usize, index: usize) -> [u32; 8] {
    words_at::<8>(unit, at + 32 * (index / 4)).map(|word| word >> (2 * (index % 4)) & 0x0303_0303)
}

impl Source for F2K {
    const LAYOUT: Layout = Layout::Q2K;

    /// `scales[16], codes[64], d, dmin`: a byte has a scale and, above it, a minimum.
    fn scales(unit: &[u8]) -> Scales {
        let mut bytes = [[0; 2]; 16];
        for g in 0..16 {
            bytes[g] = [unit[g] & 15, unit[g] >> 4];
        }
        // The file subtracts its minima.
        Scales { halves: [half_at(unit, 80), half_at(unit, 82) ^ 0x8000], bytes }
    }

    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        Codes { words: crumbs(unit, 16, index), planes: [0; 2] }
    }
}

impl Source for F3K {
    const LAYOUT: Layout = Layout::Q3K;

    /// `high[32], codes[64], scales[12], d`: the low nibble of scale g is one of byte g mod 8, its upper two bits are a pair
    /// of byte 8 + g mod 4.
    fn scales(unit: &[u8]) -> Scales {
        let packed = &unit[96..108];
        let mut bytes = [[0; 2]; 16];
        for g in 0..16 {
            let scale = packed[g % 8] >> (4 * (g / 8)) & 15 | (packed[8 + g % 4] >> (2 * (g / 4)) & 3) << 4;
            bytes[g] = [scale.wrapping_sub(32), 0];
        }
        Scales { halves: [half_at(unit, 108), 0], bytes }
    }

    /// The third bit of input l of block b is bit b of byte l.
    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        Codes { words: crumbs(unit, 32, index), planes: [bits(unit, index), 0] }
    }
}

impl Source for F4LevelsK {
    const LAYOUT: Layout = Layout::IQ4XS;

    /// `d, high[16 bits], low[4], nibble[256]`: scale g has nibble g of `low` and bits 2g and 2g + 1 of `high`.
    fn scales(unit: &[u8]) -> Scales {
        let high = half_at(unit, 2);
        let mut bytes = [[0; 2]; 16];
        for g in 0..8 {
            let low = unit[4 + g / 2] >> (4 * (g % 2)) & 15;
            let scale = low | ((high >> (2 * g) & 3) as u8) << 4;
            bytes[g] = [scale.wrapping_sub(32), 0];
        }
        Scales { halves: [half_at(unit, 0), 0], bytes }
    }

    #[inline(always)]
    fn codes(unit: &[u8], index: usize) -> Codes {
        nibbles(unit, 8 + 16 * index, None)
    }
}

impl Source for F4Float {
    const LAYOUT: Layout = Layout::MXFP4;

    /// `e, nibble[32]`.
    fn scales(unit: &[u8]) -> Scales {
        let mut scales = Scales::default();
        scales.bytes[0][0] = unit[0];
        scales
    }

    #[inline(always)]
    fn codes(unit: &[u8], _: usize) -> Codes {
        nibbles(unit, 1, None)
    }
}
