//! Rounding a folded query, or folded weights, to signed bytes.
//!
//! The integer dot product multiplies codes with signed bytes. Against codes of four bits and fewer one byte is enough:
//! on real activations its rounding adds 1.5 % to the noise power of `int4` keys and 2.9 % to that of its values.
//! Against wider codes it would weigh more (12 % at 5 bits) and soon dominate, so there the number is split in two bytes,
//! v = 256·high + low, and the kernel runs two dot products.
//!
//! What is rounded is a product: of a query with the page's channel scales, of weights with the page's token scales, or of a
//! query with ones, where pages have nothing to fold in.

use crate::format::MAX_DIM;
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Ones to fold with where there is nothing to fold.
pub(super) static ONES: [f32; MAX_DIM + LANES] = [1.0; MAX_DIM + LANES];

/// How many bytes a query or a weight is rounded to against codes of this width.
pub(super) const fn planes(bits: u32) -> usize {
    if bits >= 5 { 2 } else { 1 }
}

/// What the rounding of a run of numbers came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounded {
    /// One unit of the integers.
    pub step: f32,
    /// Sum of the integers.
    pub sum: f32,
}

/// The step for a largest magnitude, and its reciprocal; zero where there is nothing to round.
#[inline(always)]
pub(super) fn step(top: f32, planes: usize) -> (f32, f32) {
    let limit = if planes == 2 { 127.0 * 256.0 + 127.0 } else { 127.0 };
    // Below this a reciprocal could overflow.
    if top > 1e-30 { (top * (1.0 / limit), limit / top) } else { (0.0, 0.0) }
}

/// What folding a few rows came to: one unit of each row's integers, and their sums, spread over the lanes. The places
/// past the last row are of no meaning.
pub(super) struct Folded<F> {
    pub steps: [f32; 4],
    pub sums: [F; 4],
}

/// Numbers of a row that stay in registers from the product to the byte.
const HELD: usize = 4 * LANES;

/// Folds one run of factors into H rows and rounds each to bytes by its own step: row h to `bytes + 2·h·plane`, the high
/// plane, where there is one, `plane` after the low.
///
/// # Safety
/// `row` gives H rows of `len` floats, a multiple of 16, `factors` as many; `bytes` has room for two planes of every row;
/// the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn fold<S: Simd, const H: usize>(
    row: impl Fn(usize) -> *const f32,
    factors: *const f32,
    len: usize,
    bits: u32,
    bytes: *mut i8,
    plane: usize,
) -> Folded<S::F> {
    // SAFETY: the caller's contract.
    unsafe {
        let (mut tops, mut sums) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
        let planes = planes(bits);
        if planes == 1 && len == HELD {
            let mut products = [[S::splat(0.0); 4]; H];
            for i in 0..4 {
                let factor = S::load(factors.add(LANES * i));
                for h in 0..H {
                    products[h][i] = S::mul(S::load(row(h).add(LANES * i)), factor);
                }
            }
            for h in 0..H {
                let [a, b, c, d] = products[h];
                let zero = S::splat(0.0);
                tops[h] = S::max(S::max_abs(S::max_abs(zero, a), b), S::max_abs(S::max_abs(zero, c), d));
            }
            let steps = S::reduce4_max(tops).map(|top| step(top, 1));
            for h in 0..H {
                let inverse = S::splat(steps[h].1);
                // No `map`: a closure that is not inlined is compiled without the tier's instructions.
                let mut rounded = [S::izero(); 4];
                for i in 0..4 {
                    rounded[i] = S::round(S::mul(products[h][i], inverse));
                }
                let narrow = S::narrow(rounded);
                S::bstore(bytes.add(2 * h * plane), narrow);
                sums[h] = S::sum_bytes(narrow);
            }
            return Folded { steps: steps.map(|step| step.0), sums };
        }
        let mut products = [[MaybeUninit::<f32>::uninit(); MAX_DIM + LANES]; H];
        for h in 0..H {
            tops[h] = multiply::<S>(row(h), factors, products[h].as_mut_ptr().cast(), len);
        }
        let steps = S::reduce4_max(tops).map(|top| step(top, planes));
        for h in 0..H {
            let (product, bytes) = (products[h].as_ptr().cast(), bytes.add(2 * h * plane));
            sums[h] = match planes {
                1 => round_bytes::<S, 1>(product, len, steps[h].1, bytes, plane),
                _ => round_bytes::<S, 2>(product, len, steps[h].1, bytes, plane),
            };
        }
        Folded { steps: steps.map(|step| step.0), sums }
    }
}

/// Writes a·b for `len` numbers (a multiple of 16) and returns the largest magnitude per lane.
///
/// # Safety
/// `a`, `b` and `product` are valid for `len` floats; the CPU has the tier.
#[inline(always)]
unsafe fn multiply<S: Simd>(a: *const f32, b: *const f32, product: *mut f32, len: usize) -> S::F {
    // SAFETY: c + 64 or c + 16 ≤ len.
    unsafe {
        let mut top = [S::splat(0.0); 2];
        let mut c = 0;
        while c + 4 * LANES <= len {
            for i in 0..4 {
                let at = c + LANES * i;
                let x = S::mul(S::load(a.add(at)), S::load(b.add(at)));
                S::store(product.add(at), x);
                top[i % 2] = S::max_abs(top[i % 2], x);
            }
            c += 4 * LANES;
        }
        while c < len {
            let x = S::mul(S::load(a.add(c)), S::load(b.add(c)));
            S::store(product.add(c), x);
            top[0] = S::max_abs(top[0], x);
            c += LANES;
        }
        S::max(top[0], top[1])
    }
}

/// Rounds `len` numbers (a multiple of 16) to bytes, the high plane, where there is one, at `bytes + plane`. Returns the
/// sums of the integers, spread over the lanes.
///
/// # Safety
/// `x` is valid for `len` floats, `bytes` for `len` bytes at every plane; the CPU has the tier.
#[inline(always)]
unsafe fn round_bytes<S: Simd, const PLANES: usize>(
    x: *const f32,
    len: usize,
    inverse: f32,
    bytes: *mut i8,
    plane: usize,
) -> S::F {
    // SAFETY: c + 64 or c + 16 ≤ len.
    unsafe {
        let inverse = S::splat(inverse);
        let mut sum = S::splat(0.0);
        let mut c = 0;
        while PLANES == 1 && c + 4 * LANES <= len {
            let mut rounded = [S::izero(); 4];
            for i in 0..4 {
                rounded[i] = S::round(S::mul(S::load(x.add(c + LANES * i)), inverse));
            }
            let narrow = S::narrow(rounded);
            S::bstore(bytes.add(c), narrow);
            sum = S::add(sum, S::sum_bytes(narrow));
            c += 4 * LANES;
        }
        while c < len {
            let rounded = S::round(S::mul(S::load(x.add(c)), inverse));
            let value = S::to_f(rounded);
            sum = S::add(sum, value);
            if PLANES == 2 {
                // A quarter breaks the tie at ±128, which would not fit the low byte.
                let high = S::round(S::mul(S::add(value, S::splat(0.25)), S::splat(1.0 / 256.0)));
                S::store_low_bytes(bytes.add(plane + c).cast(), high);
            }
            // Of a split number this is the low byte of a two's complement integer, which is what a signed byte reads.
            S::store_low_bytes(bytes.add(c).cast(), rounded);
            c += LANES;
        }
        sum
    }
}
