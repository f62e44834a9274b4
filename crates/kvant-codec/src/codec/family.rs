//! Families of codecs and the options they take: the vocabulary behind the spec grammar.

use super::{CodecSpec, PageCodec};
use crate::error::BuildError;
use crate::format::{Dense, PageSize, Rotation, ScaleFormat, Side};
use crate::quant::Rule;
use crate::quant::allocation::Budget;
use kvant_simd::Tier;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// What numbers share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// One per token.
    Token,
    /// One per token and group of channels.
    Group(GroupSize),
    /// One per channel over the page.
    Channel,
    /// One per channel over the page, and one per token and group on top.
    ChannelGroup(GroupSize),
}

/// Channels that share a token's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupSize {
    /// 16.
    G16,
    /// 32.
    G32,
    /// 64.
    G64,
    /// 128.
    G128,
}

impl GroupSize {
    /// As a number.
    pub fn channels(self) -> usize {
        match self {
            GroupSize::G16 => 16,
            GroupSize::G32 => 32,
            GroupSize::G64 => 64,
            GroupSize::G128 => 128,
        }
    }
}

/// What training has put after the rotation, for the very codec that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Learned {
    /// A divisor per channel.
    Scaled,
    /// A rotation (I − A)(I + A)⁻¹ with A = −Aᵀ.
    Cayley,
    /// A product of d/2 reflections I − 2vvᵀ/‖v‖².
    Householder,
}

/// Everything a spec can say about one side besides its family and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// The change of basis.
    pub rotation: Rotation,
    /// What shares a scale.
    pub scaling: Scaling,
    /// How a scale is chosen and a number rounded.
    pub rule: Rule,
    /// How scales and zeros are stored.
    pub scales: ScaleFormat,
    /// Tokens in a page.
    pub page: PageSize,
    /// Divide by the plan's per-channel λ after the rotation.
    pub lambda: bool,
    /// Subtract the plan's mean before the rotation.
    pub mean: bool,
    /// Change to the plan's balanced basis before the rotation.
    pub balanced: bool,
    /// Code what the family prepares along tokens, by a trellis.
    pub trellis: bool,
    /// Apply what was learned for this codec after the rotation.
    pub learned: Option<Learned>,
    /// Bits of a code on average, for families that share them out among channels; part of the name and no option.
    pub budget: Budget,
    /// Seed of the sign diagonal.
    pub seed: u64,
}

impl Options {
    /// No rotation, symmetric, groups of 32, f16 scales, pages of 64.
    pub const PLAIN: Options = Options {
        rotation: Rotation::Identity,
        scaling: Scaling::Group(GroupSize::G32),
        rule: Rule::Symmetric,
        scales: ScaleFormat::F16,
        page: PageSize::P64,
        lambda: false,
        mean: false,
        balanced: false,
        trellis: false,
        learned: None,
        budget: Budget::NONE,
        seed: 0,
    };
}

/// Numbers that calibration found for one side of one head.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// Per-channel mean in the model's basis, for `mean`.
    pub mean: Option<Vec<f32>>,
    /// Per-channel divisor in the rotated basis, for `lambda` and `scaled`.
    pub lambda: Option<Vec<f32>>,
    /// Basis, for `klt`, `cayley` and `householder`, and for `balanced`, which is turned by the codec's own rotation.
    pub basis: Option<Arc<Dense>>,
    /// Bits of every row of units (8 channels of a key, 16 of a value), not increasing, for `klt`.
    pub widths: Option<Vec<u8>>,
}

/// What a family is asked to build.
pub struct Build<'a> {
    /// The whole spec of this side, for error messages.
    pub spec: &'a CodecSpec,
    /// Which side.
    pub side: Side,
    /// Head dimension.
    pub dim: usize,
    /// The plan's numbers; empty without a plan.
    pub calibration: &'a Calibration,
    /// Instruction set.
    pub tier: Tier,
}

impl Build<'_> {
    /// The spec's options.
    pub fn options(&self) -> &Options {
        &self.spec.options
    }
}

/// The constructor of a family.
pub type BuildFn = fn(&Build<'_>) -> Result<Box<dyn PageCodec>, BuildError>;

/// A named kind of codec.
pub struct Family {
    /// The letters of its spec.
    pub name: &'static str,
    /// Widths that may follow the name; none for families that have only one.
    pub bits: Option<RangeInclusive<u8>>,
    /// The widths that comparisons show, 0 standing for none; empty when a plan is needed.
    pub shown: &'static [u8],
    /// What it computes.
    pub formula: &'static str,
    /// Where it comes from.
    pub source: &'static str,
    /// What holds when the spec says nothing.
    pub defaults: Options,
    /// Classes of options it takes, by the names in [`crate::spec`].
    pub accepts: &'static [&'static str],
    /// Makes one.
    pub build: BuildFn,
}

impl Family {
    /// Whether bits are shared out among channels, as in `klt4.25`.
    pub(crate) fn shares_bits(&self) -> bool {
        self.defaults.budget != Budget::NONE
    }

    /// Whether a group may follow the width, as in `rot4g32`.
    pub(crate) fn takes_groups(&self) -> bool {
        self.bits.is_some() && self.accepts.contains(&"scaling")
    }
}
