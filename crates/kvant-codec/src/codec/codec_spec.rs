//! One side's codec by name: what a spec is parsed to, and what a family builds from.

use super::option::difference;
use super::{Build, Calibration, Family, Options, PageCodec, Scaling};
use crate::error::BuildError;
use crate::format::Side;
use kvant_simd::Tier;
use std::fmt;

/// The codec of one side: a family, a width and options.
#[derive(Clone)]
pub struct CodecSpec {
    /// The family whose name is printed.
    pub family: &'static Family,
    /// Bits per code; 0 for families that have only one width.
    pub bits: u8,
    /// Everything else.
    pub options: Options,
}

impl PartialEq for CodecSpec {
    fn eq(&self, other: &CodecSpec) -> bool {
        self.family.name == other.family.name && self.bits == other.bits && self.options == other.options
    }
}

impl Eq for CodecSpec {}

impl CodecSpec {
    /// Builds the codec for heads of `dim` channels with the best instruction set of this machine.
    ///
    /// # Errors
    /// When the dimension or the combination of options is not supported, or the spec needs a plan.
    pub fn build(&self, side: Side, dim: usize) -> Result<Box<dyn PageCodec>, BuildError> {
        self.build_with(side, dim, &Calibration::default(), Tier::select()?)
    }

    /// Builds the codec with a plan's numbers and on a given instruction set.
    ///
    /// # Errors
    /// As [`CodecSpec::build`]; also when the plan does not fit.
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn build_with(
        &self,
        side: Side,
        dim: usize,
        calibration: &Calibration,
        tier: Tier,
    ) -> Result<Box<dyn PageCodec>, BuildError> {
        (self.family.build)(&Build { spec: self, side, dim, calibration, tier })
    }

    /// Whether it takes numbers that calibration finds for each head.
    pub fn needs_plan(&self) -> bool {
        let Options { mean, lambda, balanced, learned, .. } = self.options;
        mean || lambda || balanced || learned.is_some() || self.shares_bits()
    }

    /// Whether channels get widths of their own from a plan, within a budget of bits.
    pub fn shares_bits(&self) -> bool {
        self.family.shares_bits() && self.family.shown.is_empty()
    }

    /// Bits per value of this side for heads of `dim` channels, everything counted.
    ///
    /// # Errors
    /// As [`CodecSpec::build`].
    pub fn bits_per_value(&self, side: Side, dim: usize) -> Result<f64, BuildError> {
        Ok(self.build(side, dim)?.bits_per_value())
    }
}

impl fmt::Display for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.name)?;
        if self.bits > 0 {
            write!(f, "{}", self.bits)?;
        } else if self.family.shares_bits() {
            write!(f, "{}", self.options.budget.bits())?;
        }
        // `rot4g32` keeps its group even though it is the default: people read it as part of the name.
        let grouped = matches!(self.options.scaling, Scaling::Group(_)) && self.family.takes_groups();
        if let (Scaling::Group(group), true) = (self.options.scaling, grouped) {
            write!(f, "g{}", group.channels())?;
        }
        let from = Options {
            scaling: if grouped { self.options.scaling } else { self.family.defaults.scaling },
            ..self.family.defaults
        };
        let words = difference(from, &self.options).unwrap_or_default();
        if words.is_empty() { Ok(()) } else { write!(f, ":{}", words.join(",")) }
    }
}

impl fmt::Debug for CodecSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodecSpec({self})")
    }
}
