//! `uniform{b}`: quant.cpp's min–max types. A token's channels in blocks of 128, as many equal bins as codes between the
//! smallest and the largest number, and the middle of a bin for what fell into it. Its 4-bit type is `uniform4`; its 2-bit
//! type cuts the block into four, which is `uniform2g32`.
//!
//! Where it keeps the minimum, the middle of the lowest bin is kept here: the same numbers after decoding, and the
//! kernels of the other asymmetric codecs. b bits and a scale and a zero for 128 channels, or for all there are:
//! `uniform4` takes 4.25 bits/value at d = 128 and 4.5 at 64. One loud channel costs all the others their bits.

use super::family::{Family, GroupSize, Options, Scaling};
use super::scalar;
use crate::quant::Rule;

/// `uniform{b}`.
pub(crate) const UNIFORM: Family = scalar::family(
    "uniform",
    2..=8,
    &[2, 4],
    "per token and 128 channels: s = (max − min)/2^b, code = ⌊(x − min)/s⌋, x̂ = min + (code + ½)·s",
    "quant.cpp uniform_4b, uniform_2b",
    Options { scaling: Scaling::Group(GroupSize::G128), rule: Rule::Bins, ..Options::PLAIN },
);
