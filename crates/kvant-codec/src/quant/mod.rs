//! Scalar quantisers: how a number becomes a code.
//!
//! A rule turns the numbers under one scale into a scale s (and for the asymmetric rule a zero z), rounds *those* to
//! the stored format, and only then codes the numbers, so that the rounding of the scale is not a second error.
//! Every rule reconstructs x̂ = s·level(code) + z with integer levels, because the kernels multiply integers.

mod lloyd_max;

pub use lloyd_max::{LloydMax, MAX_BITS as MAX_TABLE_BITS};

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
    /// s ∝ root mean square; levels are the Lloyd–Max table for the Gaussian.
    LloydMax,
}

impl Rule {
    /// The widths the rule is defined for. One asymmetric bit exists for plans.
    pub fn widths(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Rule::Symmetric | Rule::SignedMax => 2..=8,
            Rule::Asymmetric => 1..=8,
            Rule::LloydMax => 1..=MAX_TABLE_BITS,
        }
    }
}

/// The integer levels of a rule at a width, as encoder, decoder and kernels share them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Levels {
    pub rule: Rule,
    pub bits: u8,
    /// For Lloyd–Max: level of each code in units of 1/127 of the largest. Kernels index it with any 5-bit code, so
    /// it is filled up with zeros.
    pub table: [i8; 32],
    /// For Lloyd–Max: the midpoints between neighbouring levels, in the same unit.
    pub boundaries: Vec<f32>,
    /// For Lloyd–Max: the standard Gaussian's unit, c_max / 127.
    pub unit: f32,
}

impl Levels {
    /// # Panics
    /// When the rule has no such width; specs refuse that before.
    pub(crate) fn new(rule: Rule, bits: u8) -> Levels {
        assert!(rule.widths().contains(&bits), "{rule:?} has no {bits}-bit levels");
        let mut levels = Levels { rule, bits, table: [0; 32], boundaries: Vec::new(), unit: 1.0 };
        if rule == Rule::LloydMax {
            let exact = LloydMax::gaussian(bits).expect("the width was checked").levels();
            let unit = exact[exact.len() - 1] / 127.0;
            for (slot, level) in levels.table.iter_mut().zip(exact) {
                *slot = (level / unit).round() as i8;
            }
            let integers = &levels.table[..exact.len()];
            levels.boundaries =
                integers.windows(2).map(|pair| 0.5 * (f32::from(pair[0]) + f32::from(pair[1]))).collect();
            levels.unit = unit as f32;
        }
        levels
    }

    /// The code that stands for level zero, where codes are levels shifted; the kernels subtract it. Codes of the
    /// asymmetric rule are centred too, because a rounded query does less harm to centred codes.
    pub(crate) fn centre(&self) -> i32 {
        match self.rule {
            Rule::LloydMax => 0,
            _ => 1 << (self.bits - 1),
        }
    }

    /// level(code).
    pub(crate) fn level(&self, code: u8) -> f32 {
        match self.rule {
            Rule::LloydMax => f32::from(self.table[usize::from(code)]),
            Rule::Asymmetric => f32::from(code),
            Rule::Symmetric | Rule::SignedMax => f32::from(code) - self.centre() as f32,
        }
    }

    /// The smallest and largest code that is ever written.
    pub(crate) fn range(&self) -> (f32, f32) {
        let top = ((1u32 << self.bits) - 1) as f32;
        match self.rule {
            Rule::Symmetric => (1.0, top),
            _ => (0.0, top),
        }
    }

    /// The denominator of the scale: s = extent / divisor.
    pub(crate) fn divisor(&self) -> f32 {
        match self.rule {
            Rule::Symmetric => ((1u32 << (self.bits - 1)) - 1) as f32,
            Rule::SignedMax => -((1u32 << (self.bits - 1)) as f32),
            Rule::Asymmetric => ((1u32 << self.bits) - 1) as f32,
            Rule::LloydMax => 1.0 / self.unit,
        }
    }
}
