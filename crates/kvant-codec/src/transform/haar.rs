//! Rotations drawn uniformly from all of them: what the papers mean by "a random rotation".
//!
//! Gram–Schmidt on the rows of a Gaussian matrix gives Haar measure on the orthogonal group. That is what makes a sign
//! sketch exactly unbiased; a randomised Hadamard transform is nearly as good for everything else at d·log d operations
//! in place of d². Only additions, multiplications, divisions and square roots touch the matrix, and the Gaussians are
//! rounded to 2⁻²⁰ first, so that a seed gives the same rotation on every machine.

use super::split_mix;
use crate::format::Dense;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The rotation of a seed. Codecs that are alive at the same time share its numbers: d² of them, made by d³ operations.
pub(super) fn haar(dim: usize, seed: u64) -> Arc<Dense> {
    static ALIVE: Mutex<Vec<(usize, u64, Weak<Dense>)>> = Mutex::new(Vec::new());
    let mut alive = ALIVE.lock().unwrap_or_else(PoisonError::into_inner);
    alive.retain(|(.., matrix)| matrix.strong_count() > 0);
    let known = alive.iter().find(|(d, s, _)| (*d, *s) == (dim, seed));
    if let Some(matrix) = known.and_then(|(.., matrix)| matrix.upgrade()) {
        return matrix;
    }
    let matrix = Arc::new(Dense::orthonormal(dim, rows(dim, seed)));
    alive.push((dim, seed, Arc::downgrade(&matrix)));
    matrix
}

/// Orthonormal rows, row-major.
fn rows(dim: usize, seed: u64) -> Vec<f32> {
    let mut words = split_mix(seed);
    // Uniform in (0, 1].
    let mut unit = || ((words.next().unwrap_or(0) >> 11) + 1) as f64 / (1u64 << 53) as f64;
    let mut gaussian = || {
        let x = (-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos();
        (x * f64::from(1 << 20)).round() / f64::from(1 << 20)
    };
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(dim);
    while rows.len() < dim {
        let mut row: Vec<f64> = (0..dim).map(|_| gaussian()).collect();
        for done in &rows {
            let along: f64 = row.iter().zip(done).map(|(x, y)| x * y).sum();
            row.iter_mut().zip(done).for_each(|(x, y)| *x -= along * y);
        }
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        // A row that is nearly in the span of the others would be mostly rounding: draw again.
        if length > 1e-6 {
            row.iter_mut().for_each(|x| *x /= length);
            rows.push(row);
        }
    }
    rows.into_iter().flatten().map(|x| x as f32).collect()
}
