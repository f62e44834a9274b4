//! The quantisation rules from their definitions.

use super::number::Format;
use kvant_codec::Rule;
use std::sync::OnceLock;

/// The level that a code stands for, in units of the scale.
pub fn level(rule: Rule, bits: u8, code: u8) -> f64 {
    match rule {
        Rule::Symmetric | Rule::SignedMax => f64::from(code) - f64::from(1u32 << (bits - 1)),
        Rule::Asymmetric => f64::from(code),
        Rule::LloydMax => table(bits)[usize::from(code)],
    }
}

/// The level the kernels see: asymmetric codes are centred.
pub fn centred(rule: Rule, bits: u8, code: u8) -> f64 {
    let centre = if rule == Rule::Asymmetric { f64::from(1u32 << (bits - 1)) } else { 0.0 };
    level(rule, bits, code) - centre
}

/// The number of steps between zero and the extreme: s = extent / steps.
pub fn steps(rule: Rule, bits: u8) -> f64 {
    match rule {
        Rule::Symmetric => f64::from((1u32 << (bits - 1)) - 1),
        Rule::SignedMax => -f64::from(1u32 << (bits - 1)),
        Rule::Asymmetric => f64::from((1u32 << bits) - 1),
        Rule::LloydMax => 127.0 / lloyd_max(bits)[(1 << bits) - 1],
    }
}

/// Whether `scale` and `zero` are what the rule stores for `values`, which are known to ± `blur`.
pub fn check_scale(
    rule: Rule,
    bits: u8,
    format: Format,
    values: &[f64],
    blur: f64,
    (scale, zero): (f64, f64),
) -> Result<(), String> {
    /// The division that made the scale was in f32.
    const F32: f64 = 1.2e-7;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let near = |want: f64| {
        (scale - want).abs() <= 0.5 * format.ulp(want) + blur / steps(rule, bits).abs() + F32 * want.abs()
    };
    let right = match rule {
        Rule::Symmetric => near(high.max(-low) / steps(rule, bits)),
        Rule::SignedMax => {
            // Of two extremes that are equal within the blur either may be taken.
            let top = high.max(-low);
            [low, high].into_iter().any(|x| x.abs() >= top - blur && near(x / steps(rule, bits)))
        }
        Rule::Asymmetric => {
            // z is the next number below the minimum, s the next above (max − z)/(2^b − 1).
            let want = (high - zero) / steps(rule, bits);
            let slack = blur / steps(rule, bits) + F32 * want;
            zero <= low + blur
                && zero > low - format.ulp(low) - blur
                && scale >= want - slack
                && scale < want + slack + format.ulp(want).max(f64::MIN_POSITIVE)
        }
        Rule::LloydMax => {
            let rms = (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
            let want = rms / steps(rule, bits);
            (scale - want).abs() <= 0.5 * format.ulp(want) + blur / steps(rule, bits) + 1e-6 * want
        }
    };
    if right {
        Ok(())
    } else {
        Err(format!("{rule:?} {bits} bits: scale {scale:e}, zero {zero:e} for {low:e}..{high:e}"))
    }
}

/// Whether `code` is what (x − z)/s = `exact` rounds to. Within `near` of a boundary either side will do.
pub fn check_code(rule: Rule, bits: u8, exact: f64, code: u8, near: f64) -> bool {
    let top = (1u32 << bits) - 1;
    if rule == Rule::LloydMax {
        let (i, table) = (usize::from(code), table(bits));
        let above = i == 0 || exact >= 0.5 * (table[i - 1] + table[i]) - near;
        let below = i == top as usize || exact <= 0.5 * (table[i] + table[i + 1]) + near;
        return above && below;
    }
    // The symmetric rule never writes code 0.
    let lowest = u8::from(rule == Rule::Symmetric);
    let range = (level(rule, bits, lowest), level(rule, bits, top as u8));
    code >= lowest && (level(rule, bits, code) - exact.clamp(range.0, range.1)).abs() <= 0.5 + near
}

/// Lloyd–Max levels in units of 1/127 of the largest, rounded.
fn table(bits: u8) -> &'static [f64] {
    static TABLES: [OnceLock<Vec<f64>>; 6] = [const { OnceLock::new() }; 6];
    TABLES[usize::from(bits)].get_or_init(|| {
        let levels = lloyd_max(bits);
        let unit = levels[levels.len() - 1] / 127.0;
        levels.iter().map(|level| (level / unit).round()).collect()
    })
}

/// The quantiser of least mean square error for N(0, 1), by its two conditions in turn. Only the positive half is
/// iterated; Φ and the first moment come from sums over a fine grid.
fn lloyd_max(bits: u8) -> &'static [f64] {
    static TABLES: [OnceLock<Vec<f64>>; 6] = [const { OnceLock::new() }; 6];
    TABLES[usize::from(bits)].get_or_init(|| {
        const H: f64 = 1e-3;
        let density = |x: f64| (-0.5 * x * x).exp();
        let simpson =
            |a: f64, b: f64| (b - a) / 6.0 * (density(a) + 4.0 * density(0.5 * (a + b)) + density(b));
        let mut mass = vec![0.0];
        for i in 0..10_000 {
            mass.push(mass[i] + simpson(H * i as f64, H * (i + 1) as f64));
        }
        let mass = |x: f64| {
            let i = ((x / H) as usize).min(9_999);
            mass[i] + simpson(H * i as f64, x)
        };
        let half = 1usize << (bits - 1);
        let mut levels: Vec<f64> = (0..half).map(|i| 3.0 * (i as f64 + 0.5) / half as f64).collect();
        for _ in 0..10_000 {
            let mut edges = vec![0.0];
            edges.extend(levels.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])));
            edges.push(9.0);
            let centroid =
                |pair: &[f64]| (density(pair[0]) - density(pair[1])) / (mass(pair[1]) - mass(pair[0]));
            let next: Vec<f64> = edges.windows(2).map(centroid).collect();
            let moved = next.iter().zip(&levels).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            levels = next;
            if moved < 1e-13 {
                break;
            }
        }
        levels.iter().rev().map(|level| -level).chain(levels.iter().copied()).collect()
    })
}
