//! Two distributions over the vocabulary, as rows of logits, held against each other.
//!
//! With `z` the reference's logits and `w` the other's, and L = ln Σ exp of each,
//!
//! ```text
//! KL = Σ p (ln p − ln q) = Σ p (z − w) − L(z) + L(w),   p = exp(z − L(z))
//! ```
//!
//! All of it in f64, from f32 logits: what a cache changes in them is often less than f32 could sum up.

use kvant_model::blocks::Rows;

/// What one position shows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Comparison {
    /// KL divergence from the reference, in nats.
    pub kl: f64,
    /// Whether both find the same token most likely.
    pub agrees: bool,
    /// −ln p of the token that came, by the reference.
    pub reference_surprise: f64,
    /// The same by the other.
    pub surprise: f64,
}

impl Comparison {
    /// Compares two rows; `next` is the token that came. Not finite when a row is not fit to be compared.
    pub fn of(reference: &[f32], other: &[f32], next: usize) -> Self {
        let (z, w) = (Distribution::of(reference), Distribution::of(other));
        let mut kl = w.log_mass - z.log_mass;
        for (&z_i, &w_i) in reference.iter().zip(other) {
            let p = (f64::from(z_i) - z.log_mass).exp();
            // A token that is ruled out adds nothing, even when both rule it out.
            if p != 0.0 {
                kl += p * (f64::from(z_i) - f64::from(w_i));
            }
        }
        Self {
            kl,
            agrees: z.top == w.top,
            reference_surprise: z.log_mass - f64::from(reference[next]),
            surprise: w.log_mass - f64::from(other[next]),
        }
    }

    /// Rows with all of `next`, or the number of the first that is not finite.
    pub fn of_rows(reference: &Rows, other: &Rows, next: &[u32]) -> Result<Vec<Self>, usize> {
        let mut found = vec![Self::default(); next.len()];
        kvant_threads::for_each_chunk(&mut found, 1, |row, found| {
            found[0] = Self::of(reference.row(row), other.row(row), next[row] as usize);
        });
        let fit = |c: &Self| c.kl.is_finite() && c.reference_surprise.is_finite() && c.surprise.is_finite();
        match found.iter().position(|comparison| !fit(comparison)) {
            Some(row) => Err(row),
            None => Ok(found),
        }
    }
}

struct Distribution {
    /// ln Σ exp z.
    log_mass: f64,
    /// The most likely token; the first of equals.
    top: usize,
}

impl Distribution {
    fn of(logits: &[f32]) -> Self {
        let mut top = 0;
        for (id, &z) in logits.iter().enumerate() {
            if z > logits[top] {
                top = id;
            }
        }
        let largest = f64::from(logits[top]);
        let mass: f64 = logits.iter().map(|&z| (f64::from(z) - largest).exp()).sum();
        Self { log_mass: largest + mass.ln(), top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mass: f64 = logits.iter().map(|&z| f64::from(z).exp()).sum();
            logits.iter().map(|&z| f64::from(z).exp() / mass).collect()
        };
        softmax(z).iter().zip(softmax(w)).map(|(p, q)| p * (p / q).ln()).sum()
    }

    #[test]
    fn agrees_with_the_definition() {
        for seed in 0..50 {
            let z = noise(seed, 300, 20.0);
            for size in [1e-3, 0.1, 3.0] {
                let w: Vec<f32> = z.iter().zip(noise(seed + 99, 300, size)).map(|(z, d)| z + d).collect();
                let (found, expected) = (Comparison::of(&z, &w, 7), naive(&z, &w));
                assert!((found.kl - expected).abs() < 1e-12 + 1e-9 * expected, "{} {expected}", found.kl);
                let mass: f64 = w.iter().map(|&w| f64::from(w).exp()).sum();
                assert!((found.surprise + (f64::from(w[7]).exp() / mass).ln()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn equal_rows_are_equal_and_shifted_ones_nearly() {
        let z = noise(1, 1000, 30.0);
        let same = Comparison::of(&z, &z, 3);
        assert_eq!((same.kl, same.agrees), (0.0, true));
        assert_eq!(same.surprise, same.reference_surprise);
        let shifted: Vec<f32> = z.iter().map(|z| z + 64.0).collect();
        assert!(Comparison::of(&z, &shifted, 3).kl.abs() < 1e-9);
    }

    #[test]
    fn top_tokens_are_compared_and_tokens_ruled_out_add_nothing() {
        let none = f32::NEG_INFINITY;
        let found = Comparison::of(&[1.0, 2.0, none], &[2.0, 1.0, none], 0);
        assert!(!found.agrees && found.kl > 0.0 && found.kl.is_finite());
        let one_only = Comparison::of(&[1.0, 2.0, none], &[1.0, 2.0, 0.0], 0);
        assert!(one_only.agrees && one_only.kl > 0.0 && one_only.kl.is_finite());
    }

    #[test]
    fn rows_that_cannot_be_compared_are_found() {
        let good = [0.0, 0.0];
        let bad = [[0.0, f32::NAN], [0.0, f32::INFINITY], [f32::NEG_INFINITY; 2], [f32::NEG_INFINITY, 0.0]];
        for row in bad {
            let rows = |second: [f32; 2]| Rows::from_vec([good, second].concat(), 2);
            assert_eq!(Comparison::of_rows(&rows(good), &rows(row), &[0, 0]), Err(1), "{row:?}");
            assert_eq!(Comparison::of_rows(&rows(row), &rows(good), &[0, 0]), Err(1), "{row:?}");
        }
    }
}
