//! Q4_K: 256 values in 8 groups of 32, each with a scale and a minimum of 6 bits under two f16 scales.
//!
//! Groups are fitted on their own first: a grid of ranges gives codes, codes the scale and the minimum of least squared error, these
//! other codes, and those once more a fit; the best is kept. Then scales and minima are rounded to integers under the two scales of
//! the super-block, of those beside the wanted ones the pair of least error, and the two are fitted to all codes once more.
//!
//! Lanes are candidates and not values: a value is tried under all of them at once, and no sum of the search crosses lanes.

mod group;

use super::fit::{stored, sum};
use super::head;
use group::group;
use half::f16;
use kvant_simd::{LANES, Simd};

const LEN: usize = 256;
/// Values of a group.
const GROUP: usize = 32;
const GROUPS: usize = LEN / GROUP;
const ONES: [f32; LEN] = [1.0; LEN];
/// Pairs of integers beside the wanted ones: five scales with three minima each, and the last once more.
const SCALE_STEPS: [f32; LANES] =
    [-2.0, -2.0, -2.0, -1.0, -1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0];
const MINIMUM_STEPS: [f32; LANES] =
    [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, 0.0, 1.0, 1.0];
/// The pair of steps of zero.
const WANTED: usize = 7;

/// `d, dmin, scales[12], codes[128]`: value `d·s·q − dmin·m`, `s` and `m` of 6 bits.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
pub(super) unsafe fn q4_k<S: Simd>(
    x: &[f32; LEN],
    weights: Option<&[f32; LEN]>,
    out: &mut [u8; 144],
) -> bool {
    // SAFETY: the caller's contract, here and below.
    let Some(mut best) = (unsafe { Four::fit::<S>(x, &ONES) }) else { return false };
    if let Some(w) = weights {
        // SAFETY: as above.
        let found = unsafe { Four::fit::<S>(x, w) };
        best = found.filter(|four| four.error < best.error_under(x, w)).unwrap_or(best);
    }
    best.write(out);
    true
}

struct Four {
    d: f16,
    dmin: f16,
    scales: [f32; GROUPS],
    minima: [f32; GROUPS],
    codes: [f32; LEN], // 0 to 15
    /// The weighted error.
    error: f32,
}

impl Four {
    /// `None` when a scale is beyond f16.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn fit<S: Simd>(x: &[f32; LEN], w: &[f32; LEN]) -> Option<Self> {
        let (xs, ws) = (x.as_chunks::<GROUP>().0, w.as_chunks::<GROUP>().0);
        let (mut scales, mut minima) = ([0.0f32; GROUPS], [0.0f32; GROUPS]);
        for g in 0..GROUPS {
            // SAFETY: the caller's contract.
            (scales[g], minima[g]) = unsafe { group::<S>(&xs[g], &ws[g]) };
        }
        let largest = |all: &[f32; GROUPS]| all.iter().fold(0.0f32, |m, &x| m.max(x)) / 63.0;
        let mut under = (stored(largest(&scales))?.0, stored(largest(&minima))?.0);
        let mut best: Option<Self> = None;
        // One place to try a candidate: what is called twice may be compiled apart, for the plainest instruction set.
        for _ in 0..2 {
            // SAFETY: the caller's contract.
            let four = unsafe { Self::under::<S>(x, w, under, &scales, &minima) };
            if best.as_ref().is_some_and(|best| four.error >= best.error) {
                break;
            }
            // SAFETY: the caller's contract.
            let refitted = unsafe { four.refitted::<S>(x, w) };
            best = Some(four);
            let Some(next) = refitted else { break };
            under = next;
        }
        best
    }

    /// The two scales that fit the codes best; `None` where there are none that can be stored.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn refitted<S: Simd>(&self, x: &[f32; LEN], w: &[f32; LEN]) -> Option<(f16, f16)> {
        let mut sums = [[0.0f32; LANES]; 5];
        // SAFETY: the caller's contract; every run of lanes lies inside its array.
        unsafe {
            let mut all = [S::splat(0.0); 5];
            for first in (0..LEN).step_by(LANES) {
                let load = |from: &[f32; LEN]| S::load(from[first..][..LANES].as_ptr());
                let (x, w, g) = (load(x), load(w), first / GROUP);
                let a = S::mul(S::splat(self.scales[g]), load(&self.codes));
                let b = S::splat(-self.minima[g]);
                let (wa, wb) = (S::mul(w, a), S::mul(w, b));
                let terms = [S::mul(wa, a), S::mul(wb, b), S::mul(wa, b), S::mul(wa, x), S::mul(wb, x)];
                for (sum, term) in all.iter_mut().zip(terms) {
                    *sum = S::add(*sum, term);
                }
            }
            for (sum, lanes) in sums.iter_mut().zip(all) {
                S::store(sum.as_mut_ptr(), lanes);
            }
        }
        let [aa, bb, ab, ax, bx] = sums.map(|lanes| sum::<LANES>(|lane| lanes[lane]));
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > 1e-6 * aa * bb {
            ((bb * ax - ab * bx) / determinant, (aa * bx - ab * ax) / determinant)
        } else if aa > 0.0 {
            (ax / aa, 0.0)
        } else {
            return None;
        };
        if d <= 0.0 || dmin < 0.0 {
            return None;
        }
        Some((stored(d)?.0, stored(dmin)?.0))
    }

    /// Scales, minima and codes under the two scales of the super-block: of the integers beside the wanted ones those of
    /// smallest error.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn under<S: Simd>(
        x: &[f32; LEN],
        w: &[f32; LEN],
        (d, dmin): (f16, f16),
        scales: &[f32; GROUPS],
        minima: &[f32; GROUPS],
    ) -> Self {
        let (ds, dm) = (d.to_f32(), dmin.to_f32());
        let nearest = |wanted: f32, unit: f32| if unit == 0.0 { 0.0 } else { (wanted / unit).min(64.0) };
        let mut four =
            Self { d, dmin, scales: [0.0; GROUPS], minima: [0.0; GROUPS], codes: [0.0; LEN], error: 0.0 };
        let (xs, ws) = (x.as_chunks::<GROUP>().0, w.as_chunks::<GROUP>().0);
        for g in 0..GROUPS {
            let wanted = (rounded(nearest(scales[g], ds)), rounded(nearest(minima[g], dm)));
            // SAFETY: the caller's contract; arrays are of as many numbers as there are lanes, a group of twice as many.
            unsafe {
                let (s, m) = (beside::<S>(wanted.0, &SCALE_STEPS), beside::<S>(wanted.1, &MINIMUM_STEPS));
                let (scale, minimum) = (S::mul(S::splat(ds), s), S::mul(S::splat(dm), m));
                let inverse = reciprocal::<S>(scale);
                let best = least(lanes::<S>(errors::<S>(&xs[g], &ws[g], scale, minimum, inverse)));
                let of = |all: S::F| lanes::<S>(all)[best.0];
                four.error += best.1;
                (four.scales[g], four.minima[g]) = (of(s), of(m));
                let (minimum, inverse) = (S::splat(of(minimum)), S::splat(of(inverse)));
                for first in [0, LANES] {
                    let above = S::add(S::load(xs[g][first..].as_ptr()), minimum);
                    let to = four.codes[GROUP * g + first..][..LANES].as_mut_ptr();
                    S::store(to, codes::<S>(S::mul(above, inverse)));
                }
            }
        }
        four
    }

    #[inline(always)]
    fn error_under(&self, x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
        let (d, dmin) = (self.d.to_f32(), self.dmin.to_f32());
        sum::<LEN>(|i| {
            let off = x[i] - (d * self.scales[i / GROUP] * self.codes[i] - dmin * self.minima[i / GROUP]);
            w[i] * off * off
        })
    }

    /// Groups `2k` and `2k + 1` are the low and high nibbles of code bytes `32k..32k+32`.
    #[inline(always)]
    fn write(&self, out: &mut [u8; 144]) {
        out.fill(0);
        let groups = std::array::from_fn(|g| (self.scales[g] as u8, self.minima[g] as u8));
        head::write(out.first_chunk_mut().expect("a block is longer"), self.d, self.dmin, groups);
        // The lowest byte of a whole number that is shifted to where there are no fractions.
        let mut codes = [0u8; LEN];
        for (byte, code) in codes.iter_mut().zip(&self.codes) {
            *byte = (code + SHIFT).to_bits() as u8;
        }
        let pairs = codes.as_chunks::<{ 2 * GROUP }>().0;
        for (out, pair) in out[16..].as_chunks_mut::<GROUP>().0.iter_mut().zip(pairs) {
            for l in 0..GROUP {
                out[l] = pair[l] | pair[GROUP + l] << 4;
            }
        }
    }
}

/// Between 2²³ and 2²⁴ floats are whole numbers, so what is added and taken off again rounds a number, to the even one of two.
const SHIFT: f32 = 12_582_912.0; // 1.5 · 2²³

/// The nearest whole number of one within ±2²².
#[inline(always)]
fn rounded(x: f32) -> f32 {
    (x + SHIFT) - SHIFT
}

/// The numbers of all lanes.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn lanes<S: Simd>(x: S::F) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    // SAFETY: the caller's contract; there are as many numbers as lanes.
    unsafe { S::store(numbers.as_mut_ptr(), x) };
    numbers
}

/// What to multiply with in place of a division; nothing where the scale is nothing.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn reciprocal<S: Simd>(scale: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let nothing = S::splat(0.0);
        S::select_gt(scale, nothing, S::div(S::splat(1.0), scale), nothing)
    }
}

/// The integers of six bits that lie these steps from a wanted one.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn beside<S: Simd>(wanted: f32, steps: &[f32; LANES]) -> S::F {
    // SAFETY: the caller's contract; there are as many steps as lanes.
    unsafe {
        let moved = S::add(S::splat(wanted), S::load(steps.as_ptr()));
        S::min(S::max(moved, S::splat(0.0)), S::splat(63.0))
    }
}

/// The lane of the least number, the wanted one of equals, and that number.
#[inline(always)]
fn least(numbers: [f32; LANES]) -> (usize, f32) {
    let mut best = (WANTED, numbers[WANTED]);
    for (lane, &number) in numbers.iter().enumerate() {
        if number < best.1 {
            best = (lane, number);
        }
    }
    best
}

/// The codes of values in units of their scales.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn codes<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let shift = S::splat(SHIFT);
        let inside = S::min(S::max(x, S::splat(0.0)), S::splat(15.0));
        S::sub(S::add(inside, shift), shift)
    }
}

/// The weighted errors of a group under a scale and a minimum in every lane.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn errors<S: Simd>(
    x: &[f32; GROUP],
    w: &[f32; GROUP],
    scale: S::F,
    minimum: S::F,
    inverse: S::F,
) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sum = S::splat(0.0);
        for i in 0..GROUP {
            let above = S::add(S::splat(x[i]), minimum);
            let off = S::sub(above, S::mul(scale, codes::<S>(S::mul(above, inverse))));
            sum = S::add(sum, S::mul(S::splat(w[i]), S::mul(off, off)));
        }
        sum
    }
}
