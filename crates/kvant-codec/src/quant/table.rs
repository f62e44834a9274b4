//! Tables that others have published: levels of a 4-bit code, neither evenly spaced nor made for a Gaussian's power.

use super::lloyd_max::quantile;

/// The non-linear levels of ggml's `iq4_nl`, tuned by hand on weights; already integers, the outermost is −127.
pub(super) const IQ4_NL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// NF4: sixteen quantiles of the Gaussian between −1 and 1, of which one is zero (QLoRA, Dettmers et al. 2023).
///
/// Eight evenly spaced probabilities from ½ up to p and seven from ½ down to 1 − p, with p half-way between 1 − 1/32 and
/// 1 − 1/30, so that neither side reaches infinity; then the largest is scaled to one.
pub(super) fn normal_float() -> [f64; 16] {
    let p = 0.5 * ((1.0 - 1.0 / 32.0) + (1.0 - 1.0 / 30.0));
    let side =
        |step: usize, steps: usize| quantile(0.5 + (p - 0.5) * step as f64 / steps as f64) / quantile(p);
    std::array::from_fn(|i| match i {
        0..7 => -side(7 - i, 7),
        7 => 0.0,
        _ => side(i - 7, 8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nf4_is_the_published_table() {
        let published = [
            -1.0,
            -0.696_192_8,
            -0.525_073,
            -0.394_917_5,
            -0.284_441_4,
            -0.184_773_43,
            -0.091_050_03,
            0.0,
            0.079_580_3,
            0.160_930_2,
            0.246_112_3,
            0.337_915_24,
            0.440_709_83,
            0.562_617,
            0.722_956_84,
            1.0,
        ];
        for (i, (level, want)) in normal_float().iter().zip(published).enumerate() {
            assert!((level - want).abs() < 1e-6, "level {i}: {level} for {want}");
        }
    }
}
