//! Q2_K and Q5_K: 256 values in groups with a small scale and a small minimum under two f16 scales, value `d·s·q − dmin·m`.
//!
//! A group is fitted on its own first: a grid of ranges gives codes, codes the scale and the minimum of least squared error, these
//! other codes, and those once more a fit. Then both are rounded to integers under the scales of the super-block, of those beside the
//! wanted ones the pair of least error, and the two scales are fitted to all codes once more. Plain rounding between the least and the
//! largest value of every group is always one of the candidates.

use super::fit::stored;
use half::f16;

const LEN: usize = 256;

/// What tells one type from another.
#[derive(Clone, Copy)]
pub(super) struct AffineKind {
    /// The largest code.
    pub most: f64,
    /// The largest scale and minimum of a group.
    pub limit: f64,
}

/// A super-block of groups of `G` values.
pub(super) struct Affine<const G: usize> {
    pub d: f16,
    pub dmin: f16,
    /// By group; those there are.
    pub scales: [f64; 16],
    pub minima: [f64; 16],
    pub codes: [f64; LEN],
    error: f64,
}

impl<const G: usize> Affine<G> {
    /// The block of least weighted error among those that are tried; `None` when a scale is beyond f16.
    #[inline(always)]
    pub fn best(x: &[f32; LEN], weights: Option<&[f32; LEN]>, kind: AffineKind) -> Option<Self> {
        let ones = [1.0; LEN];
        let mut best = Self::fit(x, &ones, kind)?;
        if let Some(w) = weights {
            let found = Self::fit(x, w, kind);
            best = found.filter(|found| found.error < best.error_under(x, w)).unwrap_or(best);
        }
        Some(best)
    }

    #[inline(always)]
    fn fit(x: &[f32; LEN], w: &[f32; LEN], kind: AffineKind) -> Option<Self> {
        let (mut fitted, mut plain) = ([(0.0, 0.0); 16], [(0.0, 0.0); 16]);
        for (g, (x, w)) in x.as_chunks::<G>().0.iter().zip(w.as_chunks::<G>().0).enumerate() {
            (plain[g], fitted[g]) = group(x, w, kind.most);
        }
        let first = Self::of_groups(x, w, &plain, kind)?;
        let second = Self::of_groups(x, w, &fitted, kind);
        Some(second.filter(|second| second.error < first.error).unwrap_or(first))
    }

    /// A block with groups near these scales and minima.
    #[inline(always)]
    fn of_groups(
        x: &[f32; LEN],
        w: &[f32; LEN],
        wanted: &[(f64, f64); 16],
        kind: AffineKind,
    ) -> Option<Self> {
        let largest = |of: fn(&(f64, f64)) -> f64| wanted.iter().map(of).fold(0.0, f64::max) / kind.limit;
        let half = |scale: f64| stored(scale as f32).map(|(half, _)| half);
        let mut best = Self::under(x, w, (half(largest(|g| g.0))?, half(largest(|g| g.1))?), wanted, kind);
        for _ in 0..2 {
            let Some(scales) = best.refitted(x, w) else { break };
            let next = Self::under(x, w, scales, wanted, kind);
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// Integers and codes under the two scales of the super-block.
    #[inline(always)]
    fn under(
        x: &[f32; LEN],
        w: &[f32; LEN],
        (d, dmin): (f16, f16),
        wanted: &[(f64, f64); 16],
        kind: AffineKind,
    ) -> Self {
        let (ds, dm) = (d.to_f64(), dmin.to_f64());
        let nearest =
            |wanted: f64, unit: f64| if unit == 0.0 { 0.0 } else { (wanted / unit).round_ties_even() };
        let mut block = Self { d, dmin, scales: [0.0; 16], minima: [0.0; 16], codes: [0.0; LEN], error: 0.0 };
        for (g, (x, w)) in x.as_chunks::<G>().0.iter().zip(w.as_chunks::<G>().0).enumerate() {
            let (s, m) = (nearest(wanted[g].0, ds), nearest(wanted[g].1, dm));
            let mut best = (f64::INFINITY, 0.0, 0.0, [0.0; G]);
            for step in 0..9 {
                let s = (s + f64::from(step / 3 - 1)).clamp(0.0, kind.limit);
                let m = (m + f64::from(step % 3 - 1)).clamp(0.0, kind.limit);
                let (scale, minimum) = (ds * s, dm * m);
                let codes = codes(x, scale, minimum, kind.most);
                let error = squares(x, w, &codes, scale, minimum);
                if error < best.0 {
                    best = (error, s, m, codes);
                }
            }
            block.error += best.0;
            (block.scales[g], block.minima[g]) = (best.1, best.2);
            block.codes[G * g..][..G].copy_from_slice(&best.3);
        }
        block
    }

    /// The two scales that fit integers and codes best; `None` where there are none that can be stored.
    #[inline(always)]
    fn refitted(&self, x: &[f32; LEN], w: &[f32; LEN]) -> Option<(f16, f16)> {
        let [mut aa, mut bb, mut ab, mut ax, mut bx] = [0.0f64; 5];
        for i in 0..LEN {
            let (x, w) = (f64::from(x[i]), f64::from(w[i]));
            let (a, b) = (self.scales[i / G] * self.codes[i], -self.minima[i / G]);
            aa += w * a * a;
            bb += w * b * b;
            ab += w * a * b;
            ax += w * a * x;
            bx += w * b * x;
        }
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = if determinant > 1e-9 * aa * bb {
            ((bb * ax - ab * bx) / determinant, (aa * bx - ab * ax) / determinant)
        } else if aa > 0.0 {
            (ax / aa, 0.0)
        } else {
            return None;
        };
        (d > 0.0 && dmin >= 0.0).then_some(())?;
        Some((stored(d as f32)?.0, stored(dmin as f32)?.0))
    }

    fn error_under(&self, x: &[f32; LEN], w: &[f32; LEN]) -> f64 {
        let (d, dmin) = (self.d.to_f64(), self.dmin.to_f64());
        let (x, w, codes) = (x.as_chunks::<G>().0, w.as_chunks::<G>().0, self.codes.as_chunks::<G>().0);
        let error = |g| squares(&x[g], &w[g], &codes[g], d * self.scales[g], dmin * self.minima[g]);
        (0..x.len()).map(error).sum()
    }
}

#[inline(always)]
fn codes<const G: usize>(x: &[f32; G], scale: f64, minimum: f64, most: f64) -> [f64; G] {
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut codes = [0.0; G];
    for i in 0..G {
        codes[i] = ((f64::from(x[i]) + minimum) * inverse).round_ties_even().clamp(0.0, most);
    }
    codes
}

/// Σ w·(x − (scale·q − minimum))².
#[inline(always)]
fn squares<const G: usize>(x: &[f32; G], w: &[f32; G], codes: &[f64; G], scale: f64, minimum: f64) -> f64 {
    let mut sum = 0.0;
    for i in 0..G {
        let off = f64::from(x[i]) - (scale * codes[i] - minimum);
        sum += f64::from(w[i]) * off * off;
    }
    sum
}

/// The scale and the minimum of a group on its own: plain ones, from the least to the largest value, and those of least error.
#[inline(always)]
fn group<const G: usize>(x: &[f32; G], w: &[f32; G], most: f64) -> ((f64, f64), (f64, f64)) {
    let low = x.iter().fold(0.0f64, |low, &x| low.min(x.into()));
    let high = x.iter().fold(f64::MIN, |high, &x| high.max(x.into()));
    let plain = (((high - low) / most).max(0.0), -low);
    if high <= low {
        return (plain, plain);
    }
    let error = |(scale, minimum): (f64, f64)| squares(x, w, &codes(x, scale, minimum, most), scale, minimum);
    let (mut best, mut least) = (plain, error(plain));
    for step in 0..16 {
        // From ranges whose ends are cut off to some that are wider than the values.
        let range = most * (0.62 + 0.03 * f64::from(step));
        let mut candidate = ((high - low) / (2.0 * most - range), -low);
        for _ in 0..3 {
            let Some(next) = least_squares(x, w, &codes(x, candidate.0, candidate.1, most)) else { break };
            candidate = next;
            let found = error(candidate);
            if found < least {
                (best, least) = (candidate, found);
            }
        }
    }
    (plain, best)
}

/// The scale and the minimum, which is not negative, that fit codes best.
#[inline(always)]
fn least_squares<const G: usize>(x: &[f32; G], w: &[f32; G], codes: &[f64; G]) -> Option<(f64, f64)> {
    let [mut all, mut first, mut q, mut qq, mut qx] = [0.0f64; 5];
    for i in 0..G {
        let (x, w) = (f64::from(x[i]), f64::from(w[i]));
        all += w;
        first += w * x;
        q += w * codes[i];
        qq += w * codes[i] * codes[i];
        qx += w * codes[i] * x;
    }
    let determinant = all * qq - q * q;
    (determinant > 0.0).then_some(())?;
    let offset = (qq * first - q * qx) / determinant;
    let (scale, minimum) =
        if offset > 0.0 { (qx / qq, 0.0) } else { ((all * qx - first * q) / determinant, -offset) };
    (scale > 0.0).then_some((scale, minimum))
}
