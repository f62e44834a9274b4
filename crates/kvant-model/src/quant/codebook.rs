//! Types whose codes point into a fixed table (the "IQ" types).
//!
//! With `T` the table of 16 levels below, `P` the codebook of 256 points in eight dimensions and `d` the f16 scale:
//!
//! | type | values | value |
//! |---|---|---|
//! | IQ4_NL | 32 | `d·T[q]`, nibbles as in Q4_0 |
//! | IQ4_XS | 256 in 8 groups | `d·(s − 32)·T[q]`, `s` 6 bits, nibbles of each group as in Q4_0 |
//! | IQ2_XXS | 256 in 8 groups of 4 points | `d·(s + ½)/4 · ±P[q]`, `s` 4 bits, `q` 8 bits |

use super::codebook_points::POINTS;
use super::f16_at;

/// The sixteen levels: denser near zero, as weights are.
pub(super) const LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The magnitudes a codebook point is made of, by its 2-bit codes (3 does not occur).
const MAGNITUDES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];

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

/// `d, group[8]`, a group being four point numbers and a 32-bit word: seven sign bits for each point, then the
/// scale in the top four. The eighth sign of a point makes the number of minus signs even.
#[inline(always)]
pub(super) fn iq2_xxs(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<66>().0.iter().zip(out.as_chunks_mut::<256>().0) {
        let d = f16_at(block, 0);
        for (group, values) in block[2..].as_chunks::<8>().0.iter().zip(values.chunks_exact_mut(32)) {
            let word = u32::from_le_bytes([group[4], group[5], group[6], group[7]]);
            let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
            for (k, values) in values.chunks_exact_mut(8).enumerate() {
                let point = POINTS[usize::from(group[k])];
                let seven = word >> (7 * k) & 127;
                let signs = seven | (seven.count_ones() & 1) << 7;
                for (j, value) in values.iter_mut().enumerate() {
                    let magnitude = scale * MAGNITUDES[usize::from(point >> (2 * j) & 3)];
                    *value = if signs >> j & 1 == 1 { -magnitude } else { magnitude };
                }
            }
        }
    }
}
