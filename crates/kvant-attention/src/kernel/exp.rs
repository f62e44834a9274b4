//! Powers of two and the hyperbolic tangent, sixteen at a time.

use kvant_simd::Simd;

/// (2^f − 1) / f on 0 … 1: interpolated at the Chebyshev nodes, so that 2^0 is exactly 1 and the error stays at one unit
/// in the last place.
const POWER: [f32; 6] =
    [std::f32::consts::LN_2, 0.240_227_2, 0.055_496_022, 0.009_652_195_5, 0.001_269_216_6, 0.000_208_179_15];

/// 2^x for x up to 126; zero below −126, where the smallest normal number is, and for NaN.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let part = S::fraction(x);
        let mut y = S::splat(POWER[5]);
        for c in [POWER[4], POWER[3], POWER[2], POWER[1], POWER[0], 1.0] {
            y = S::fma(y, part, S::splat(c));
        }
        S::power_gt(x, S::splat(-126.0), y)
    }
}

/// tanh x, to about 1e-7 of 1.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        // tanh |x| = 1 − 2/(e^{2|x|} + 1), which is 1 in f32 long before |x| = 20.
        let size = S::min(S::abs(x), S::splat(20.0));
        let power = exp2::<S>(S::mul(size, S::splat(2.0 * std::f32::consts::LOG2_E)));
        let one = S::splat(1.0);
        let y = S::sub(one, S::div(S::splat(2.0), S::add(power, one)));
        S::select_gt(S::splat(0.0), x, S::sub(S::splat(0.0), y), y)
    }
}
