//! Scales of smallest weighted error for codes in a range.

use half::f16;

/// Sums grow in this many lanes, side by side.
const LANES: usize = 16;

/// Σ f(i), in a fixed order of additions that compilers can vectorise.
#[inline(always)]
pub(super) fn sum<const LEN: usize>(f: impl Fn(usize) -> f32) -> f32 {
    const { assert!(LEN.is_multiple_of(LANES)) }
    let mut lanes = [0.0f32; LANES];
    for first in (0..LEN).step_by(LANES) {
        for (lane, total) in lanes.iter_mut().enumerate() {
            *total += f(first + lane);
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The value of largest magnitude, sign and all.
#[inline(always)]
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m: f32, &x| if x.abs() > m.abs() { x } else { m })
}

/// Codes `least..=most` of a symmetric type, value `d · code`.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    pub least: f32,
    pub most: f32,
}

impl Codes {
    /// The codes of a block under the reciprocal of its scale.
    #[inline(always)]
    pub(super) fn of<const LEN: usize>(self, x: &[f32; LEN], inverse: f32) -> [f32; LEN] {
        let mut codes = [0.0; LEN];
        for i in 0..LEN {
            codes[i] = (x[i] * inverse).round_ties_even().clamp(self.least, self.most);
        }
        codes
    }

    /// Codes under the scale `d`, and their weighted error.
    #[inline(always)]
    pub(super) fn under<const LEN: usize>(self, x: &[f32; LEN], w: &[f32; LEN], d: f32) -> ([f32; LEN], f32) {
        let codes = self.of(x, if d == 0.0 { 0.0 } else { 1.0 / d });
        let error = sum::<LEN>(|i| {
            let off = x[i] - d * codes[i];
            w[i] * off * off
        });
        (codes, error)
    }

    /// The scale of smallest weighted error: of a grid of scales that put the extreme at each of `ends` codes from zero, on
    /// either side, the one whose codes explain most; then the scale that fits those codes best, and once more.
    #[inline(always)]
    pub(super) fn best_scale<const LEN: usize>(
        self,
        x: &[f32; LEN],
        w: &[f32; LEN],
        ends: impl Iterator<Item = f32>,
    ) -> f32 {
        let largest = extreme(x);
        if largest == 0.0 {
            return 0.0;
        }
        let (mut best, mut most) = (largest / self.least, 0.0f32);
        for end in ends {
            for inverse in [end / largest, -end / largest] {
                let (scale, explained) = fitted(x, w, &self.of(x, inverse));
                if explained > most {
                    (best, most) = (scale, explained);
                }
            }
        }
        for _ in 0..2 {
            if best == 0.0 {
                break;
            }
            let (scale, explained) = fitted(x, w, &self.of(x, 1.0 / best));
            if explained > most {
                (best, most) = (scale, explained);
            }
        }
        best
    }
}

/// A super-block of 256 values in groups, whose scales are small integers of 6 bits with a sign under one f16 scale.
pub(super) trait SignedScales<const GROUPS: usize>: Sized {
    /// The block under the scale `d`: of the integers beside the wanted scales those of least error.
    fn under(x: &[f32; 256], w: &[f32; 256], d: f16, wanted: &[f32; GROUPS]) -> Self;

    /// The scale that fits all codes best, if it can be stored.
    fn refitted(&self, x: &[f32; 256], w: &[f32; 256]) -> Option<f16>;

    /// The weighted error.
    fn error(&self) -> f64;

    /// A block with groups near these scales, refitted while that lowers its error, twice at most; `None` when the scale is beyond
    /// f16.
    #[inline(always)]
    fn of(x: &[f32; 256], w: &[f32; 256], wanted: &[f32; GROUPS]) -> Option<Self> {
        let mut best = Self::under(x, w, stored(extreme(wanted) / -32.0)?.0, wanted);
        for _ in 0..2 {
            let Some(d) = best.refitted(x, w) else { break };
            let next = Self::under(x, w, d, wanted);
            if next.error() >= best.error() {
                break;
            }
            best = next;
        }
        Some(best)
    }
}

/// The scale that fits codes best, and by how much it lowers the error of zeros.
#[inline(always)]
fn fitted<const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN], codes: &[f32; LEN]) -> (f32, f32) {
    let both = sum::<LEN>(|i| w[i] * x[i] * codes[i]);
    let square = sum::<LEN>(|i| w[i] * codes[i] * codes[i]);
    if square > 0.0 { (both / square, both * both / square) } else { (0.0, 0.0) }
}

/// A scale as it is stored, and what it then is; `None` when f16 cannot hold it.
#[inline(always)]
pub(super) fn stored(scale: f32) -> Option<(f16, f32)> {
    let half = f16::from_f32(scale);
    half.is_finite().then(|| (half, half.to_f32()))
}
