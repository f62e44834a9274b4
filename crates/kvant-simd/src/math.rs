//! Functions of a vector, made of the vocabulary: element-wise, so every tier gives the same bits.

use crate::Simd;

/// eˣ, within two units in the last place; zero below about −87.3, where the result would be subnormal, and the
/// largest finite value's neighbourhood above 88.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; eʳ by its Taylor polynomial of degree 7 and 2ⁿ by the exponent's bits.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    const SMALLEST: f32 = -87.336_54;
    const LARGEST: f32 = 88.02;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // SAFETY: the caller's contract.
    unsafe {
        let smallest = S::splat(SMALLEST);
        let bounded = S::min(S::max(x, smallest), S::splat(LARGEST));
        let n = S::round(S::mul(bounded, S::splat(std::f32::consts::LOG2_E)));
        let n_float = S::to_f(n);
        let r = S::fnma(n_float, S::splat(LN_2_HIGH), bounded);
        let r = S::fnma(n_float, S::splat(LN_2_LOW), r);
        let mut p = S::splat(1.0 / 5040.0);
        for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(coefficient));
        }
        S::select_gt(smallest, x, S::splat(0.0), S::ldexp(p, n))
    }
}

/// 1 / (1 + e⁻ˣ).
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LANES, Scalar, Tier, Work};
    use std::marker::PhantomData;

    struct Apply<S> {
        x: [f32; LANES],
        tier: PhantomData<S>,
    }

    impl<S: Simd> Work<S> for Apply<S> {
        type Output = ([f32; LANES], [f32; LANES]);

        #[inline(always)]
        unsafe fn run(self) -> Self::Output {
            let (mut e, mut s) = ([0.0; LANES], [0.0; LANES]);
            // SAFETY: arrays of 16 numbers, on a CPU that has the tier.
            unsafe {
                let x = S::load(self.x.as_ptr());
                S::store(e.as_mut_ptr(), exp::<S>(x));
                S::store(s.as_mut_ptr(), sigmoid::<S>(x));
            }
            (e, s)
        }
    }

    fn of<S: Simd>(x: [f32; LANES]) -> ([f32; LANES], [f32; LANES]) {
        // SAFETY: the tests name tiers that are available.
        unsafe { S::call(Apply::<S> { x, tier: PhantomData }) }
    }

    fn points() -> impl Iterator<Item = [f32; LANES]> {
        (-900..900).map(|i| std::array::from_fn(|l| i as f32 * 0.1 + l as f32 * 0.00613))
    }

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        for x in points() {
            let (e, s) = of::<Scalar>(x);
            for l in 0..LANES {
                let exact = f64::from(x[l]).exp();
                if x[l] < -87.3 {
                    assert!(e[l] <= 1.25e-38, "{} {}", x[l], e[l]);
                } else if x[l] < 88.0 {
                    let error = (f64::from(e[l]) - exact).abs() / exact;
                    assert!(error < 2.0 * f64::from(f32::EPSILON), "{} {} {exact}", x[l], e[l]);
                }
                let exact = 1.0 / (1.0 + (-f64::from(x[l])).exp());
                assert!((f64::from(s[l]) - exact).abs() <= 3e-7 * exact + 1e-37, "{} {}", x[l], s[l]);
            }
        }
    }

    #[test]
    fn every_tier_gives_the_same_bits() {
        let bits = |(a, b): ([f32; LANES], [f32; LANES])| (a.map(f32::to_bits), b.map(f32::to_bits));
        for x in points() {
            let scalar = bits(of::<Scalar>(x));
            for tier in Tier::available() {
                assert_eq!(scalar, bits(with_tier!(tier, S => of::<S>(x))), "{tier}");
            }
        }
    }
}
