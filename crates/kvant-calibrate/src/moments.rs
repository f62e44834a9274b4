//! Sums over vectors, from which means, covariances and ranges follow.

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use kvant_codec::{Basis, Rotation, Tier};

/// How many vectors there were, their sum and the sum of their products x xᵀ.
#[derive(Clone, Debug)]
pub struct Moments {
    count: u64,
    sum: Vec<f64>,
    /// (d, d).
    products: Mat<f64>,
}

impl Moments {
    /// Of nothing yet.
    pub fn new(dim: usize) -> Self {
        Self { count: 0, sum: vec![0.0; dim], products: Mat::zeros(dim, dim) }
    }

    /// Adds vectors, (n, d).
    ///
    /// # Panics
    /// When `rows` is not a whole number of vectors.
    pub fn add(&mut self, rows: &[f64]) {
        let dim = self.dim();
        assert!(rows.len().is_multiple_of(dim), "{} numbers are no vectors of {dim}", rows.len());
        self.count += (rows.len() / dim) as u64;
        for row in rows.chunks_exact(dim) {
            self.sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        let rows = MatRef::from_row_major_slice(rows, rows.len() / dim, dim);
        matmul(self.products.as_mut(), Accum::Add, rows.transpose(), rows, 1.0, Par::Seq);
    }

    /// Channels.
    pub fn dim(&self) -> usize {
        self.sum.len()
    }

    /// Vectors added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean; zeros where there were no vectors.
    pub fn mean(&self) -> Vec<f64> {
        let count = self.count.max(1) as f64;
        self.sum.iter().map(|sum| sum / count).collect()
    }

    /// E[x xᵀ].
    pub fn second(&self) -> Mat<f64> {
        let (dim, count) = (self.dim(), self.count.max(1) as f64);
        Mat::from_fn(dim, dim, |i, j| 0.5 * (self.products[(i, j)] + self.products[(j, i)]) / count)
    }

    /// E[(x − μ)(x − μ)ᵀ].
    pub fn covariance(&self) -> Mat<f64> {
        let (mean, second) = (self.mean(), self.second());
        Mat::from_fn(self.dim(), self.dim(), |i, j| second[(i, j)] - mean[i] * mean[j])
    }
}

/// The smallest and the largest number of every channel after a rotation.
pub struct Extent {
    basis: Basis,
    tier: Tier,
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Extent {
    /// Of nothing yet, after this rotation. A dimension that SRFT does not take is not rotated by it.
    pub fn new(dim: usize, rotation: Rotation, seed: u64, tier: Tier) -> Self {
        let rotation = match rotation {
            Rotation::Srft if !dim.is_multiple_of(2) => Rotation::Identity,
            other => other,
        };
        let basis = Basis::new(rotation, dim, seed);
        Self { basis, tier, low: vec![f32::INFINITY; dim], high: vec![f32::NEG_INFINITY; dim] }
    }

    /// Adds vectors, (n, d), and leaves them rotated.
    ///
    /// # Panics
    /// When `rows` is not a whole number of vectors.
    pub fn add(&mut self, rows: &mut [f32]) {
        self.basis.apply(rows, self.tier).expect("whole vectors");
        for row in rows.chunks_exact(self.low.len()) {
            for ((low, high), &x) in self.low.iter_mut().zip(&mut self.high).zip(row) {
                (*low, *high) = (low.min(x), high.max(x));
            }
        }
    }

    /// The least and the largest number of every channel; `None` before there were vectors. Numbers that are not
    /// finite spoil the [`Moments`], which say so.
    pub fn range(&self) -> Option<[Vec<f32>; 2]> {
        let range = [self.low.clone(), self.high.clone()];
        range.iter().flatten().all(|x| x.is_finite()).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, dim: usize) -> Vec<f64> {
        let number =
            |n: usize| ((n * 7919) as f64 * 0.618).sin() * (1.0 + (n % dim) as f64) + (n % dim) as f64;
        (0..count * dim).map(number).collect()
    }

    #[test]
    fn moments_are_the_sums_that_define_them_whatever_the_chunks() {
        let (count, dim) = (37, 5);
        let rows = rows(count, dim);
        let (mut whole, mut cut) = (Moments::new(dim), Moments::new(dim));
        whole.add(&rows);
        rows.chunks(3 * dim).for_each(|chunk| cut.add(chunk));
        let column = |c: usize| rows.iter().skip(c).step_by(dim);
        for i in 0..dim {
            let mean = column(i).sum::<f64>() / count as f64;
            assert!((whole.mean()[i] - mean).abs() < 1e-12);
            for j in 0..dim {
                let products = column(i).zip(column(j)).map(|(a, b)| a * b);
                let second = products.sum::<f64>() / count as f64;
                let covariance = column(i).zip(column(j)).map(|(a, b)| (a - mean) * (b - whole.mean()[j]));
                let covariance = covariance.sum::<f64>() / count as f64;
                for moments in [&whole, &cut] {
                    assert!((moments.second()[(i, j)] - second).abs() < 1e-11);
                    assert!((moments.covariance()[(i, j)] - covariance).abs() < 1e-11);
                }
            }
        }
        assert_eq!((whole.count(), cut.count()), (37, 37));
    }

    #[test]
    fn ends_are_those_of_rotated_rows_whatever_the_chunks() {
        let (count, dim) = (20, 6);
        let rows: Vec<f32> = rows(count, dim).into_iter().map(|x| x as f32).collect();
        for rotation in [Rotation::Srft, Rotation::Srht, Rotation::Identity] {
            let mut extent = Extent::new(dim, rotation, 3, Tier::Scalar);
            assert_eq!(extent.range(), None);
            rows.chunks(7 * dim).for_each(|chunk| extent.add(&mut chunk.to_vec()));
            let mut turned = rows.clone();
            Basis::new(rotation, dim, 3).apply(&mut turned, Tier::Scalar).unwrap();
            let [low, high] = extent.range().unwrap();
            for c in 0..dim {
                let column = || turned.iter().skip(c).step_by(dim).copied();
                assert_eq!(low[c], column().fold(f32::INFINITY, f32::min));
                assert_eq!(high[c], column().fold(f32::NEG_INFINITY, f32::max));
            }
        }
    }
}
