//! What a codec's rounding costs a row, and how that changes with the row.

use crate::error::CalibrationError;
use kvant_codec::{CodecSpec, Rule, Scaling};

/// Rounding with one scale for a group of channels of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    rule: Rule,
    bits: u8,
    /// Channels under a scale.
    group: usize,
}

/// How the numbers of a group are coded: y ≈ s·code + z.
struct Scale {
    s: f64,
    z: f64,
    /// The channels that s and z follow from, with ∂s and ∂z by each; one of them twice where there is only one.
    from: [(usize, f64, f64); 2],
}

impl Rounding {
    /// That of a codec.
    ///
    /// # Errors
    /// Where scales do not follow from the extremes of a token's channels.
    pub fn of(spec: &CodecSpec, dim: usize) -> Result<Self, CalibrationError> {
        let refuse = |reason| CalibrationError::Unlearnable { spec: spec.to_string(), reason };
        let (rule, bits) = (spec.options.rule, spec.bits);
        let group = match spec.options.scaling {
            Scaling::Group(group) => group.channels(),
            Scaling::Token => dim,
            _ => {
                return Err(refuse(
                    "scales are learned through for tokens and their groups, not for channels",
                ));
            }
        };
        // Learned through the extremes, which are near what is fitted.
        let rule = match rule {
            Rule::FittedMax => Rule::SignedMax,
            Rule::FittedRange => Rule::Asymmetric,
            plain => plain,
        };
        if !matches!(rule, Rule::Symmetric | Rule::SignedMax | Rule::Asymmetric) {
            return Err(refuse("the rule must be sym, max, asym or one of their fitted forms"));
        }
        if !rule.widths().contains(&bits) {
            return Err(refuse("the rule is not defined at this width"));
        }
        Ok(Self { rule, bits, group })
    }

    /// Σ (w·e)² of a row y, (d), where e = Q(y) − y goes to `errors`, and its derivative by y, with residuals held fixed, to
    /// `gradient`.
    pub fn cost(&self, y: &[f64], weights: &[f64], errors: &mut [f64], gradient: &mut [f64]) -> f64 {
        let groups = y.chunks(self.group).zip(weights.chunks(self.group));
        let outs = errors.chunks_mut(self.group).zip(gradient.chunks_mut(self.group));
        groups
            .zip(outs)
            .map(|((y, weights), (errors, gradient))| self.group(y, weights, errors, gradient))
            .sum()
    }

    fn group(&self, y: &[f64], weights: &[f64], errors: &mut [f64], gradient: &mut [f64]) -> f64 {
        errors.fill(0.0);
        gradient.fill(0.0);
        let Scale { s, z, from } = self.scale(y);
        if s == 0.0 {
            return 0.0;
        }
        let (low, high) = self.codes();
        let (mut cost, mut by_s, mut by_z) = (0.0, 0.0, 0.0);
        for (i, (y, w)) in y.iter().zip(weights).enumerate() {
            let level = (y - z) / s;
            let code = level.round().clamp(low, high);
            let error = s * code + z - y;
            let by_error = 2.0 * w * w * error;
            errors[i] = error;
            cost += w * w * error * error;
            if code == level.round() {
                by_s += by_error * (code - level);
            } else {
                // A number beyond the last level moves on its own while its code stays.
                by_s += by_error * code;
                by_z += by_error;
                gradient[i] -= by_error;
            }
        }
        for (at, s_by, z_by) in from {
            gradient[at] += by_s * s_by + by_z * z_by;
        }
        cost
    }

    fn codes(&self) -> (f64, f64) {
        let half = f64::from(1u32 << (self.bits - 1));
        match self.rule {
            Rule::Asymmetric => (0.0, 2.0 * half - 1.0),
            Rule::SignedMax => (-half, half - 1.0),
            _ => (1.0 - half, half - 1.0),
        }
    }

    fn scale(&self, y: &[f64]) -> Scale {
        let (low, high) = self.codes();
        if self.rule == Rule::Asymmetric {
            let (least, most) = (extreme(y, |x| -x), extreme(y, |x| x));
            let step = (high - low).recip();
            let from = [(least, -step, 1.0), (most, step, 0.0)];
            return Scale { s: (y[most] - y[least]) * step, z: y[least], from };
        }
        let largest = extreme(y, f64::abs);
        let step = match self.rule {
            Rule::SignedMax => low.recip(),
            _ => y[largest].signum() / high,
        };
        Scale { s: y[largest] * step, z: 0.0, from: [(largest, step, 0.0), (largest, 0.0, 0.0)] }
    }
}

/// The first channel with the largest f.
fn extreme(y: &[f64], f: impl Fn(f64) -> f64) -> usize {
    (1..y.len()).fold(0, |best, at| if f(y[at]) > f(y[best]) { at } else { best })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kvant_codec::{KvSpec, Side, Tier};
    use proptest::prelude::*;

    pub fn spec(text: &str) -> CodecSpec {
        text.parse::<KvSpec>().unwrap().key
    }

    /// The cost of `y` with the residuals, and the codes of what is clipped, that `fixed` has: the definition, group by group.
    pub fn with_residuals_of(rounding: &Rounding, fixed: &[f64], y: &[f64], weights: &[f64]) -> f64 {
        let (low, high) = rounding.codes();
        let mut cost = 0.0;
        for at in (0..y.len()).step_by(rounding.group) {
            let end = y.len().min(at + rounding.group);
            let [then, now] = [fixed, y].map(|rows| rounding.scale(&rows[at..end]));
            for i in at..end {
                let level = (fixed[i] - then.z) / then.s;
                let residual = level.round() - level;
                let error = if (low..=high).contains(&level.round()) {
                    now.s * residual
                } else {
                    now.s * level.round().clamp(low, high) + now.z - y[i]
                };
                cost += (weights[i] * error).powi(2);
            }
        }
        cost
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn the_gradient_is_that_of_finite_differences(
            y in prop::collection::vec(-3.0f64..3.0, 24),
            weights in prop::collection::vec(0.5f64..2.0, 24),
        ) {
            for text in ["sym4g16:cayley", "max4g16:cayley", "asym3g16:cayley", "sym2:token,cayley"] {
                let rounding = Rounding::of(&spec(text), 24).unwrap();
                let (mut errors, mut gradient) = (vec![0.0; 24], vec![0.0; 24]);
                let cost = rounding.cost(&y, &weights, &mut errors, &mut gradient);
                let squares = errors.iter().zip(&weights).map(|(e, w)| (e * w).powi(2));
                prop_assert!((cost - squares.sum::<f64>()).abs() < 1e-12);
                prop_assert!((cost - with_residuals_of(&rounding, &y, &y, &weights)).abs() < 1e-12);
                for (i, found) in gradient.iter().enumerate() {
                    let moved = |by: f64| {
                        let mut y = y.clone();
                        y[i] += by;
                        y
                    };
                    let cost = |by| with_residuals_of(&rounding, &y, &moved(by), &weights);
                    let want = (cost(1e-6) - cost(-1e-6)) / 2e-6;
                    prop_assert!((found - want).abs() < 1e-4, "{}: {} {}", text, found, want);
                }
            }
        }
    }

    #[test]
    fn errors_are_those_of_the_codec() {
        let rows: Vec<f32> =
            (0..64 * 32).map(|n| ((n * 7919) as f32 * 0.618).sin() * (1.0 + (n % 7) as f32)).collect();
        for text in ["sym4g16", "max4g16", "asym3g16", "sym5:token"] {
            let codec = spec(text).build_with(Side::Value, 32, &Default::default(), Tier::Scalar).unwrap();
            let (mut page, mut decoded) = (vec![0; codec.page_bytes()], vec![0.0; rows.len()]);
            codec.encode(&rows, &mut page).unwrap();
            codec.decode(&page, &mut decoded).unwrap();
            let want: f64 = rows.iter().zip(&decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let rounding = Rounding::of(&spec(text), 32).unwrap();
            let (mut errors, mut gradient) = (vec![0.0; 32], vec![0.0; 32]);
            let cost = |row: &[f32]| {
                let row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                rounding.cost(&row, &[1.0; 32], &mut errors, &mut gradient)
            };
            let found: f64 = rows.chunks_exact(32).map(cost).sum();
            // The codec rounds its scales to 16 bits.
            assert!((found / want - 1.0).abs() < 5e-3, "{text}: {found}, {want}");
        }
    }

    #[test]
    fn what_cannot_be_trained_through_is_refused() {
        for (text, hint) in
            [("ch4:cayley", "channels"), ("tq3:scaled", "sym, max, asym or one of their fitted forms")]
        {
            let error = Rounding::of(&spec(text), 64).unwrap_err().to_string();
            assert!(error.contains(hint) && error.contains(text), "{error}");
        }
        let (mut errors, mut gradient) = (vec![1.0; 32], vec![1.0; 32]);
        let rounding = Rounding::of(&spec("sym4"), 32).unwrap();
        assert_eq!(rounding.cost(&[0.0; 32], &[1.0; 32], &mut errors, &mut gradient), 0.0);
        assert!(errors.iter().chain(&gradient).all(|x| *x == 0.0));
    }
}
