//! Fitted scales: to the bit, and from what is tried.
//!
//! Numbers that are coded as they came have the scale that [`stored`] finds step by step, as `docs/page-format.md` tells it.
//!
//! Of numbers that were moved into another basis the last bits are not known. Which of two trials wins is a matter of them where both
//! leave the same error, and what least squares then makes of them differs. There the question is how much error is left
//! ([`is_as_good`]): no more than by the best of the trials.

use super::number::Format;
use super::rule;
use kvant_codec::Rule;

/// Parts of a step that are left out at the low and at the high end.
const CUTS: [(f32, f32); 3] = [(0.2, 0.2), (0.4, 0.0), (0.0, 0.4)];

/// How often more than the others the smallest and the largest number count.
const ENDS: usize = 4;

/// Parts of the signed maximum that are tried: the last level less than half a step within it, a hundredth and a step beyond.
fn parts(bits: u8) -> [f32; 3] {
    let bottom = (1u32 << (bits - 1)) as f32;
    [if bottom < 4.0 { 0.81 } else { 1.0 - 0.4 / bottom }, 1.01, 1.0 + 0.96 / bottom]
}

/// Trials whose errors differ by no more than this part are equally good.
const TIE: f64 = 1e-3;

/// So many numbers half-way between two codes are followed both ways.
const HALFWAY: usize = 6;

/// How far numbers in steps may be off because they are multiples of 2⁻⁹, and so is what is added to them, or of 2⁻¹² (signed maxima).
const GRID: [f64; 2] = [1.0 / 512.0, 1.0 / 8192.0];

/// One number after another, in f32: scale and zero as they are stored for numbers that are coded as they came.
pub fn stored(rule: Rule, bits: u8, format: Format, values: &[f64]) -> (f64, f64) {
    let values: Vec<f32> = values.iter().map(|x| *x as f32).collect();
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let half = |x: f32| format.round(f64::from(x)) as f32;
    let inverse = |s: f32| if s.abs() > f32::MIN_POSITIVE { 1.0 / s } else { 0.0 };
    let (scale, zero) = if rule == Rule::FittedMax {
        (signed(bits, &values, if -low > high { low } else { high }, half, inverse), 0.0)
    } else {
        range(bits, &values, (low, high), half, inverse)
    };
    (f64::from(scale) + 0.0, f64::from(zero) + 0.0)
}

fn signed(
    bits: u8,
    values: &[f32],
    extreme: f32,
    half: impl Fn(f32) -> f32,
    inverse: impl Fn(f32) -> f32,
) -> f32 {
    let bottom = (1u32 << (bits - 1)) as f32;
    let plain = half(extreme / -bottom);
    let (mut best, mut most) = (0.0, -1.0);
    for part in parts(bits) {
        let (mut along, mut power) = (0.0f32, 0.0f32);
        for x in values {
            let steps = x.mul_add(inverse(plain) * (1.0 / part), 3072.0) - 3072.0;
            let code = steps.round_ties_even().min(bottom - 1.0);
            (along, power) = (along + steps * code, power + code * code);
        }
        let ratio = if power > 0.0 { along / power } else { 1.0 };
        let taken = ratio * along * (part * part);
        if taken > most {
            (best, most) = (plain * part * ratio, taken);
        }
    }
    half(best)
}

fn range(
    bits: u8,
    values: &[f32],
    (low, high): (f32, f32),
    half: impl Fn(f32) -> f32,
    inverse: impl Fn(f32) -> f32,
) -> (f32, f32) {
    const M: f32 = 24_576.0;
    let top = ((1u32 << bits) - 1) as f32;
    let outward = |x: f32, sign: f32| {
        let (near, far) = (half(x), half((x.abs() / 2048.0).max(3.0e-8).mul_add(sign, x)));
        if (near - x) * sign < 0.0 { far } else { near }
    };
    let base = outward(low, -1.0);
    let plain = (outward((high - base) / top, 1.0), base);
    let ends = [low; ENDS].into_iter().chain([high; ENDS]);
    let all: Vec<f32> = values.iter().copied().chain(ends).collect();
    let steps = |x: f32, (s, z): (f32, f32)| x.mul_add(inverse(s), (-z).mul_add(inverse(s), M));
    let off = |x: f32, trial: (f32, f32)| steps(x, trial) - steps(x, trial).round_ties_even();

    let step = (high - low) * (1.0 / top);
    let (mut best, mut least) = (plain, f32::INFINITY);
    for (a, b) in CUTS {
        let trial = (half(step * (1.0 - (a + b) / top)), half(step.mul_add(a, low)));
        let squares: f32 = all.iter().map(|x| off(*x, trial).powi(2)).sum();
        let cost = trial.0 * trial.0 * squares;
        let beyond = (M - steps(low, trial)).max(steps(high, trial) - (M + top));
        if inverse(trial.0) > 0.0 && beyond <= 0.5 && cost < least {
            (best, least) = (trial, cost);
        }
    }

    let (s, z) = best;
    let (mut o, mut c, mut along, mut power) = (0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for x in &all {
        let code = steps(*x, best).round_ties_even() - M;
        (o, c) = (o + off(*x, best), c + code);
        (along, power) = (along + off(*x, best) * code, power + code * code);
    }
    let n = all.len() as f32;
    let mean = -(c * (1.0 / n));
    let spread = mean.mul_add(c, power);
    let more = if spread > 0.5 { mean.mul_add(o, along) / spread } else { 0.0 };
    let scale = half(s.mul_add(more, s));
    let more = scale.mul_add(inverse(s), -1.0);
    let zero = half(s.mul_add((-more).mul_add(c, o) * (1.0 / n), z));
    let shift = (zero - z) * inverse(s);
    let of_shift = more.mul_add(c, shift * n).mul_add(-0.5, o);
    let of_more = more.mul_add(power, shift * c).mul_add(-0.5, along);
    if shift.mul_add(of_shift, more * of_more) > 0.0 { (scale, zero) } else { best }
}

/// Numbers that share a scale.
struct Shared<'a> {
    values: &'a [f64],
    format: Format,
    /// Lowest and highest level.
    levels: (f64, f64),
}

impl Shared<'_> {
    fn code(&self, x: f64, (scale, zero): (f64, f64)) -> f64 {
        ((x - zero) / scale).round_ties_even().clamp(self.levels.0, self.levels.1)
    }

    /// Σ of squared errors of numbers with these codes.
    fn squares(&self, codes: &[f64], stored: (f64, f64)) -> f64 {
        let errors = self.values.iter().zip(codes).map(|(x, code)| x - stored.1 - stored.0 * code);
        errors.map(|error| error * error).sum()
    }

    /// The same with the codes that numbers get in the end.
    fn left(&self, stored: (f64, f64)) -> f64 {
        let codes: Vec<f64> = self.values.iter().map(|x| self.code(*x, stored)).collect();
        self.squares(&codes, stored)
    }

    /// The codes under a trial, whose range reaches to the lowest level unless the format has hardly a step for the scale. A number
    /// that may be half-way between two codes gets either, and where least squares then has the scale differs.
    fn codings(&self, trial: (f64, f64), doubt: f64) -> Vec<Vec<f64>> {
        let steps = |x: f64| (x - trial.1) / trial.0;
        let mut halfway: Vec<f64> = self.values.to_vec();
        halfway.retain(|x| ((steps(*x) - steps(*x).round()).abs() - 0.5).abs() < doubt);
        halfway.sort_by(f64::total_cmp);
        halfway.dedup();
        halfway.truncate(HALFWAY);
        let coding = |ways: usize| {
            let code = |x: &f64| {
                let steps = steps(*x);
                let (near, at) = (steps.round_ties_even(), halfway.iter().position(|other| other == x));
                let other = if steps > near { near + 1.0 } else { near - 1.0 };
                let taken = if at.is_some_and(|at| ways >> at & 1 == 1) { other } else { near };
                taken.min(self.levels.1)
            };
            self.values.iter().map(code).collect()
        };
        (0..1 << halfway.len()).map(coding).collect()
    }

    /// The scale and zero of least squares for these codes, as they are stored.
    fn least_squares(&self, codes: &[f64], trial: (f64, f64), with_zero: bool) -> (f64, f64) {
        let mean = |x: &[f64]| if with_zero { x.iter().sum::<f64>() / x.len() as f64 } else { 0.0 };
        let (of_codes, of_values) = (mean(codes), mean(self.values));
        let pairs = || codes.iter().zip(self.values);
        let spread: f64 = codes.iter().map(|code| (code - of_codes).powi(2)).sum();
        let along: f64 = pairs().map(|(code, x)| (code - of_codes) * (x - of_values)).sum();
        // Where all codes are alike there is nothing to fit a scale to.
        let scale = if spread > 0.5 || (!with_zero && spread > 0.0) { along / spread } else { trial.0 };
        let scale = self.format.round(scale);
        (scale, if with_zero { self.format.round(of_values - scale * of_codes) } else { 0.0 })
    }

    /// What each coding of a trial leaves: under the trial itself, after least squares, and as it is coded in the end.
    fn outcomes(&self, trial: (f64, f64), with_zero: bool, doubt: f64) -> Vec<(f64, f64, f64)> {
        let outcome = |codes: Vec<f64>| {
            let fitted = self.least_squares(&codes, trial, with_zero);
            let (tried, fits) = (self.squares(&codes, trial), self.squares(&codes, fitted));
            if with_zero {
                return (tried, fits.min(tried), fits.min(tried));
            }
            (tried, fits, fits.max(self.left(fitted)))
        };
        self.codings(trial, doubt).into_iter().map(outcome).collect()
    }
}

/// Whether `fitted` leaves as little error as the best trial, refined.
pub fn is_as_good(
    rule: Rule,
    bits: u8,
    format: Format,
    values: &[f64],
    blur: f64,
    fitted: (f64, f64),
) -> bool {
    // What f32 makes of the numbers is most often what was fitted.
    if stored(rule, bits, format, values) == fitted {
        return true;
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = high.max(-low);
    let last = (1u32 << bits) - 1;
    let levels = (rule::level(rule, bits, 0), rule::level(rule, bits, last as u8));
    let with_zero = rule::zeros(rule);
    let ends = [low; ENDS].into_iter().chain([high; ENDS]).filter(|_| with_zero);
    let values = &values.iter().copied().chain(ends).collect::<Vec<f64>>()[..];
    let shared = Shared { values, format, levels };
    // How far a number in f32 may be off, in its own units: twice for the change of basis, once for the division by the step.
    let off = 2.0 * blur + 5e-7 * top;
    let count = values.len() as f64;
    if fitted.0 == 0.0 {
        // Nothing but zeros, or numbers that no scale of the format reaches.
        return high - low <= off + 2.0 * format.ulp(0.0) * f64::from(last + 1);
    }
    let trials: Vec<(f64, f64)> = if with_zero {
        let step = (high - low) / f64::from(last);
        let trial = |(a, b): (f64, f64)| {
            (format.round(step * (1.0 - (a + b) / f64::from(last))), format.round(low + step * a))
        };
        let cuts = CUTS.map(|(a, b)| (f64::from(a), f64::from(b)));
        cuts.into_iter().map(trial).filter(|trial| trial.0 > 0.0).collect()
    } else {
        let steps = rule::steps(rule, bits, values.len());
        let extremes = rule::signed_extremes(values, blur);
        let trial = |x: f64, part: f32| (f64::from(part) * format.round(x / steps), 0.0);
        extremes.flat_map(|x| parts(bits).map(|part| trial(x, part))).filter(|trial| trial.0 != 0.0).collect()
    };
    let grid = if with_zero { GRID[0] } else { GRID[1] };
    let outcomes = |trial: &(f64, f64)| shared.outcomes(*trial, with_zero, grid + off / trial.0.abs());
    // The signed maximum's trials are compared after least squares, ranges before.
    let cost = |(tried, fits, _): &(f64, f64, f64)| if with_zero { *tried } else { *fits };
    let slack =
        count * (off * (fitted.0.abs() + off) + (0.5 * format.ulp(fitted.0) * levels.0.abs()).powi(2));
    // What a sum of squares is off by where every number is by `grid`; of signed maxima it is what numbers have in all less what is taken.
    let grid = grid * fitted.0.abs();
    let whole: f64 = values.iter().map(|x| x * x).sum();
    let within = |squares: f64| {
        let along = 2.0 * grid * (count * if with_zero { squares } else { whole }).sqrt();
        (1.0 + TIE) * squares + along + count * grid * grid + slack
    };
    // By how much a range leaves out more than half a step: surely, or perhaps.
    let reaches = |trial: &(f64, f64), doubt: f64| {
        let beyond = (trial.1 - low).max(high - trial.1 - trial.0 * f64::from(last));
        !with_zero || beyond <= (0.5 + doubt * 2.0 * GRID[0]) * trial.0 + doubt * off
    };
    let sure = trials.iter().filter(|trial| reaches(trial, -1.0));
    let worst = |trial: &(f64, f64)| outcomes(trial).iter().map(cost).fold(0.0, f64::max);
    let least = sure.map(worst).fold(f64::INFINITY, f64::min);
    // Both sides of a comparison may be off.
    let good = trials.iter().filter(|trial| reaches(trial, 1.0)).flat_map(outcomes);
    let good = good.filter(|outcome| cost(outcome) <= within(within(least)));
    // Where no trial reaches both ends, the extremes give the scale.
    let plain = (format.ulp(high - low) + (high - low) / f64::from(last) + format.ulp(low)).powi(2) * count;
    let allowed = good.map(|(_, _, coded)| coded).fold(if least.is_finite() { 0.0 } else { plain }, f64::max);
    shared.left(fitted) <= within(allowed)
}
