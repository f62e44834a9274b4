//! The scale and the minimum of a group on its own.

use super::super::fit::sum;
use super::{GROUP, codes, lanes, reciprocal};
use kvant_simd::{LANES, Simd};

/// Steps between the least and the largest value of a group that are tried: more than 15 where the ends are cut off.
const RANGES: [f32; LANES] =
    [13.2, 13.4, 13.55, 13.7, 13.85, 14.0, 14.15, 14.3, 14.5, 14.7, 14.9, 15.1, 15.3, 15.5, 15.7, 15.9];

/// What a group is fitted to: its values from the least on, so that squares have no more digits than they need.
struct Fit<'g> {
    y: [f32; GROUP],
    w: &'g [f32; GROUP],
    /// The least value, or zero.
    low: f32,
    /// Σ w and Σ w·y.
    all: f32,
    first: f32,
}

impl Fit<'_> {
    /// For a candidate in every lane: the scale and the offset of `y ≈ scale · q + offset` of least squared error, where q is the
    /// code of `(y + shift) · inverse`, and how much of Σ w·y² they explain.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn of_codes<S: Simd>(&self, shift: S::F, inverse: S::F) -> (S::F, S::F, S::F) {
        // SAFETY: the caller's contract.
        unsafe {
            let zero = S::splat(0.0);
            let (mut q, mut qq, mut qy) = (zero, zero, zero);
            for i in 0..GROUP {
                let y = S::splat(self.y[i]);
                let code = codes::<S>(S::mul(S::add(y, shift), inverse));
                let wq = S::mul(S::splat(self.w[i]), code);
                q = S::add(q, wq);
                qq = S::add(qq, S::mul(wq, code));
                qy = S::add(qy, S::mul(wq, y));
            }
            let (all, first, bound) = (S::splat(self.all), S::splat(self.first), S::splat(-self.low));
            let determinant = S::sub(S::mul(all, qq), S::mul(q, q));
            let free = S::div(S::sub(S::mul(qq, first), S::mul(q, qy)), determinant);
            // Nothing above zero can be taken off.
            let offset = S::select_gt(free, bound, bound, free);
            let bounded = S::div(S::sub(qy, S::mul(offset, q)), qq);
            let unbounded = S::div(S::sub(S::mul(all, qy), S::mul(first, q)), determinant);
            let scale = S::select_gt(free, bound, bounded, unbounded);
            let linear = S::add(S::mul(scale, qy), S::mul(offset, first));
            let cross = S::mul(S::mul(scale, offset), q);
            let squares = S::add(
                S::add(S::mul(S::mul(scale, scale), qq), S::add(cross, cross)),
                S::mul(S::mul(offset, offset), all),
            );
            let explained = S::sub(S::add(linear, linear), squares);
            let never = S::splat(f32::NEG_INFINITY);
            let explained = S::select_gt(determinant, zero, explained, never);
            (scale, offset, S::select_gt(scale, zero, explained, never))
        }
    }
}

/// The scale and the minimum, neither negative, of smallest weighted error on a grid of ranges.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(super) unsafe fn group<S: Simd>(x: &[f32; GROUP], w: &[f32; GROUP]) -> (f32, f32) {
    // SAFETY: the caller's contract; a group has twice as many values as there are lanes.
    let (lows, highs) = unsafe {
        let (a, b) = (S::load(x.as_ptr()), S::load(x[LANES..].as_ptr()));
        (lanes::<S>(S::min(a, b)), lanes::<S>(S::max(a, b)))
    };
    let low = lows.into_iter().fold(0.0, |low, x| if x < low { x } else { low });
    let high = highs.into_iter().fold(f32::MIN, |high, x| if x > high { x } else { high });
    if high <= low {
        return (0.0, -low);
    }
    let mut y = [0.0f32; GROUP];
    for i in 0..GROUP {
        y[i] = x[i] - low;
    }
    let fit = Fit { y, w, low, all: sum::<GROUP>(|i| w[i]), first: sum::<GROUP>(|i| w[i] * y[i]) };
    let (mut best, mut most) = (((high - low) / 15.0, -low), f32::NEG_INFINITY);
    // SAFETY: the caller's contract; there are as many ranges as lanes.
    unsafe {
        let mut shift = S::splat(0.0);
        let mut inverse = S::div(S::load(RANGES.as_ptr()), S::splat(high - low));
        for _ in 0..2 {
            let (scale, offset, explained) = fit.of_codes::<S>(shift, inverse);
            let (scales, offsets, found) = (lanes::<S>(scale), lanes::<S>(offset), lanes::<S>(explained));
            for lane in 0..LANES {
                if found[lane] > most {
                    (best, most) = ((scales[lane], -(offsets[lane] + low)), found[lane]);
                }
            }
            (shift, inverse) = (S::sub(S::splat(0.0), offset), reciprocal::<S>(scale));
        }
    }
    best
}
