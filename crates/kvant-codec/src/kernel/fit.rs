//! Scales that leave less error than the extremes of what shares them give.
//!
//! A few scales are tried, and the best is moved to where least squares, for the codes under it, would have it. Of a range the ends count
//! more than what lies between: a token that attention looks for is at the end of many channels.
//!
//! Numbers in steps are rounded to multiples of 2⁻⁹ or 2⁻¹², so that sums of a page's tokens, or of a group's channels, are exact and
//! their order does not matter; every other product that is added to something is so by a fused multiply-add. So every tier stores the
//! same, and so does any other machine that has one. `docs/page-format.md` has the rule step by step.

use super::scale::{inverse_of, round_lanes};
use crate::format::ScaleFormat;
use crate::quant::{Levels, Rule};
use kvant_simd::{LANES, Simd};

const CUTS: [(f32, f32); 3] = Rule::RANGE_CUTS;

const PARTS: usize = Rule::max_parts(4).len();

/// An integer at which f32 has steps of 2⁻⁹, on both sides: what is added to it is rounded to that.
const GRID: f32 = 24_576.0;

/// The same with steps of 2⁻¹², for signed maxima: there what is left of a sum of squares is compared by what was taken off.
const FINE_GRID: f32 = 3_072.0;

/// Numbers that share scales lane by lane: number i of every lane lies at `first + i · stride`.
#[derive(Clone, Copy)]
pub(super) struct LaneNumbers {
    pub first: *const f32,
    pub stride: usize,
    pub count: usize,
}

impl LaneNumbers {
    /// # Safety
    /// i is below the count, and the CPU has the tier.
    #[inline(always)]
    unsafe fn get<S: Simd>(&self, i: usize) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::load(self.first.add(i * self.stride)) }
    }

    /// Smallest and largest number of each lane, and a sum that is zero for finite numbers and NaN for others.
    ///
    /// # Safety
    /// There is an even number of them; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn extremes<S: Simd>(&self) -> (S::F, S::F, S::F) {
        // SAFETY: i is below the count.
        unsafe {
            let x = self.get::<S>(0);
            let (mut low, mut high, mut odd) = ([x; 2], [x; 2], [S::splat(0.0); 2]);
            for i in (0..self.count).step_by(2) {
                for chain in 0..2 {
                    let x = self.get::<S>(i + chain);
                    (low[chain], high[chain]) = (S::min(low[chain], x), S::max(high[chain], x));
                    odd[chain] = S::fma(x, S::splat(0.0), odd[chain]);
                }
            }
            (S::min(low[0], low[1]), S::max(high[0], high[1]), S::add(odd[0], odd[1]))
        }
    }
}

/// A scale and a zero per lane, and what numbers become under them: x · inverse + offset, in steps above [`GRID`].
#[derive(Clone, Copy)]
struct Trial<S: Simd> {
    scale: S::F,
    zero: S::F,
    inverse: S::F,
    offset: S::F,
}

impl<S: Simd> Trial<S> {
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn new(scale: S::F, zero: S::F) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            let inverse = inverse_of::<S>(scale);
            let offset = S::fma(S::sub(S::splat(0.0), zero), inverse, S::splat(GRID));
            Trial { scale, zero, inverse, offset }
        }
    }

    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn steps(&self, x: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::fma(x, self.inverse, self.offset) }
    }

    /// A number's code, and what it is off by in steps.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn coded(&self, x: S::F) -> (S::F, S::F) {
        // SAFETY: the caller's contract.
        unsafe {
            let steps = self.steps(x);
            let off = S::residue(steps);
            (S::sub(S::sub(steps, off), S::splat(GRID)), off)
        }
    }

    /// A sum of squared errors in steps, with that of one more number.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn with_square(&self, x: S::F, sum: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe {
            let off = S::residue(self.steps(x));
            S::fma(off, off, sum)
        }
    }

    /// Its squared error, from that in steps.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn cost(&self, squares: S::F) -> S::F {
        // SAFETY: the caller's contract.
        unsafe { S::mul(S::mul(self.scale, self.scale), squares) }
    }

    /// The other one in lanes where its `cost` is below `least`, and the smaller of both.
    ///
    /// # Safety
    /// The CPU has the tier.
    #[inline(always)]
    unsafe fn or(self, other: Self, least: S::F, cost: S::F) -> (Self, S::F) {
        // SAFETY: the caller's contract.
        unsafe {
            let best = Trial {
                scale: S::select_gt(least, cost, other.scale, self.scale),
                zero: S::select_gt(least, cost, other.zero, self.zero),
                inverse: S::select_gt(least, cost, other.inverse, self.inverse),
                offset: S::select_gt(least, cost, other.offset, self.offset),
            };
            (best, S::select_gt(least, cost, cost, least))
        }
    }
}

/// Scale and zero of numbers between `low` and `high` by a rule that fits; `plain` are those that the extremes give.
///
/// # Safety
/// The numbers can be read; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn scale_of<S: Simd>(
    format: ScaleFormat,
    levels: &Levels,
    numbers: LaneNumbers,
    ends: (S::F, S::F),
    plain: (S::F, S::F),
) -> (S::F, S::F) {
    // SAFETY: the caller's contract.
    unsafe {
        match levels.rule {
            Rule::FittedMax => (signed::<S>(format, numbers, plain.0, levels.bits), plain.1),
            _ => range::<S>(format, numbers, ends, plain, levels.divisor()),
        }
    }
}

/// Scale and zero for numbers between `low` and `high` with levels 0 … `top`; `plain` are those that the extremes give.
///
/// # Safety
/// The numbers can be read; the CPU has the tier.
#[inline(always)]
unsafe fn range<S: Simd>(
    format: ScaleFormat,
    numbers: LaneNumbers,
    (low, high): (S::F, S::F),
    plain: (S::F, S::F),
    top: f32,
) -> (S::F, S::F) {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = S::splat(0.0);
        let step = S::mul(S::sub(high, low), S::splat(1.0 / top));
        let plain = Trial::<S>::new(plain.0, plain.1);
        let mut trials = [plain; CUTS.len()];
        for k in 0..CUTS.len() {
            let (a, b) = CUTS[k];
            let low = round_lanes::<S>(format, S::fma(step, S::splat(a), low));
            let scale = round_lanes::<S>(format, S::mul(step, S::splat(1.0 - (a + b) / top)));
            trials[k] = Trial::new(S::add(scale, zero), S::add(low, zero));
        }
        // Two chains, so that the latency of one addition does not set the pace.
        let mut squares = [[zero; 2]; CUTS.len()];
        for pair in 0..numbers.count / 2 {
            for chain in 0..2 {
                let x = numbers.get::<S>(2 * pair + chain);
                for k in 0..CUTS.len() {
                    squares[k][chain] = trials[k].with_square(x, squares[k][chain]);
                }
            }
        }
        for k in 0..CUTS.len() {
            if numbers.count % 2 == 1 {
                squares[k][0] = trials[k].with_square(numbers.get::<S>(numbers.count - 1), squares[k][0]);
            }
        }
        let (mut best, mut least) = (plain, S::splat(f32::INFINITY));
        for k in 0..CUTS.len() {
            let trial = &trials[k];
            let of_ends = trial.with_square(low, trial.with_square(high, zero));
            let squares = S::fma(of_ends, S::splat(Rule::END_WEIGHT), S::add(squares[k][0], squares[k][1]));
            let cost = trial.cost(squares);
            // Where the zero is rounded coarsely, an end may have come to lie beyond half a step: then it does not count.
            let (low, high) = (trial.steps(low), trial.steps(high));
            let beyond = S::max(S::sub(S::splat(GRID), low), S::sub(high, S::splat(GRID + top)));
            let cost = S::select_gt(beyond, S::splat(0.5), S::splat(f32::INFINITY), cost);
            // Nor does a scale that has no reciprocal.
            let cost = S::select_gt(trial.inverse, zero, cost, S::splat(f32::INFINITY));
            (best, least) = best.or(*trial, least, cost);
        }
        least_squares::<S>(format, numbers, [low, high], best)
    }
}

/// Scale and zero of least squares for the codes that the numbers have under `trial`, if they are better as stored.
///
/// # Safety
/// The numbers can be read; the CPU has the tier.
#[inline(always)]
unsafe fn least_squares<S: Simd>(
    format: ScaleFormat,
    numbers: LaneNumbers,
    ends: [S::F; 2],
    trial: Trial<S>,
) -> (S::F, S::F) {
    // SAFETY: the caller's contract.
    unsafe {
        let zero = S::splat(0.0);
        let [mut offs, mut codes, mut along, mut power] = [zero; 4];
        for i in 0..numbers.count {
            let (code, off) = trial.coded(numbers.get::<S>(i));
            (offs, codes) = (S::add(offs, off), S::add(codes, code));
            (along, power) = (S::fma(off, code, along), S::fma(code, code, power));
        }
        for end in ends {
            let (code, off) = trial.coded(end);
            let weighted = S::mul(code, S::splat(Rule::END_WEIGHT));
            (offs, codes) = (S::fma(off, S::splat(Rule::END_WEIGHT), offs), S::add(codes, weighted));
            (along, power) = (S::fma(off, weighted, along), S::fma(code, weighted, power));
        }
        // In steps: the scale grows by `more`, the zero by `shift`.
        let count = numbers.count as f32 + 2.0 * Rule::END_WEIGHT;
        let part = S::splat(1.0 / count);
        let mean = S::sub(zero, S::mul(codes, part));
        let (spread, slope) = (S::fma(mean, codes, power), S::fma(mean, offs, along));
        let more = S::select_gt(spread, S::splat(0.5), S::div(slope, spread), zero);
        // The scale is rounded first: a zero that is off shifts the scores of a whole page, of which attention sees less.
        let scale = round_lanes::<S>(format, S::fma(trial.scale, more, trial.scale));
        let more = S::fma(scale, trial.inverse, S::splat(-1.0));
        let shift = S::mul(S::fma(S::sub(zero, more), codes, offs), part);
        let low = round_lanes::<S>(format, S::fma(trial.scale, shift, trial.zero));
        let shift = S::mul(S::sub(low, trial.zero), trial.inverse);
        // Half of what Σ (off − shift − more · code)² is less than Σ off².
        let half = S::splat(-0.5);
        let of_shift = S::fma(S::fma(more, codes, S::mul(shift, S::splat(count))), half, offs);
        let of_more = S::fma(S::fma(more, power, S::mul(shift, codes)), half, along);
        let gain = S::fma(shift, of_shift, S::mul(more, of_more));
        let scale = S::select_gt(gain, zero, scale, trial.scale);
        let low = S::select_gt(gain, zero, low, trial.zero);
        (S::add(scale, zero), S::add(low, zero))
    }
}

/// The scale for numbers of levels −2^(b−1) … 2^(b−1) − 1, where `plain` is the one that the signed maximum gives.
///
/// # Safety
/// The numbers can be read; the CPU has the tier.
#[inline(always)]
unsafe fn signed<S: Simd>(format: ScaleFormat, numbers: LaneNumbers, plain: S::F, bits: u8) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        let (zero, last) = (S::splat(0.0), S::splat(((1u32 << (bits - 1)) - 1) as f32));
        let (parts, inverse) = (Rule::max_parts(bits), inverse_of::<S>(plain));
        let mut inverses = [inverse; PARTS];
        for k in 0..PARTS {
            inverses[k] = S::mul(inverse, S::splat(1.0 / parts[k]));
        }
        let (mut along, mut power) = ([zero; PARTS], [zero; PARTS]);
        for i in 0..numbers.count {
            let x = numbers.get::<S>(i);
            for k in 0..PARTS {
                let steps = S::sub(S::fma(x, inverses[k], S::splat(FINE_GRID)), S::splat(FINE_GRID));
                let code = S::min(S::to_f(S::round(steps)), last);
                along[k] = S::fma(steps, code, along[k]);
                power[k] = S::fma(code, code, power[k]);
            }
        }
        // The scale of least squares is along/power of the one tried, and takes along²/power off the sum of squares.
        let (mut best, mut most) = (zero, S::splat(-1.0));
        for k in 0..PARTS {
            let ratio = S::select_gt(power[k], zero, S::div(along[k], power[k]), S::splat(1.0));
            let scale = S::mul(S::mul(plain, S::splat(parts[k])), ratio);
            // In the units of the first.
            let taken = S::mul(S::mul(ratio, along[k]), S::splat(parts[k] * parts[k]));
            best = S::select_gt(taken, most, scale, best);
            most = S::select_gt(taken, most, taken, most);
        }
        S::add(round_lanes::<S>(format, best), zero)
    }
}

/// Sixteen channels of a page, or what there is of them, as numbers that lie token after token, from columns.
///
/// # Safety
/// `columns` holds `tiles` tiles of `padded` columns, and `to` has room for sixteen of each; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn turned<S: Simd>(
    columns: *const f32,
    tiles: usize,
    padded: usize,
    first: usize,
    to: *mut f32,
) -> LaneNumbers {
    // SAFETY: columns below `padded` are read.
    unsafe {
        for tile in 0..tiles {
            let columns = columns.add(LANES * (tile * padded + first));
            let to = to.add(tile * LANES * LANES);
            if first + LANES <= padded {
                let block = S::transpose(columns, LANES);
                for token in 0..LANES {
                    S::store(to.add(token * LANES), block[token]);
                }
            } else {
                for (token, lane) in (0..LANES * LANES).map(|i| (i / LANES, i % LANES)) {
                    let x = if first + lane < padded { *columns.add(LANES * lane + token) } else { 0.0 };
                    *to.add(token * LANES + lane) = x;
                }
            }
        }
    }
    LaneNumbers { first: to, stride: LANES, count: tiles * LANES }
}
