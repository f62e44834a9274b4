//! Scalar quantisers: how a number becomes a code.
//!
//! A rule turns the numbers under one scale into a scale s (and for the asymmetric rule a zero z), rounds *those* to
//! the stored format, and only then codes the numbers, so that the rounding of the scale is not a second error.
//! Every rule reconstructs x̂ = s·level(code) + z with integer levels, because the kernels multiply integers.

pub mod allocation;
mod lloyd_max;
mod table;

pub use lloyd_max::{LloydMax, MAX_BITS as MAX_TABLE_BITS};

use crate::format::CodeMeaning;

/// How a scale is chosen and a number rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// s = max|x| / (2^(b−1) − 1), levels −(2^(b−1) − 1) … 2^(b−1) − 1.
    Symmetric,
    /// s = x* / −2^(b−1) where x* is the number of largest magnitude, *with its sign*; levels −2^(b−1) … 2^(b−1) − 1:
    /// the extreme number is exact and all 2^b levels are used (llama.cpp's q4_0 and q5_0).
    SignedMax,
    /// z = min x, s = (max x − z) / (2^b − 1), levels 0 … 2^b − 1. z is rounded down and s up, so that nothing is
    /// clipped.
    Asymmetric,
    /// As [`Rule::SignedMax`], with a scale of less error: of the three that [`Rule::max_parts`] give the best one, moved to
    /// least squares for the codes under it. As [`Rule::SignedMax`] where it does not [fit](Rule::fits).
    FittedMax,
    /// As [`Rule::Asymmetric`], with a scale and a zero of less error: of the three ranges that [`Rule::RANGE_CUTS`] give the
    /// best one, moved to least squares for the codes under it. As [`Rule::Asymmetric`] where it does not [fit](Rule::fits).
    FittedRange,
    /// s ∝ root mean square; levels are the Lloyd–Max table for the Gaussian.
    LloydMax,
    /// 2^b bins of equal width s = (max x − min x) / 2^b, each stood for by its middle: z = min x + s/2, levels
    /// 0 … 2^b − 1. Half a step is lost at both ends, where [`Rule::Asymmetric`] is exact (quant.cpp).
    Bins,
    /// s = max|x| / 127; levels are the NF4 table, quantiles of the Gaussian from −127 to 127 (QLoRA).
    NormalFloat,
    /// Codes under s₀ = x* / −127 where x* is the number of largest magnitude, with its sign; levels are ggml's iq4_nl
    /// table. What is stored is then the s of least Σ x²·(x − s·level)² for these codes: s = Σ x³·level / Σ x²·level².
    NonLinear,
    /// One sign per number, and s = ‖x‖ / (d·E|u₁|) for u uniform on the sphere, E|u₁| = Γ(d/2) / (√π·Γ((d+1)/2)): under a
    /// uniformly random rotation s·sign(x) has every inner product right on average (QJL).
    Sketch,
}

impl Rule {
    /// The widths the rule is defined for. One asymmetric bit exists for plans.
    pub fn widths(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Rule::Symmetric | Rule::SignedMax | Rule::FittedMax => 2..=8,
            Rule::Asymmetric | Rule::FittedRange | Rule::Bins => 1..=8,
            Rule::LloydMax => 1..=MAX_TABLE_BITS,
            Rule::NormalFloat | Rule::NonLinear => 4..=4,
            Rule::Sketch => 1..=1,
        }
    }

    /// What is left out at the low end and at the high end of the ranges that [`Rule::FittedRange`] tries, in steps of the whole
    /// one. Less than half a step: so no number is rounded to a level that there is not.
    pub const RANGE_CUTS: [(f32, f32); 3] = [(0.2, 0.2), (0.4, 0.0), (0.0, 0.4)];

    /// How often the smallest and the largest number count more than the others for [`Rule::FittedRange`]. They are large in other
    /// channels too where they belong to a token that stands out, and such tokens get attention.
    pub const END_WEIGHT: f32 = 4.0;

    /// The signed maxima that [`Rule::FittedMax`] tries, as parts of the whole. The extreme is still rounded to the last level
    /// under them, because it lies less than half a step beyond.
    pub const fn max_parts(bits: u8) -> [f32; 3] {
        let bottom = (1u32 << (bits - 1)) as f32;
        [if bits < 3 { 0.81 } else { 1.0 - 0.4 / bottom }, 1.01, 1.0 + 0.96 / bottom]
    }

    /// Whether scales of codes of this width are fitted to the numbers. At 6 bits and more there is nothing to gain by it.
    pub fn fits(self, bits: u8) -> bool {
        matches!(self, Rule::FittedMax | Rule::FittedRange) && bits < 6
    }

    /// Whether a zero is stored beside the scale.
    pub fn has_zero(self) -> bool {
        matches!(self, Rule::Asymmetric | Rule::FittedRange | Rule::Bins)
    }
}

/// The integer levels of a rule at a width, as an encoder needs them; a decoder does with their meaning.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels {
    /// How scales and zeros are chosen.
    pub rule: Rule,
    pub bits: u8,
    /// What codes mean. The largest magnitude of a table is 127.
    pub meaning: CodeMeaning,
    /// Of a table: the midpoints between neighbouring levels, in the same unit.
    pub boundaries: Vec<f32>,
    /// Of a table: the scale for numbers of root mean square one, or of largest magnitude one.
    pub unit: f32,
}

impl Levels {
    /// Levels for numbers of which `count` share a scale.
    ///
    /// # Panics
    /// When the rule has no such width; specs refuse that before.
    pub(crate) fn new(rule: Rule, bits: u8, count: usize) -> Levels {
        assert!(rule.widths().contains(&bits), "{rule:?} has no {bits}-bit levels");
        let evenly = |meaning| Levels { rule, bits, meaning, boundaries: Vec::new(), unit: 1.0 / 127.0 };
        let (table, unit) = match rule {
            Rule::Symmetric | Rule::SignedMax | Rule::FittedMax => return evenly(CodeMeaning::Shifted),
            Rule::Asymmetric | Rule::FittedRange | Rule::Bins => return evenly(CodeMeaning::WithZero),
            Rule::LloydMax => rounded(LloydMax::gaussian(bits).expect("the width was checked").levels()),
            Rule::NormalFloat => rounded(&table::normal_float()),
            Rule::NonLinear => (filled(table::IQ4_NL), 1.0 / 127.0),
            Rule::Sketch => {
                let step = 1.0 / ((count as f64).sqrt() * mean_coordinate(count));
                rounded(&[-step, step])
            }
        };
        let midpoint = |pair: &[i8]| 0.5 * (f32::from(pair[0]) + f32::from(pair[1]));
        let boundaries = table[..1 << bits].windows(2).map(midpoint).collect();
        Levels { rule, bits, meaning: CodeMeaning::Table(table), boundaries, unit }
    }

    /// Whether the scale comes from the root mean square, and not from the extremes.
    pub(crate) fn by_power(&self) -> bool {
        matches!(self.rule, Rule::LloydMax | Rule::Sketch)
    }

    /// Whether scales are fitted to the numbers.
    pub(crate) fn fits(&self) -> bool {
        self.rule.fits(self.bits)
    }

    /// The code in the middle of evenly spaced levels; zero for tables.
    pub(crate) fn centre(&self) -> i32 {
        self.meaning.centre(self.bits)
    }

    /// The smallest and largest code that is ever written.
    pub(crate) fn range(&self) -> (f32, f32) {
        let top = ((1u32 << self.bits) - 1) as f32;
        match self.rule {
            Rule::Symmetric => (1.0, top),
            _ => (0.0, top),
        }
    }

    /// What the extent of evenly spaced levels is divided by: s = extent / divisor.
    pub(crate) fn divisor(&self) -> f32 {
        match self.rule {
            Rule::Symmetric => ((1u32 << (self.bits - 1)) - 1) as f32,
            Rule::SignedMax | Rule::FittedMax => -((1u32 << (self.bits - 1)) as f32),
            Rule::Asymmetric | Rule::FittedRange => ((1u32 << self.bits) - 1) as f32,
            Rule::Bins => (1u32 << self.bits) as f32,
            Rule::NormalFloat => 127.0,
            Rule::NonLinear => f32::from(table::IQ4_NL[0]),
            Rule::LloydMax | Rule::Sketch => 1.0 / self.unit,
        }
    }
}

/// A table of exact levels, the largest rounded to 127, and the unit they are now in.
fn rounded(exact: &[f64]) -> ([i8; 32], f32) {
    let unit = exact[exact.len() - 1] / 127.0;
    (filled(exact.iter().map(|level| (level / unit).round() as i8)), unit as f32)
}

/// Kernels look up any code of 5 bits, so a shorter table is filled up with zeros.
fn filled(levels: impl IntoIterator<Item = i8>) -> [i8; 32] {
    let mut table = [0; 32];
    table.iter_mut().zip(levels).for_each(|(slot, level)| *slot = level);
    table
}

/// E|u₁| for u uniform on the unit sphere of d dimensions: Γ(d/2) / (√π·Γ((d+1)/2)), two dimensions at a time.
fn mean_coordinate(dim: usize) -> f64 {
    let first = if dim % 2 == 1 { 1.0 } else { std::f64::consts::FRAC_2_PI };
    (2 - dim % 2..dim).step_by(2).fold(first, |mean, d| mean * d as f64 / (d + 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_coordinates_are_those_of_the_sphere() {
        // On a line |u| = 1, on a circle 2/π, on the sphere in space ½ (Archimedes), in general about √(2/πd).
        for (dim, want) in
            [(1, 1.0), (2, std::f64::consts::FRAC_2_PI), (3, 0.5), (4, 4.0 / (3.0 * std::f64::consts::PI))]
        {
            assert!((mean_coordinate(dim) - want).abs() < 1e-15, "{dim}: {}", mean_coordinate(dim));
        }
        for dim in [64, 65, 576] {
            let d = dim as f64;
            let series = (std::f64::consts::FRAC_2_PI / d).sqrt() * (1.0 + 0.25 / d + 1.0 / (32.0 * d * d));
            assert!((mean_coordinate(dim) / series - 1.0).abs() < 1e-6);
        }
    }
}
