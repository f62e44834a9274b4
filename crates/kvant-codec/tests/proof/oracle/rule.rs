//! The quantisation rules from their definitions.

use super::fit;
use super::number::Format;
use kvant_codec::Rule;
use std::sync::OnceLock;

/// The level that a code stands for, in units of the scale.
pub fn level(rule: Rule, bits: u8, code: u8) -> f64 {
    match rule {
        Rule::Symmetric | Rule::SignedMax | Rule::FittedMax => {
            f64::from(code) - f64::from(1u32 << (bits - 1))
        }
        Rule::Asymmetric | Rule::FittedRange | Rule::Bins => f64::from(code),
        _ => table(rule, bits)[usize::from(code)],
    }
}

/// Whether a zero is stored beside the scale.
pub fn zeros(rule: Rule) -> bool {
    matches!(rule, Rule::Asymmetric | Rule::FittedRange | Rule::Bins)
}

/// Whether the rule fits scales of codes of this width to the numbers.
pub fn fits(rule: Rule, bits: u8) -> bool {
    matches!(rule, Rule::FittedMax | Rule::FittedRange) && bits < 6
}

/// Whether codes stand for entries of a table.
pub fn tabled(rule: Rule) -> bool {
    matches!(rule, Rule::LloydMax | Rule::NormalFloat | Rule::NonLinear | Rule::Sketch)
}

/// The level the kernels see: asymmetric codes are centred.
pub fn centred(rule: Rule, bits: u8, code: u8) -> f64 {
    let centre = if zeros(rule) { f64::from(1u32 << (bits - 1)) } else { 0.0 };
    level(rule, bits, code) - centre
}

/// The number of steps between zero and the extreme, or the root mean square, of `count` numbers: s = extent / steps.
pub fn steps(rule: Rule, bits: u8, count: usize) -> f64 {
    match rule {
        Rule::Symmetric => f64::from((1u32 << (bits - 1)) - 1),
        Rule::SignedMax | Rule::FittedMax => -f64::from(1u32 << (bits - 1)),
        Rule::Asymmetric | Rule::FittedRange => f64::from((1u32 << bits) - 1),
        Rule::Bins => f64::from(1u32 << bits),
        Rule::NormalFloat => 127.0,
        Rule::NonLinear => -127.0,
        Rule::LloydMax => 127.0 / lloyd_max(bits)[(1 << bits) - 1],
        // s·127 = ‖x‖/(d·E|u₁|) = rms/(√d·E|u₁|).
        Rule::Sketch => 127.0 * (count as f64).sqrt() * mean_coordinate(count),
    }
}

/// E|u₁| on the sphere: ∫ |cos a|·sinⁿ a over ∫ sinⁿ a with n = d − 2, where the first integral is 2/(d − 1).
fn mean_coordinate(dim: usize) -> f64 {
    if dim == 1 {
        return 1.0;
    }
    const PARTS: usize = 100_000;
    let h = std::f64::consts::PI / PARTS as f64;
    let whole: f64 = (0..PARTS).map(|i| (h * (i as f64 + 0.5)).sin().powi(dim as i32 - 2) * h).sum();
    2.0 / ((dim - 1) as f64 * whole)
}

/// The scales that numbers known to ± `blur` may be coded under: exact extremes, and both signs of them if they are equal
/// within the blur.
pub fn signed_extremes(values: &[f64], blur: f64) -> impl Iterator<Item = f64> {
    let top = values.iter().fold(0.0f64, |top, x| top.max(x.abs()));
    values.iter().copied().filter(move |x| x.abs() >= top - blur)
}

/// Whether `scale` and `zero` are what the rule stores for `values`, which are known to ± `blur` and were given `codes`.
pub fn check_scale(
    rule: Rule,
    bits: u8,
    format: Format,
    values: &[f64],
    blur: f64,
    codes: impl Fn(usize) -> u8,
    (scale, zero): (f64, f64),
) -> Result<(), String> {
    /// The division that made the scale was in f32.
    const F32: f64 = 1.2e-7;
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let steps = steps(rule, bits, values.len());
    let near =
        |want: f64| (scale - want).abs() <= 0.5 * format.ulp(want) + blur / steps.abs() + F32 * want.abs();
    let right = match rule {
        Rule::FittedMax | Rule::FittedRange if fits(rule, bits) => {
            fit::is_as_good(rule, bits, format, values, blur, (scale, zero))
        }
        Rule::Symmetric | Rule::NormalFloat => near(high.max(-low) / steps),
        Rule::SignedMax | Rule::FittedMax => {
            // Of two extremes that are equal within the blur either may be taken.
            signed_extremes(values, blur).any(|x| near(x / steps))
        }
        Rule::Asymmetric | Rule::FittedRange => {
            // z is the next number below the minimum, s the next above (max − z)/(2^b − 1).
            let want = (high - zero) / steps;
            let slack = blur / steps + F32 * want;
            zero <= low + blur
                && zero > low - format.ulp(low) - blur
                && scale >= want - slack
                && scale < want + slack + format.ulp(want).max(f64::MIN_POSITIVE)
        }
        Rule::Bins => {
            // s is rounded first, and z is the middle of a bin of that width.
            let middle = low + 0.5 * scale;
            near((high - low) / steps)
                && (zero - middle).abs() <= 0.5 * format.ulp(middle) + blur + F32 * middle.abs()
        }
        Rule::NonLinear => {
            let level = |i: usize| level(rule, bits, codes(i));
            let weighted =
                |f: &dyn Fn(usize) -> f64| (0..values.len()).map(|i| values[i].powi(2) * f(i)).sum::<f64>();
            let power = weighted(&|i| level(i).powi(2));
            let want = if power > 0.0 { weighted(&|i| values[i] * level(i)) / power } else { 0.0 };
            let slack = 0.5 * format.ulp(want) + 16.0 * blur / 127.0 + 4e-6 * want.abs();
            // Numbers so small that their scale has no reciprocal are all coded as zeros.
            (scale - want).abs() <= slack || high.max(-low) / 127.0 <= f64::from(f32::MIN_POSITIVE)
        }
        Rule::LloydMax | Rule::Sketch => {
            let rms = (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt();
            let want = rms / steps;
            (scale - want).abs() <= 0.5 * format.ulp(want) + blur / steps + 1e-6 * want
        }
    };
    if right {
        Ok(())
    } else {
        Err(format!("{rule:?} {bits} bits: scale {scale:e}, zero {zero:e} for {low:e}..{high:e}"))
    }
}

/// The scales under which codes may have been chosen: the stored one, or, where that was fitted to the codes afterwards,
/// the one before.
pub fn coding_scales(rule: Rule, values: &[f64], blur: f64, stored: f64) -> Vec<f64> {
    match rule {
        Rule::NonLinear => signed_extremes(values, blur).map(|x| x / -127.0).collect(),
        _ => vec![stored],
    }
}

/// Whether `code` is what (x − z)/s = `exact` rounds to. Within `near` of a boundary either side will do.
pub fn check_code(rule: Rule, bits: u8, exact: f64, code: u8, near: f64) -> bool {
    let top = (1u32 << bits) - 1;
    if tabled(rule) {
        let (i, table) = (usize::from(code), table(rule, bits));
        let above = i == 0 || exact >= 0.5 * (table[i - 1] + table[i]) - near;
        let below = i == top as usize || exact <= 0.5 * (table[i] + table[i + 1]) + near;
        return above && below;
    }
    // The symmetric rule never writes code 0.
    let lowest = u8::from(rule == Rule::Symmetric);
    let range = (level(rule, bits, lowest), level(rule, bits, top as u8));
    code >= lowest && (level(rule, bits, code) - exact.clamp(range.0, range.1)).abs() <= 0.5 + near
}

/// What ggml calls `kvalues_iq4nl`, and the published NF4 in units of 1/127.
const IQ4_NL: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];
const NF4: [f64; 16] =
    [-127.0, -88.0, -67.0, -50.0, -36.0, -23.0, -12.0, 0.0, 10.0, 20.0, 31.0, 43.0, 56.0, 71.0, 92.0, 127.0];

/// The integer levels of a table; Lloyd–Max in units of 1/127 of the largest, rounded.
fn table(rule: Rule, bits: u8) -> &'static [f64] {
    static TABLES: [OnceLock<Vec<f64>>; 6] = [const { OnceLock::new() }; 6];
    match rule {
        Rule::NonLinear => return &IQ4_NL,
        Rule::NormalFloat => return &NF4,
        Rule::Sketch => return &[-127.0, 127.0],
        _ => {}
    }
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
