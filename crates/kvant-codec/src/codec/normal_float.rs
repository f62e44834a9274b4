//! `nf4`: NormalFloat, sixteen quantiles of the Gaussian under a group's largest magnitude. QLoRA made it for weights in
//! blocks of 64; here the block is 64 channels of a token.
//!
//! The table is kept in units of 1/127, as the kernels multiply it, which moves a level by at most 0.4 % of the largest
//! magnitude. 4.25 bits/value.

use super::family::{Family, GroupSize, Options, Scaling};
use super::scalar;
use crate::quant::Rule;

/// `nf4`.
pub(crate) const NF: Family = scalar::family(
    "nf",
    4..=4,
    &[4],
    "per token and group: s = max|x|, nearest of 16 Gaussian quantiles between −1 and 1",
    "NF4 of QLoRA (Dettmers et al. 2023)",
    Options { scaling: Scaling::Group(GroupSize::G64), rule: Rule::NormalFloat, ..Options::PLAIN },
);
