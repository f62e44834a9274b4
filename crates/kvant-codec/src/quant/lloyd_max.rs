//! Lloyd–Max quantisers for the standard Gaussian.
//!
//! The optimal scalar quantiser with `2^b` levels satisfies two conditions (Lloyd 1957, Max 1960): every level
//! is the *centroid* of its cell, and every boundary is the *midpoint* of its neighbours. For the density
//! φ(x) = e^(−x²/2)/√2π both are closed-form given Φ and φ, and alternating them converges. We iterate in f64
//! until the levels stand still, so no table is typed in; the tests check the two conditions and the published
//! distortions 0.3634, 0.1175, 0.03454 and 0.009497 at 1–4 bits.

use std::sync::OnceLock;

/// The largest width for which a table exists.
pub const MAX_BITS: u8 = 5;

/// A symmetric scalar quantiser for N(0, 1).
#[derive(Clone, Debug, PartialEq)]
pub struct LloydMax {
    levels: Vec<f64>,
    boundaries: Vec<f64>,
    distortion: f64,
}

impl LloydMax {
    /// The table of `bits` ∈ 1..=5, computed once per process; `None` outside that range.
    pub fn gaussian(bits: u8) -> Option<&'static LloydMax> {
        static TABLES: [OnceLock<LloydMax>; MAX_BITS as usize] =
            [const { OnceLock::new() }; MAX_BITS as usize];
        let slot = usize::from(bits).checked_sub(1).and_then(|i| TABLES.get(i))?;
        Some(slot.get_or_init(|| LloydMax::solve(1 << bits)))
    }

    /// Reconstruction levels, ascending: 2^bits of them.
    pub fn levels(&self) -> &[f64] {
        &self.levels
    }

    /// Cell boundaries, ascending: one fewer than levels.
    pub fn boundaries(&self) -> &[f64] {
        &self.boundaries
    }

    /// Mean squared error on N(0, 1).
    pub fn distortion(&self) -> f64 {
        self.distortion
    }

    fn solve(count: usize) -> LloydMax {
        let mut levels: Vec<f64> =
            (0..count).map(|i| (2.0 * (i as f64 + 0.5) / count as f64 - 1.0) * 2.5).collect();
        // Convergence is linear; 5 bits need about 3,000 rounds to stand still in f64.
        for _ in 0..20_000 {
            let boundaries = midpoints(&levels);
            let next: Vec<f64> = cells(&boundaries).map(|(a, b)| centroid(a, b)).collect();
            let moved = next.iter().zip(&levels).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
            // The table is exactly antisymmetric by construction, whatever rounding did.
            levels = (0..count).map(|i| 0.5 * (next[i] - next[count - 1 - i])).collect();
            if moved < 1e-14 {
                break;
            }
        }
        let boundaries = midpoints(&levels);
        // E(x − q)² = 1 − E q² when every level is a centroid.
        let energy: f64 = cells(&boundaries).zip(&levels).map(|((a, b), q)| mass(a, b) * q * q).sum();
        LloydMax { levels, boundaries, distortion: 1.0 - energy }
    }
}

fn midpoints(levels: &[f64]) -> Vec<f64> {
    levels.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect()
}

fn cells(boundaries: &[f64]) -> impl Iterator<Item = (f64, f64)> {
    let lower = std::iter::once(f64::NEG_INFINITY).chain(boundaries.iter().copied());
    let upper = boundaries.iter().copied().chain(std::iter::once(f64::INFINITY));
    lower.zip(upper)
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// Φ(x) − ½ = φ(x) · (x + x³/3 + x⁵/(3·5) + …): all terms of one sign, so nothing cancels.
fn half_cdf(x: f64) -> f64 {
    let x = x.clamp(-9.0, 9.0);
    let (mut term, mut sum, mut odd) = (x, x, 1.0);
    while term.abs() > 1e-17 * sum.abs() {
        odd += 2.0;
        term *= x * x / odd;
        sum += term;
    }
    density(x) * sum
}

/// The x with Φ(x) = p, for p well inside (0, 1): bisection, until the halves no longer differ.
pub(super) fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-9.0, 9.0);
    for _ in 0..80 {
        let middle = 0.5 * (low + high);
        if half_cdf(middle) < p - 0.5 { low = middle } else { high = middle }
    }
    0.5 * (low + high)
}

/// P(a < X < b).
fn mass(a: f64, b: f64) -> f64 {
    half_cdf(b) - half_cdf(a)
}

/// E(X | a < X < b) = (φ(a) − φ(b)) / P(a < X < b).
fn centroid(a: f64, b: f64) -> f64 {
    (density(a) - density(b)) / mass(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition once more, by brute-force integration that shares no code with the solver.
    fn integrate(f: impl Fn(f64) -> f64, a: f64, b: f64) -> f64 {
        let (a, b) = (a.max(-12.0), b.min(12.0));
        let n = 20_000;
        let h = (b - a) / f64::from(n);
        (0..n).map(|i| f(a + h * (f64::from(i) + 0.5)) * h).sum()
    }

    fn gauss(x: f64) -> f64 {
        0.398_942_280_401_432_7 * (-x * x / 2.0).exp()
    }

    #[test]
    fn levels_are_centroids_and_boundaries_midpoints() {
        for bits in 1..=MAX_BITS {
            let table = LloydMax::gaussian(bits).unwrap();
            assert_eq!(table.levels().len(), 1 << bits);
            for (i, (a, b)) in cells(table.boundaries()).enumerate() {
                let centroid = integrate(|x| x * gauss(x), a, b) / integrate(gauss, a, b);
                assert!((centroid - table.levels()[i]).abs() < 1e-5, "{bits} bits, level {i}");
            }
            for (i, boundary) in table.boundaries().iter().enumerate() {
                let middle = (table.levels()[i] + table.levels()[i + 1]) / 2.0;
                assert!((middle - boundary).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn distortions_are_the_published_ones() {
        for (bits, published) in [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)] {
            let table = LloydMax::gaussian(bits).unwrap();
            assert!(
                (table.distortion() / published - 1.0).abs() < 1e-3,
                "{bits} bits: {}",
                table.distortion()
            );
            let direct: f64 = cells(table.boundaries())
                .zip(table.levels())
                .map(|((a, b), q)| integrate(|x| (x - q).powi(2) * gauss(x), a, b))
                .sum();
            assert!((direct - table.distortion()).abs() < 1e-6);
        }
    }

    #[test]
    fn one_bit_is_the_mean_absolute_value() {
        let level = LloydMax::gaussian(1).unwrap().levels()[1];
        assert!((level - (2.0 / std::f64::consts::PI).sqrt()).abs() < 1e-9);
    }

    #[test]
    fn quantiles_undo_the_distribution() {
        for (p, x) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.05, -1.644_853_627), (0.999, 3.090_232_306)] {
            assert!((quantile(p) - x).abs() < 1e-8, "{p}: {}", quantile(p));
        }
    }

    #[test]
    fn there_is_no_table_outside_the_range() {
        assert!(LloydMax::gaussian(0).is_none() && LloydMax::gaussian(6).is_none());
    }
}
