//! Functions of one number, and of a few.

use kvant_model::description::Activation;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// A non-linear function.
pub fn activate(function: Activation, x: f64) -> f64 {
    match function {
        Activation::Silu => silu(x),
        Activation::Gelu => x * normal_distribution(x),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh()),
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
    }
}

pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// ln(1 + eˣ).
pub fn softplus(x: f64) -> f64 {
    // The same number, written so that no power overflows.
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Values `x` become `cap · tanh(x / cap)` where there is a cap.
pub fn capped(x: f64, cap: Option<f32>) -> f64 {
    cap.map(f64::from).map_or(x, |cap| cap * (x / cap).tanh())
}

/// The share of each logit.
pub fn softmax(logits: &[f64]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let mass: f64 = powers.iter().sum();
    powers.iter().map(|power| power / mass).collect()
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len(), "a product of rows of different widths");
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `sum += by · x`.
pub fn add(sum: &mut [f64], x: &[f64], by: f64) {
    assert_eq!(sum.len(), x.len(), "a sum of rows of different widths");
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += by * x);
}

/// Φ, the distribution function of the normal distribution.
pub fn normal_distribution(x: f64) -> f64 {
    0.5 * libm::erfc(-x * FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_known_to_many_digits() {
        let close = |found: f64, known: f64| assert!((found - known).abs() < 1e-14, "{found} {known}");
        close(activate(Activation::Silu, 1.0), 0.731_058_578_630_004_9);
        close(activate(Activation::Gelu, 1.0), 0.841_344_746_068_542_9);
        close(activate(Activation::GeluTanh, 1.0), 0.841_191_990_608_276_8);
        close(activate(Activation::ReluSquared, 3.0), 9.0);
        close(softplus(1.0), 1.313_261_687_518_222_8);
        close(softplus(-1.0), 0.313_261_687_518_222_8);
        close(softplus(800.0), 800.0);
        close(capped(3.0, Some(2.0)), 2.0 * 1.5f64.tanh());
        close(softmax(&[0.0, 3f64.ln()])[1], 0.75);
        close(softmax(&[1000.0, 1000.0])[1], 0.5);
    }
}
