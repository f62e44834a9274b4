//! Two distributions over the vocabulary, as rows of logits, held against each other.
//!
//! With `z` the reference's logits and `w` the other's, and L = ln Σ exp of each,
//!
//! ```text
//! KL = Σ p (ln p − ln q) = Σ p (z − w) − L(z) + L(w),   p = exp(z − L(z))
//! ```
//!
//! All of it in f64, from f32 logits: what a cache changes in them is often less than f32 could sum up.

use super::truth::{Truth, TruthRow, log_denominator, top};
use kvant_model::Rows;

/// What one position shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Comparison {
    /// KL divergence from the reference, in nats.
    pub kl: f64,
    /// Whether both find the same token most likely.
    pub agrees: bool,
    /// −ln p of the token that came, by the reference.
    pub reference_nll: f64,
    /// The same by the other.
    pub nll: f64,
}

/// Sums that grow side by side, so that one need not wait for the other.
const LANES: usize = 8;

impl Comparison {
    /// Compares two rows; `next` is the token that came. Not finite when a row is not fit to be compared.
    pub fn of(truth: &TruthRow<'_>, other: &[f32], next: usize) -> Self {
        let log_denominator = log_denominator(other);
        Self {
            kl: mean_difference(truth, other) + (log_denominator - truth.log_denominator),
            agrees: truth.seen.top == top(other),
            reference_nll: truth.seen.nll,
            nll: log_denominator - f64::from(other[next]),
        }
    }

    /// Rows with all of `next`, or the number of the first that is not finite.
    pub fn of_rows(truth: &Truth, other: &Rows, next: &[u32]) -> Result<Vec<Self>, usize> {
        let mut found = vec![Self::default(); next.len()];
        kvant_threads::for_each_chunk(&mut found, 1, |row, found| {
            found[0] = Self::of(&truth.row(row), other.row(row), next[row] as usize);
        });
        let fit = |c: &Self| c.kl.is_finite() && c.reference_nll.is_finite() && c.nll.is_finite();
        match found.iter().position(|comparison| !fit(comparison)) {
            Some(row) => Err(row),
            None => Ok(found),
        }
    }
}

/// Σ p (z − w).
fn mean_difference(truth: &TruthRow<'_>, other: &[f32]) -> f64 {
    let mut sums = [0.0; LANES];
    let rows = truth.weights.chunks(LANES).zip(truth.logits.chunks(LANES)).zip(other.chunks(LANES));
    for ((weights, z), w) in rows {
        for (sum, ((&weight, &z), &w)) in sums.iter_mut().zip(weights.iter().zip(z).zip(w)) {
            // A token that is ruled out adds nothing, even when both rule it out.
            *sum += if weight > 0.0 { weight * (f64::from(z) - f64::from(w)) } else { 0.0 };
        }
    }
    sums.iter().sum::<f64>() / truth.denominator
}

#[cfg(test)]
mod tests {
    use super::super::truth::Seen;
    use super::*;

    fn compare(z: &[f32], w: &[f32], next: u32) -> Comparison {
        let z = Rows::from_vec(z.to_vec(), z.len());
        let seen = Seen::of_rows(&z, &[next]).unwrap();
        Comparison::of(&Truth::new(z, &seen).row(0), w, next as usize)
    }

    fn noise(seed: u64, count: usize, size: f32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next() * size).collect()
    }

    /// Softmax, logarithm and sum as they are written on paper.
    fn naive(z: &[f32], w: &[f32]) -> f64 {
        let softmax = |logits: &[f32]| -> Vec<f64> {
            let denominator: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
            logits.iter().map(|&z| f64::from(z).exp() / denominator).collect()
        };
        softmax(z).iter().zip(softmax(w)).map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn agrees_with_the_definition() {
        for seed in 0..50 {
            let z = noise(seed, 300, 20.0);
            for size in [1e-3, 0.1, 3.0] {
                let w: Vec<f32> = z.iter().zip(noise(seed + 99, 300, size)).map(|(z, d)| z + d).collect();
                let (found, expected) = (compare(&z, &w, 7), naive(&z, &w));
                assert!((found.kl - expected).abs() < 1e-12 + 1e-9 * expected, "{} {expected}", found.kl);
                let denominator: f64 = w.iter().map(|&w| f64::from(w).exp()).sum();
                assert!((found.nll + (f64::from(w[7]).exp() / denominator).ln()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn equal_rows_are_equal_and_shifted_ones_nearly() {
        let z = noise(1, 1000, 30.0);
        let same = compare(&z, &z, 3);
        assert_eq!((same.kl, same.agrees), (0.0, true));
        assert_eq!(same.nll, same.reference_nll);
        let shifted: Vec<f32> = z.iter().map(|z| z + 64.0).collect();
        assert!(compare(&z, &shifted, 3).kl.abs() < 1e-9);
    }

    #[test]
    fn top_tokens_are_compared_and_tokens_ruled_out_add_nothing() {
        let none = f32::NEG_INFINITY;
        let found = compare(&[1.0, 2.0, none], &[2.0, 1.0, none], 0);
        assert!(!found.agrees && found.kl > 0.0 && found.kl.is_finite());
        let one_only = compare(&[1.0, 2.0, none], &[1.0, 2.0, 0.0], 0);
        assert!(one_only.agrees && one_only.kl > 0.0 && one_only.kl.is_finite());
    }

    #[test]
    fn rows_that_cannot_be_compared_are_found() {
        let good = [0.0, 0.0];
        let bad = [[0.0, f32::NAN], [0.0, f32::INFINITY], [f32::NEG_INFINITY; 2], [f32::NEG_INFINITY, 0.0]];
        for row in bad {
            let rows = |second: [f32; 2]| Rows::from_vec([good, second].concat(), 2);
            let seen = Seen::of_rows(&rows(good), &[0, 0]).unwrap();
            let truth = Truth::new(rows(good), &seen);
            assert_eq!(Comparison::of_rows(&truth, &rows(row), &[0, 0]), Err(1), "{row:?}");
            assert_eq!(Seen::of_rows(&rows(row), &[0, 0]), Err(1), "{row:?}");
        }
    }
}
