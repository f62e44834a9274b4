//! MXFP4: 32 numbers of four bits, E2M1, under a power of two, E8M0 (OCP microscaling formats, version 1.0).
//!
//! `e, nibble[32]`, value `2^(e − 127) · v`, where `v` is ±{0, ½, 1, 1½, 2, 3, 4, 6} by the low three bits of the nibble and
//! its sign the fourth. Plain: `e = ⌊log₂ max|x|⌋ − 2 + 127`, so that the largest value is below 8 in units of the scale, and
//! the nearest number, the smaller of two that are equally near. With importance the exponents beside it are tried too.

use super::block32::error;
use super::fit::extreme;

const LEN: usize = 32;
/// Half-way between neighbours of the magnitudes 0, ½, 1, 1½, 2, 3, 4, 6.
const BETWEEN: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
/// The magnitudes by code.
pub(super) const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[inline(always)]
pub(super) fn mxfp4(x: &[f32; LEN], weights: Option<&[f32; LEN]>, out: &mut [u8; 17]) -> bool {
    let largest = extreme(x).abs();
    let exponent = if largest > 0.0 { (floor_log2(largest) + 125).clamp(0, 254) } else { 0 };
    let mut best = exponent as u8;
    if let Some(w) = weights {
        let mut least = f32::INFINITY;
        for e in [exponent, exponent - 1, exponent + 1] {
            let Ok(e @ 0..=254) = u8::try_from(e) else { continue };
            let (scale, codes) = (power(e), codes(x, e));
            let found = error(x, w, |i| scale * number(codes[i]));
            if found < least {
                (best, least) = (e, found);
            }
        }
    }
    let codes = codes(x, best);
    out[0] = best;
    for i in 0..LEN / 2 {
        out[1 + i] = codes[i] | codes[i + LEN / 2] << 4;
    }
    true
}

#[inline(always)]
fn codes(x: &[f32; LEN], e: u8) -> [u8; LEN] {
    // Division by a power of two is exact where the quotient is a normal number; f64 has room for all.
    let inverse = 1.0 / f64::from(power(e));
    let mut codes = [0; LEN];
    for i in 0..LEN {
        let magnitude = (f64::from(x[i].abs()) * inverse) as f32;
        let code = BETWEEN.iter().map(|&bound| u8::from(magnitude > bound)).sum::<u8>();
        // There is no minus zero: the code of zero comes first.
        codes[i] = if x[i] < 0.0 && code > 0 { code | 8 } else { code };
    }
    codes
}

#[inline(always)]
fn number(code: u8) -> f32 {
    let magnitude = MAGNITUDES[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// `2^(e − 127)`.
#[inline(always)]
pub(super) fn power(e: u8) -> f32 {
    // The least is a subnormal number.
    f32::from_bits(if e == 0 { 1 << 22 } else { u32::from(e) << 23 })
}

/// ⌊log₂ x⌋ of a positive number.
#[inline(always)]
fn floor_log2(x: f32) -> i32 {
    let exponent = (x.to_bits() >> 23) as i32 - 127;
    // Below the normal numbers the first set bit tells.
    if exponent == -127 { 31 - x.to_bits().leading_zeros() as i32 - 149 } else { exponent }
}
