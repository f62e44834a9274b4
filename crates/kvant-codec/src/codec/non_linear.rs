//! `iq4`: llama.cpp's `iq4_nl`, a hand-made table of sixteen levels, denser around zero, for blocks of 32 channels of a
//! token. Codes are chosen under the scale that makes the extreme number exact; the scale that is stored then minimises
//! the error of these codes, large numbers counting more. That is what llama.cpp does when it writes a cache; for weights
//! it also searches over scales.
//!
//! `iq4:had64` has llama.cpp's rotation of the cache and is the preset `iq4_nl`. 4.5 bits/value; of the codecs with one
//! scale per 32 channels it is the best of these bits on rotated keys and values.

use super::family::{Family, Options};
use super::scalar;
use crate::quant::Rule;

/// `iq4`.
pub(crate) const IQ: Family = Family {
    accepts: &["rotation", "scales", "page", "lambda", "mean", "seed"],
    ..scalar::family(
        "iq",
        4..=4,
        &[4],
        "per token and 32 channels: nearest of 16 levels under x*/−127, then the s of least Σ x²·(x − s·level)²",
        "llama.cpp iq4_nl",
        Options { rule: Rule::NonLinear, ..Options::PLAIN },
    )
};
