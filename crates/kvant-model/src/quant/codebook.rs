//! Types whose codes point into a fixed table (the "IQ" types).
//!
//! With `T` the table of 16 levels below, `P` the type's codebook of points in eight (IQ2) or four (IQ3) dimensions, `d`
//! the f16 scale and `s` a scale of 4 bits (of 6 in IQ4_XS):
//!
//! | type | values | value |
//! |---|---|---|
//! | IQ4_NL | 32 | `d·T[q]`, nibbles as in Q4_0 |
//! | IQ4_XS | 256 in 8 groups | `d·(s − 32)·T[q]`, nibbles of each group as in Q4_0 |
//! | IQ3_S | 256 in 8 groups of 8 points | `d·(2s + 1) · ±P[q]`, `q` 9 bits |
//! | IQ3_XXS | 256 in 8 groups of 8 points | `d·(s + ½)/2 · ±P[q]`, `q` 8 bits |
//! | IQ2_S | 256 in 16 groups of 2 points | `d·(s + ½)/4 · ±P[q]`, `q` 10 bits |
//! | IQ2_XS | 256 in 16 groups of 2 points | `d·(s + ½)/4 · ±P[q]`, `q` 9 bits |
//! | IQ2_XXS | 256 in 8 groups of 4 points | `d·(s + ½)/4 · ±P[q]`, `q` 8 bits |
//!
//! Signs are a bit for each value in the types ending in S. The others store seven for every eight values; the eighth makes
//! the number of minus signs even.

use super::codebook_points::{IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS};
use super::f16_at;

/// The sixteen levels: denser near zero, as weights are.
pub(super) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The magnitudes a point of the IQ2 types is made of, by its 2-bit codes (3 does not occur).
const IQ2_MAGNITUDES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];

/// The magnitudes of IQ3_XXS, and those of IQ3_S.
const IQ3_XXS_MAGNITUDES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
const IQ3_S_MAGNITUDES: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// Sixteen bytes of nibbles through the table: byte `i` holds values `i` and `i + 16`.
#[inline(always)]
fn levels(packed: &[u8], scale: f32, values: &mut [f32]) {
    for (i, byte) in packed.iter().take(16).enumerate() {
        values[i] = scale * f32::from(LEVELS[usize::from(byte & 15)]);
        values[i + 16] = scale * f32::from(LEVELS[usize::from(byte >> 4)]);
    }
}

/// `d, nibble[32]`.
#[inline(always)]
pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<18>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        levels(&block[2..], f16_at(block, 0), values);
    }
}

/// `d, high[16 bits], low[4], nibble[256]`: scale `g` has nibble `g` of `low` and bits `2g` of `high`.
#[inline(always)]
pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<136>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, high, low) = (f16_at(block, 0), u16::from_le_bytes([block[2], block[3]]), &block[4..8]);
        for (group, values) in values.chunks_exact_mut(32).enumerate() {
            let lower = u16::from(low[group / 2] >> (4 * (group % 2)) & 15);
            let scale = lower | (high >> (2 * group) & 3) << 4;
            levels(&block[8 + 16 * group..], d * (f32::from(scale) - 32.0), values);
        }
    }
}

/// The values of a point: `BITS` bits of it for each magnitude, a bit of `signs` for each sign.
#[inline(always)]
fn point<const BITS: usize, const N: usize>(
    point: u16,
    magnitudes: &[f32; N],
    signs: u32,
    scale: f32,
    values: &mut [f32],
) {
    for (j, value) in values.iter_mut().enumerate() {
        let magnitude = scale * magnitudes[usize::from(point >> (BITS * j)) % N];
        *value = if signs >> j & 1 == 1 { -magnitude } else { magnitude };
    }
}

/// Eight signs of which seven are stored: the number of minus signs is even.
#[inline(always)]
fn even(seven: u32) -> u32 {
    seven | (seven.count_ones() & 1) << 7
}

/// Nibble `i` of a list.
#[inline(always)]
fn nibble(list: &[u8], i: usize) -> f32 {
    f32::from(list[i / 2] >> (4 * (i % 2)) & 15)
}

/// `d, group[8]`, a group being four point numbers and a 32-bit word: seven sign bits for each point, then the
/// scale in the top four.
#[inline(always)]
pub(super) fn iq2_xxs(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<66>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let d = f16_at(block, 0);
        for (group, values) in block[2..].as_chunks::<8>().0.iter().zip(values.chunks_exact_mut(32)) {
            let word = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (k, values) in values.chunks_exact_mut(8).enumerate() {
                let signs = even(word >> (7 * k) & 127);
                point::<2, 4>(IQ2_XXS[usize::from(group[k])], &IQ2_MAGNITUDES, signs, scale, values);
            }
        }
    }
}

/// `d, point[32] (u16), scale[8]`: a point's number in nine bits, then its seven sign bits; a nibble of scale for two points.
#[inline(always)]
pub(super) fn iq2_xs(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<74>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, scales) = (f16_at(block, 0), &block[66..]);
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let code = u16::from_le_bytes([block[2 + 2 * k], block[3 + 2 * k]]);
            let scale = d * (0.5 + nibble(scales, k / 2)) * 0.25;
            let signs = even(u32::from(code >> 9));
            point::<2, 4>(IQ2_XS[usize::from(code & 511)], &IQ2_MAGNITUDES, signs, scale, values);
        }
    }
}

/// `d, low[32], signs[32], high[8], scale[8]`: point `k` has byte `k` of `low`, crumb `k` of `high` above it, and byte `k`
/// of signs; scales as in IQ2_XS.
#[inline(always)]
pub(super) fn iq2_s(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<82>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, low, signs) = (f16_at(block, 0), &block[2..34], &block[34..66]);
        let (high, scales) = (&block[66..74], &block[74..]);
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let upper = usize::from(high[k / 4] >> (2 * (k % 4)) & 3);
            let scale = d * (0.5 + nibble(scales, k / 2)) * 0.25;
            let number = usize::from(low[k]) | upper << 8;
            point::<2, 4>(IQ2_S[number], &IQ2_MAGNITUDES, u32::from(signs[k]), scale, values);
        }
    }
}

/// `d, point[64], word[8] (u32)`: a word has the signs of four times two points and the scale of a group, as in IQ2_XXS.
#[inline(always)]
pub(super) fn iq3_xxs(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<98>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, points) = (f16_at(block, 0), &block[2..66]);
        for (k, values) in values.chunks_exact_mut(8).enumerate() {
            let at = 66 + 4 * (k / 4);
            let word = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
            let signs = even(word >> (7 * (k % 4)) & 127);
            let (first, second) = values.split_at_mut(4);
            let numbers = [usize::from(points[2 * k]), usize::from(points[2 * k + 1])];
            point::<4, 8>(IQ3_XXS[numbers[0]], &IQ3_XXS_MAGNITUDES, signs, scale, first);
            point::<4, 8>(IQ3_XXS[numbers[1]], &IQ3_XXS_MAGNITUDES, signs >> 4, scale, second);
        }
    }
}

/// `d, low[64], high[8], signs[32], scale[4]`: point `k` has byte `k` of `low` and bit `k` of `high` above it; a nibble of scale
/// for a group.
#[inline(always)]
pub(super) fn iq3_s(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<110>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let (d, low, high) = (f16_at(block, 0), &block[2..66], &block[66..74]);
        let (signs, scales) = (&block[74..106], &block[106..]);
        for (k, values) in values.chunks_exact_mut(4).enumerate() {
            let number = usize::from(low[k]) | usize::from(high[k / 8] >> (k % 8) & 1) << 8;
            let scale = d * (1.0 + 2.0 * nibble(scales, k / 8));
            let signs = u32::from(signs[k / 2] >> (4 * (k % 2)));
            point::<4, 8>(IQ3_S[number], &IQ3_S_MAGNITUDES, signs, scale, values);
        }
    }
}
