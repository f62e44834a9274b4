//! Functions of symmetric positive definite matrices, by their eigenvalues.

use crate::error::CalibrationError;
use faer::{Mat, MatRef, Side};

/// Eigenvalues, largest first, and their eigenvectors, (d, d), one to a column.
#[derive(Clone, Debug)]
pub struct Eigen {
    /// The eigenvalues.
    pub values: Vec<f64>,
    /// The eigenvectors.
    pub vectors: Mat<f64>,
}

impl Eigen {
    /// Of a symmetric matrix; `what` it is goes into the error.
    ///
    /// # Errors
    /// When a number is not finite, or the iteration does not end.
    pub fn of(matrix: MatRef<'_, f64>, what: &'static str) -> Result<Self, CalibrationError> {
        let dim = matrix.nrows();
        if (0..dim).any(|i| (0..dim).any(|j| !matrix[(i, j)].is_finite())) {
            return Err(CalibrationError::Degenerate { what });
        }
        let found = matrix.self_adjoint_eigen(Side::Lower).map_err(|_| CalibrationError::Eigen { what })?;
        let (values, vectors) = (found.S().column_vector(), found.U());
        Ok(Self {
            values: (0..dim).rev().map(|i| values[i]).collect(),
            vectors: Mat::from_fn(dim, dim, |i, j| vectors[(i, dim - 1 - j)]),
        })
    }

    /// V f(λ) Vᵀ.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Mat<f64> {
        let mapped: Vec<f64> = self.values.iter().map(|&value| f(value)).collect();
        let dim = mapped.len();
        let scaled = Mat::from_fn(dim, dim, |i, j| self.vectors[(i, j)] * mapped[j]);
        symmetric(&scaled * self.vectors.transpose())
    }
}

/// Makes the two halves of a nearly symmetric matrix equal.
pub fn symmetric(matrix: Mat<f64>) -> Mat<f64> {
    Mat::from_fn(matrix.nrows(), matrix.ncols(), |i, j| 0.5 * (matrix[(i, j)] + matrix[(j, i)]))
}

/// Adds `share` of the mean of the diagonal to the diagonal: no direction is then quite without variance.
pub fn ridged(matrix: &Mat<f64>, share: f64) -> Mat<f64> {
    let dim = matrix.nrows();
    let ridge = share * (0..dim).map(|i| matrix[(i, i)]).sum::<f64>() / dim as f64;
    Mat::from_fn(dim, dim, |i, j| matrix[(i, j)] + if i == j { ridge } else { 0.0 })
}

/// A # B, the geometric mean of two positive definite matrices: the one positive definite G with G A⁻¹ G = B.
///
/// # Errors
/// When eigenvalues are not found.
pub fn geometric_mean(a: &Mat<f64>, b: &Mat<f64>) -> Result<Mat<f64>, CalibrationError> {
    let of_a = Eigen::of(a.as_ref(), "first matrix of a geometric mean")?;
    let (root, inverse_root) = (of_a.map(f64::sqrt), of_a.map(|value| value.sqrt().recip()));
    let between = symmetric(&inverse_root * b * &inverse_root);
    let middle =
        Eigen::of(between.as_ref(), "second matrix of a geometric mean")?.map(|value| value.max(0.0).sqrt());
    Ok(symmetric(&root * &middle * &root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// X Xᵀ + a little: positive definite, with eigenvalues far apart.
    fn positive(numbers: &[f64], dim: usize) -> Mat<f64> {
        let x = Mat::from_fn(dim, dim, |i, j| numbers[i * dim + j] * 3f64.powi(j as i32 % 4));
        let product = &x * x.transpose();
        ridged(&product, 1e-3)
    }

    fn off(a: &Mat<f64>, b: &Mat<f64>) -> f64 {
        (a - b).norm_max() / b.norm_max()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn functions_of_matrices_have_the_properties_that_define_them(
            dim in 1usize..12,
            numbers in prop::collection::vec(-1.0f64..1.0, 2 * 144),
        ) {
            let (a, b) = (positive(&numbers, dim), positive(&numbers[144..], dim));
            let eigen = Eigen::of(a.as_ref(), "test").unwrap();
            prop_assert!(eigen.values.is_sorted_by(|x, y| x >= y));
            prop_assert!(off(&eigen.map(|value| value), &a) < 1e-12);
            let (root, inverse) = (eigen.map(f64::sqrt), eigen.map(f64::recip));
            prop_assert!(off(&(&root * &root), &a) < 1e-12);
            prop_assert!(off(&(&inverse * &a), &Mat::identity(dim, dim)) < 1e-8);
            let mean = geometric_mean(&a, &b).unwrap();
            prop_assert!(off(&(&mean * &inverse * &mean), &b) < 1e-8, "G A⁻¹ G = B");
            prop_assert!(off(&geometric_mean(&b, &a).unwrap(), &mean) < 1e-8, "A # B = B # A");
        }
    }

    #[test]
    fn what_is_not_finite_is_refused() {
        let matrix = Mat::from_fn(3, 3, |i, j| if i == 2 && j == 2 { f64::NAN } else { 0.0 });
        assert_eq!(
            Eigen::of(matrix.as_ref(), "keys").unwrap_err(),
            CalibrationError::Degenerate { what: "keys" }
        );
    }
}
