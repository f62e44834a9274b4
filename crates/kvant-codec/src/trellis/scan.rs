//! What a leak carries from run to run: a scan over lanes.

use crate::format::{RUN, first_steps};
use kvant_simd::{LANES, Simd};
use std::sync::LazyLock;

/// What a leak ρ leaves after some tokens, in the lanes of the sixteen runs of a page. There are few leaks and many pages, so
/// those of all leaks are made once.
#[repr(align(64))]
pub(super) struct Leak {
    /// ρ, ρ², … ρ⁸, but nothing in the first lane, which no run comes before.
    powers: [[f32; LANES]; RUN],
    /// ρ to the power of 8, 16, 32 and 64 in the lanes that as many runs come before.
    steps: [[f32; LANES]; 4],
    /// Steps of the first tokens of a page, which lie in the first lane.
    first: [[f32; LANES]; 3],
    /// ρ itself.
    pub rho: f32,
}

impl Leak {
    /// That of a leak in 256ths.
    pub(super) fn of(leak: u8) -> &'static Leak {
        static LEAKS: LazyLock<Vec<Leak>> = LazyLock::new(|| (0..=u8::MAX).map(Leak::new).collect());
        &LEAKS[usize::from(leak)]
    }

    fn new(leak: u8) -> Leak {
        let rho = f32::from(leak) / 256.0;
        let above = |n: usize, power: f32| -> [f32; LANES] {
            std::array::from_fn(|lane| if lane < n { 0.0 } else { power })
        };
        let mut power = 1.0;
        let powers = std::array::from_fn(|_| {
            power *= rho;
            above(1, power)
        });
        let (r, r2) = (power, power * power);
        // What is too small to be a normal number is nothing: it takes a processor a hundred times as long to multiply, and nothing
        // that a score has would notice it.
        let runs =
            [r, r2, r2 * r2, r2 * r2 * (r2 * r2)].map(|power| if power.is_normal() { power } else { 0.0 });
        let mut first = [[1.0; LANES]; 3];
        first.iter_mut().zip(first_steps(leak)).for_each(|(lanes, step)| lanes[0] = step);
        Leak { powers, steps: std::array::from_fn(|i| above(1 << i, runs[i])), first, rho }
    }

    /// ρ to the power of k + 1, but nothing in the first lane.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn power<S: Simd>(&self, k: usize) -> S::F {
        // SAFETY: the caller's contract; a vector of sixteen.
        unsafe { S::load(self.powers[k].as_ptr()) }
    }

    /// Numbers of token k of every run, times the steps of the first tokens of a page.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn stepped<S: Simd>(&self, k: usize, x: S::F) -> S::F {
        if k >= self.first.len() {
            return x;
        }
        // SAFETY: the caller's contract; a vector of sixteen.
        unsafe { S::mul(x, S::load(self.first[k].as_ptr())) }
    }

    /// What comes into every lane from those below it: cₙ = Σ r^(n−1−m)·xₘ over m < n with r = ρ⁸, in four steps for sixteen
    /// lanes. The first lane has something else, which [`Leak::power`] takes no notice of.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn scan<S: Simd>(&self, x: S::F) -> S::F {
        // SAFETY: the caller's contract; vectors of sixteen.
        unsafe {
            let x = S::fma(S::rotate_lanes::<1>(x), S::load(self.steps[0].as_ptr()), x);
            let x = S::fma(S::rotate_lanes::<2>(x), S::load(self.steps[1].as_ptr()), x);
            let x = S::fma(S::rotate_lanes::<4>(x), S::load(self.steps[2].as_ptr()), x);
            let x = S::fma(S::rotate_lanes::<8>(x), S::load(self.steps[3].as_ptr()), x);
            S::rotate_lanes::<1>(x)
        }
    }
}
