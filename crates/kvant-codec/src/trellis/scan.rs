//! What a leak carries from run to run: a scan over lanes.

use crate::format::RUN;
use kvant_simd::{LANES, Simd};

/// What a leak ρ leaves after some tokens, for a scan over the sixteen runs of a page.
pub(super) struct Leak<S: Simd> {
    /// ρ, ρ², … ρ⁸, but nothing in the first lane, which no run comes before.
    pub powers: [S::F; RUN],
    /// ρ to the power of 8, 16, 32 and 64 in the lanes that as many runs come before.
    steps: [S::F; 4],
}

impl<S: Simd> Leak<S> {
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn new(rho: f32) -> Leak<S> {
        let above = |n: usize, power: f32| -> [f32; LANES] {
            std::array::from_fn(|lane| if lane < n { 0.0 } else { power })
        };
        let mut power = 1.0;
        let powers: [f32; RUN] = std::array::from_fn(|_| {
            power *= rho;
            power
        });
        let (r, r2) = (power, power * power);
        // SAFETY: the caller's contract; vectors of sixteen.
        unsafe {
            let [mut of_powers, mut steps] = [[S::splat(0.0); RUN]; 2];
            for k in 0..RUN {
                of_powers[k] = S::load(above(1, powers[k]).as_ptr());
            }
            for (i, power) in [r, r2, r2 * r2, r2 * r2 * (r2 * r2)].into_iter().enumerate() {
                steps[i] = S::load(above(1 << i, power).as_ptr());
            }
            Leak { powers: of_powers, steps: [steps[0], steps[1], steps[2], steps[3]] }
        }
    }

    /// What comes into every lane from those below it: cₙ = Σ r^(n−1−m)·xₘ over m < n with r = ρ⁸, in four steps for sixteen
    /// lanes. The first lane has something else, which [`Leak::powers`] take no notice of.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn scan(&self, x: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe {
            let x = S::fma(S::rotate_lanes::<1>(x), self.steps[0], x);
            let x = S::fma(S::rotate_lanes::<2>(x), self.steps[1], x);
            let x = S::fma(S::rotate_lanes::<4>(x), self.steps[2], x);
            let x = S::fma(S::rotate_lanes::<8>(x), self.steps[3], x);
            S::rotate_lanes::<1>(x)
        }
    }
}
