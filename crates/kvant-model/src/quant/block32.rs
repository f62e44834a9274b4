//! Blocks of 32 with one scale, and perhaps one minimum, in f16.
//!
//! With `d` the scale and `m` the minimum, value `i` of a block is
//!
//! | type | bytes | value |
//! |---|---|---|
//! | Q4_0, int4g32 | `d, nibble[32]` | `d·(q − 8)` |
//! | Q4_1 | `d, m, nibble[32]` | `d·q + m` |
//! | Q5_0 | `d, high[32 bits], nibble[32]` | `d·(q + 16·h − 16)` |
//! | Q5_1 | `d, m, high[32 bits], nibble[32]` | `d·(q + 16·h) + m` |
//! | Q8_0, int8g32 | `d, i8[32]` | `d·q` |
//!
//! Nibble `i < 16` is the low half of byte `i`, nibble `i + 16` its high half; high bit `i` is bit `i` of a
//! little-endian 32-bit word.

use super::f16_at;

const LEN: usize = 32;

/// Each block of `BYTES` bytes with the place of its 32 values. An iterator and not a callback: a closure would be
/// compiled once, for the plainest instruction set.
#[inline(always)]
fn blocks<'a, const BYTES: usize>(
    bytes: &'a [u8],
    out: &'a mut [f32],
) -> impl Iterator<Item = (&'a [u8; BYTES], &'a mut [f32; LEN])> {
    bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0)
}

/// Both nibbles of byte `i`, for values `i` and `i + 16`.
#[inline(always)]
fn nibbles(packed: &[u8], i: usize) -> (u32, u32) {
    (u32::from(packed[i] & 15), u32::from(packed[i] >> 4))
}

/// The 5-bit codes of values `i` and `i + 16`.
#[inline(always)]
fn five_bits(high: u32, packed: &[u8], i: usize) -> (u32, u32) {
    let (low, upper) = nibbles(packed, i);
    (low | (high >> i & 1) << 4, upper | (high >> (i + 16) & 1) << 4)
}

#[inline(always)]
fn high_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

#[inline(always)]
pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<18>(bytes, out) {
        let d = f16_at(block, 0);
        for i in 0..LEN / 2 {
            let (a, b) = nibbles(&block[2..], i);
            values[i] = (a as f32 - 8.0) * d;
            values[i + 16] = (b as f32 - 8.0) * d;
        }
    }
}

#[inline(always)]
pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<20>(bytes, out) {
        let (d, m) = (f16_at(block, 0), f16_at(block, 2));
        for i in 0..LEN / 2 {
            let (a, b) = nibbles(&block[4..], i);
            values[i] = a as f32 * d + m;
            values[i + 16] = b as f32 * d + m;
        }
    }
}

#[inline(always)]
pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<22>(bytes, out) {
        let (d, high) = (f16_at(block, 0), high_bits(block, 2));
        for i in 0..LEN / 2 {
            let (a, b) = five_bits(high, &block[6..], i);
            values[i] = (a as f32 - 16.0) * d;
            values[i + 16] = (b as f32 - 16.0) * d;
        }
    }
}

#[inline(always)]
pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<24>(bytes, out) {
        let (d, m, high) = (f16_at(block, 0), f16_at(block, 2), high_bits(block, 4));
        for i in 0..LEN / 2 {
            let (a, b) = five_bits(high, &block[8..], i);
            values[i] = a as f32 * d + m;
            values[i + 16] = b as f32 * d + m;
        }
    }
}

#[inline(always)]
pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in blocks::<34>(bytes, out) {
        let d = f16_at(block, 0);
        for (value, &code) in values.iter_mut().zip(&block[2..]) {
            *value = f32::from(code.cast_signed()) * d;
        }
    }
}
