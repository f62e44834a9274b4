//! Codes of 4 or 8 bits with an f16 scale for every 16 of 32, or for 64: kvant's own types beside those of 32.
//!
//! | type | bytes | value |
//! |---|---|---|
//! | int4g16 | `d[2], nibble[32]` | `d[i / 16]·(q − 8)` |
//! | int4g64 | `d, nibble[32], nibble[32]` | `d·(q − 8)` |
//! | int8g16 | `d[2], i8[32]` | `d[i / 16]·q` |
//! | int8g64 | `d, i8[64]` | `d·q` |
//!
//! Nibbles lie as in the types of 32: nibble `i < 16` of 32 is the low half of byte `i`, nibble `i + 16` its high half.

use super::f16_at;

/// Scales before the codes of a block: two of 32 values, one of 64.
const fn scales(len: usize) -> usize {
    if len == 32 { 2 } else { 1 }
}

/// The scale of value `i`.
#[inline(always)]
fn scale<const LEN: usize>(block: &[u8], i: usize) -> f32 {
    f16_at(block, 2 * (i * scales(LEN) / LEN))
}

#[inline(always)]
pub(super) fn int4<const BYTES: usize, const LEN: usize>(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0);
    for (block, values) in blocks {
        let codes = &block[2 * scales(LEN)..];
        for (i, value) in values.iter_mut().enumerate() {
            let byte = codes[i / 32 * 16 + i % 16];
            let nibble = if i % 32 < 16 { byte & 15 } else { byte >> 4 };
            *value = (f32::from(nibble) - 8.0) * scale::<LEN>(block, i);
        }
    }
}

#[inline(always)]
pub(super) fn int8<const BYTES: usize, const LEN: usize>(bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0);
    for (block, values) in blocks {
        let codes = &block[2 * scales(LEN)..];
        for (i, value) in values.iter_mut().enumerate() {
            *value = f32::from(codes[i].cast_signed()) * scale::<LEN>(block, i);
        }
    }
}
