//! Floats of four and eight bits, and the blocks that are made of them.
//!
//! A 4-bit float (E2M1) has a sign, two bits of exponent and one of mantissa: ±0, ½, 1, 1½, 2, 3, 4, 6. [`TWICE`] has twice
//! these values, which are integers; scales are halved in return. An 8-bit float (E4M3) has no infinities, and one NaN of
//! either sign.
//!
//! | type | values | bytes | value |
//! |---|---|---|---|
//! | MXFP4 | 32 | `e, nibble[32]` | `2^(e − 128) · TWICE[q]`, nibbles as in Q4_0 |
//! | NVFP4 | 64 in 4 groups | `s[4], nibble[4][16]` | `s/2 · TWICE[q]`, `s` an E4M3 without sign |
//! | F4_E2M1 | 2 | `nibble[2]` | `½ · TWICE[q]`, times a scale that lies elsewhere |
//! | F8_E4M3 | 1 | `f` | `f`, times a scale that lies elsewhere |
//!
//! In a group of NVFP4 byte `i` holds values `i` and `i + 8`; a pair of F4_E2M1 has its first value in the low half.

/// Twice the values of the sixteen codes.
pub(super) const TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

#[inline(always)]
fn twice(code: u8) -> f32 {
    f32::from(TWICE[usize::from(code & 15)])
}

/// Half of 2^(e − 127). The two smallest are subnormal.
#[inline(always)]
pub(crate) fn half_power(e: u8) -> f32 {
    let bits = if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 };
    f32::from_bits(bits)
}

/// The magnitude of an E4M3, as if it had no NaN. The exponent is moved by a product with 2¹²⁰, which is exact and puts
/// subnormal numbers right too.
#[inline(always)]
fn magnitude(code: u8) -> f32 {
    f32::from_bits(u32::from(code & 0x7f) << 20) * f32::from_bits((127 + 120) << 23)
}

/// `e, nibble[32]`.
#[inline(always)]
pub(super) fn mxfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<17>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let scale = half_power(block[0]);
        for (i, byte) in block[1..].iter().enumerate() {
            values[i] = scale * twice(*byte);
            values[i + 16] = scale * twice(byte >> 4);
        }
    }
}

/// `s[4], nibble[4][16]`. Scale code 0x7f, a NaN elsewhere, stands for zero here.
#[inline(always)]
pub(super) fn nvfp4(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.as_chunks::<36>().0.iter().zip(out.as_chunks_mut::<64>().0) {
        let (scales, codes) = block.split_at(4);
        for (group, values) in values.chunks_exact_mut(16).enumerate() {
            let scale = if scales[group] == 0x7f { 0.0 } else { magnitude(scales[group]) * 0.5 };
            for (i, byte) in codes[8 * group..][..8].iter().enumerate() {
                values[i] = scale * twice(*byte);
                values[i + 8] = scale * twice(byte >> 4);
            }
        }
    }
}

/// Pairs of 4-bit floats.
#[inline(always)]
pub(super) fn f4_e2m1(bytes: &[u8], out: &mut [f32]) {
    for (byte, values) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *values = [0.5 * twice(*byte), 0.5 * twice(byte >> 4)];
    }
}

/// 8-bit floats.
#[inline(always)]
pub(super) fn f8_e4m3(bytes: &[u8], out: &mut [f32]) {
    for (&code, value) in bytes.iter().zip(out) {
        let size = if code & 0x7f == 0x7f { f32::NAN } else { magnitude(code) };
        *value = if code < 0x80 { size } else { -size };
    }
}
