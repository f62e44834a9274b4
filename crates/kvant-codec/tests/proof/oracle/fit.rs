//! Fitted scales, from what is tried: the stored one leaves no more error than the best of that.
//!
//! Which of two trials wins is a matter of the last bits where both leave the same error, and what least squares then makes of
//! them differs. So what is asked is how much error is left, not which numbers are stored.

use super::number::Format;
use super::rule;
use kvant_codec::Rule;

/// Parts of a step that are left out at the low and at the high end.
const CUTS: [(f64, f64); 3] = [(0.27, 0.27), (0.45, 0.0), (0.0, 0.45)];

/// Parts of the signed maximum that are tried: less than half a step beyond the last level, and a hundredth within.
fn parts(bottom: f64) -> [f64; 2] {
    [if bottom < 4.0 { 0.81 } else { 1.0 - 0.4 / bottom }, 1.01]
}

/// Trials whose errors differ by no more than this part are equally good.
const TIE: f64 = 1e-3;

/// One number half-way between two codes, which may get either, moves the scale of least squares: this part more error is left then.
const FLIP: f64 = 2e-2;

/// How far numbers in steps may be off because they are multiples of 2⁻⁹, and so is what is added to them, or of 2⁻¹² (signed maxima).
const GRID: [f64; 2] = [1.0 / 512.0, 1.0 / 8192.0];

/// Wider codes have the scales of the plain rule.
pub fn applies(bits: u8) -> bool {
    bits < 6
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

    /// As a trial codes it. Its range reaches to the lowest level, unless the format has hardly a step for the scale.
    fn tried(&self, x: f64, (scale, zero): (f64, f64)) -> f64 {
        ((x - zero) / scale).round_ties_even().min(self.levels.1)
    }

    /// Σ of squared errors with codes made under `trial` and read under `stored`.
    fn squares(&self, trial: (f64, f64), stored: (f64, f64)) -> f64 {
        let code = |x: f64| if trial == stored { self.code(x, trial) } else { self.tried(x, trial) };
        let error = |x: &f64| x - stored.1 - stored.0 * code(*x);
        self.values.iter().map(|x| error(x).powi(2)).sum()
    }

    /// The scale and zero of least squares for the codes under `trial`, as they are stored.
    fn least_squares(&self, trial: (f64, f64), with_zero: bool) -> (f64, f64) {
        let codes: Vec<f64> = self.values.iter().map(|x| self.tried(*x, trial)).collect();
        let mean = |x: &[f64]| if with_zero { x.iter().sum::<f64>() / x.len() as f64 } else { 0.0 };
        let (of_codes, of_values) = (mean(&codes), mean(self.values));
        let pairs = || codes.iter().zip(self.values);
        let spread: f64 = codes.iter().map(|code| (code - of_codes).powi(2)).sum();
        let along: f64 = pairs().map(|(code, x)| (code - of_codes) * (x - of_values)).sum();
        // Where all codes are alike there is nothing to fit a scale to.
        let scale = if spread > 0.5 || (!with_zero && spread > 0.0) { along / spread } else { trial.0 };
        let scale = self.format.round(scale);
        (scale, if with_zero { self.format.round(of_values - scale * of_codes) } else { 0.0 })
    }
}

/// Whether `stored` leaves as little error as the best trial, refined.
pub fn is_as_good(
    rule: Rule,
    bits: u8,
    format: Format,
    values: &[f64],
    blur: f64,
    stored: (f64, f64),
) -> bool {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = high.max(-low);
    let last = (1u32 << bits) - 1;
    let levels = (rule::level(rule, bits, 0), rule::level(rule, bits, last as u8));
    let shared = Shared { values, format, levels };
    let with_zero = rule::zeros(rule);
    // How far a number in f32 may be off, in its own units: twice for the change of basis, once for the division by the step.
    let off = 2.0 * blur + 5e-7 * top;
    let count = values.len() as f64;
    if stored.0 == 0.0 {
        // Nothing but zeros, or numbers that no scale of the format reaches.
        return high - low <= off + 2.0 * format.ulp(0.0) * f64::from(last + 1);
    }
    let trials: Vec<(f64, f64)> = if with_zero {
        let step = (high - low) / f64::from(last);
        let trial = |(a, b): (f64, f64)| {
            (format.round(step * (1.0 - (a + b) / f64::from(last))), format.round(low + step * a))
        };
        CUTS.into_iter().map(trial).filter(|trial| trial.0 > 0.0).collect()
    } else {
        let steps = rule::steps(rule, bits, values.len());
        let extremes = rule::signed_extremes(values, blur);
        extremes.flat_map(|x| parts(-steps).map(|part| (part * format.round(x / steps), 0.0))).collect()
    };
    let left = |trial: &(f64, f64)| {
        let fitted = shared.least_squares(*trial, with_zero);
        let fitted_left = shared.squares(*trial, fitted);
        if with_zero { fitted_left.min(shared.squares(*trial, *trial)) } else { fitted_left }
    };
    // As it is coded in the end.
    let coded = |trial: &(f64, f64)| {
        let fitted = shared.least_squares(*trial, with_zero);
        left(trial).max(if with_zero { 0.0 } else { shared.squares(fitted, fitted) })
    };
    // The signed maximum's trials are compared after least squares, ranges before.
    let cost = |trial: &(f64, f64)| if with_zero { shared.squares(*trial, *trial) } else { left(trial) };
    let slack =
        count * (off * (stored.0.abs() + off) + (0.5 * format.ulp(stored.0) * levels.0.abs()).powi(2));
    // What a sum of squares is off by where every number is by `grid`; of signed maxima it is what numbers have in all less what is taken.
    let grid = if with_zero { GRID[0] } else { GRID[1] } * stored.0.abs();
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
    let least = sure.map(cost).fold(f64::INFINITY, f64::min);
    // Both sides of a comparison may be off.
    let good = trials.iter().filter(|trial| reaches(trial, 1.0) && cost(trial) <= within(within(least)));
    // Where no trial reaches both ends, the extremes give the scale.
    let plain = (format.ulp(high - low) + (high - low) / f64::from(last) + format.ulp(low)).powi(2) * count;
    let allowed = good.map(coded).fold(if least.is_finite() { 0.0 } else { plain }, f64::max);
    shared.squares(stored, stored) <= (1.0 + FLIP) * within(allowed)
}
