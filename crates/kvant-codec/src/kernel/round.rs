//! Rounding a folded query, or folded weights, to signed bytes.
//!
//! The integer dot product multiplies codes with signed bytes. Against codes of five bits and fewer one byte is
//! plenty: its rounding adds about a hundredth of the codes' own noise power. Against wider codes it would dominate,
//! so there the number is split in two bytes, v = 256·high + low, and the kernel runs two dot products.

use crate::simd::{LANES, Simd};

/// How many bytes a query or a weight is rounded to against codes of this width.
pub(crate) const fn planes(bits: u32) -> usize {
    if bits >= 6 { 2 } else { 1 }
}

/// What the rounding of a run of numbers came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rounded {
    /// One unit of the integers.
    pub step: f32,
    /// Sum of the integers.
    pub sum: f32,
}

/// Rounds `len` floats (a multiple of 16, `top` the largest magnitude) to bytes. The high plane, where there is one,
/// goes to `bytes + plane`.
///
/// # Safety
/// `x` is valid for `len` floats, `bytes` for `len` bytes at every plane; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn round_bytes<S: Simd, const PLANES: usize>(
    x: *const f32,
    len: usize,
    top: f32,
    bytes: *mut i8,
    plane: usize,
) -> Rounded {
    let limit = if PLANES == 2 { 127.0 * 256.0 + 127.0 } else { 127.0 };
    let (step, inverse) =
        if top > f32::MIN_POSITIVE * 64.0 * 1024.0 { (top / limit, limit / top) } else { (0.0, 0.0) };
    // SAFETY: the caller's contract; c + 16 ≤ len.
    unsafe {
        let inverse = S::splat(inverse);
        let mut sum = S::splat(0.0);
        let mut c = 0;
        while c < len {
            let rounded = S::round(S::mul(S::load(x.add(c)), inverse));
            let value = S::to_f(rounded);
            sum = S::add(sum, value);
            if PLANES == 2 {
                // A quarter breaks the tie at ±128, which would not fit the low byte.
                let high = S::round(S::mul(S::add(value, S::splat(0.25)), S::splat(1.0 / 256.0)));
                S::store_low_bytes(bytes.add(plane + c).cast(), high);
            }
            S::store_low_bytes(bytes.add(c).cast(), rounded);
            c += LANES;
        }
        Rounded { step, sum: S::reduce_add(sum) }
    }
}
