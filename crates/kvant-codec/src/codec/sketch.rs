//! `qjl1`: a sign sketch. Of a key only the signs of a random rotation and its norm are kept; of the query, everything.
//! For a row s of the rotation, E[(s·q)·sign(s·k)] is proportional to q·k/‖k‖, whatever the angle between them, so
//!
//! q·k ≈ ‖k‖ / (d·E|u₁|) · Σ (Rq)ᵢ·sign((Rk)ᵢ), with E|u₁| ≈ √(2/πd),
//!
//! is right on average over the rotations, exactly so for a rotation drawn uniformly (`haar`); a randomised Hadamard
//! transform would be off for vectors that it leaves sparse. With Gaussian rows in place of orthogonal ones this is the
//! estimator √(π/2)/m · ‖k‖ · ⟨Sq, sign(Sk)⟩ of the paper at m = d; orthogonal rows have the smaller variance, and the
//! paper orthogonalises its own. What the paper has besides is left out: sketches of more than d signs, and outlier
//! channels with a sketch of their own.
//!
//! One bit and a scale per token: 1.125 bits/value at d = 128, 1.25 at 64. Unbiased is not exact: the noise of a score is
//! about 0.75·‖q‖‖k‖/√d. As a value, s·sign(Rv) is unbiased as well, but what is left after averaging over a few tokens
//! with large weights is mostly noise, of more than half the power of v. The paper keeps values at 2 bits with a scale per
//! group, which is the preset `qjl`.

use super::family::{Family, Options, Scaling};
use super::scalar;
use crate::format::Rotation;
use crate::quant::Rule;

/// `qjl1`.
pub(crate) const QJL: Family = Family {
    accepts: &["scales", "page", "seed"],
    ..scalar::family(
        "qjl",
        1..=1,
        &[1],
        "uniformly random rotation, sign of each coordinate, s = ‖x‖/(d·E|u₁|) per token: unbiased inner products",
        "QJL (Zandieh et al. 2024) keys, m = d",
        Options { rotation: Rotation::Haar, scaling: Scaling::Token, rule: Rule::Sketch, ..Options::PLAIN },
    )
};
