//! Changes of basis from statistics.

use crate::error::CalibrationError;
use crate::matrix::{Eigen, geometric_mean, ridged};
use crate::moments::Moments;
use faer::Mat;
use kvant_codec::Dense;

/// Share of the mean variance that is added to the variance of keys in every direction.
const KEY_RIDGE: f64 = 1e-4;
/// The same for queries; larger, because a direction without queries in some text may have some in another.
const QUERY_RIDGE: f64 = 1e-3;

/// μ of vectors, for codecs with `mean`.
///
/// # Errors
/// When there were no vectors, or one is not finite.
pub fn mean(moments: &Moments, what: &'static str) -> Result<Vec<f32>, CalibrationError> {
    if moments.count() == 0 {
        return Err(CalibrationError::TooFew { seen: 0, dim: moments.dim() });
    }
    let mean: Vec<f32> = moments.mean().into_iter().map(|x| x as f32).collect();
    if mean.iter().all(|x| x.is_finite()) { Ok(mean) } else { Err(CalibrationError::Degenerate { what }) }
}

/// T = (Σk⁻¹ # Σq)^½, symmetric: in its basis keys and queries have the same covariance. What treats all directions alike, once a
/// rotation has made them even, makes the least error of scores there.
///
/// # Errors
/// When there were too few vectors, or nothing but zeros.
pub fn balanced(keys: &Moments, queries: &Moments) -> Result<Dense, CalibrationError> {
    let [of_keys, of_queries] = covariances(keys, queries)?;
    let inverse = Eigen::of(of_keys.as_ref(), "keys")?.map(f64::recip);
    let between = geometric_mean(&inverse, &of_queries)?;
    let eigen = Eigen::of(between.as_ref(), "keys and queries")?;
    dense(&eigen.map(f64::sqrt), &eigen.map(|value| value.sqrt().recip()))
}

/// What [`klt`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Klt {
    /// The change of basis, after the mean is taken away.
    pub basis: Dense,
    /// Variances of the channels in the basis, largest first.
    pub variances: Vec<f64>,
}

/// The attention-aware Karhunen–Loève basis: y = Eᵀ Σq^½ (k − μ) with the eigenvectors E of Σq^½ Σk Σq^½. The queries of the group
/// have covariance one here, so an error costs the same in every channel, and the keys have variances λ in channels that are not
/// correlated: [`kvant_codec::allocation`] shares out bits so that Σ λ·D(b) is least.
///
/// # Errors
/// When there were too few vectors, or nothing but zeros.
pub fn klt(keys: &Moments, queries: &Moments) -> Result<Klt, CalibrationError> {
    let [of_keys, of_queries] = covariances(keys, queries)?;
    let of_queries = Eigen::of(of_queries.as_ref(), "queries")?;
    let (root, inverse_root) = (of_queries.map(f64::sqrt), of_queries.map(|value| value.sqrt().recip()));
    let product = crate::matrix::symmetric(&root * of_keys * &root);
    let Eigen { values, vectors } = Eigen::of(product.as_ref(), "keys as queries see them")?;
    let variances: Vec<f64> = values.into_iter().map(|value| value.max(0.0)).collect();
    let basis = dense(&(vectors.transpose() * &root), &(&inverse_root * &vectors))?;
    Ok(Klt { basis, variances })
}

/// Σk, centred, and Σq, not centred, with their ridges.
fn covariances(keys: &Moments, queries: &Moments) -> Result<[Mat<f64>; 2], CalibrationError> {
    let mut both = [keys.covariance(), queries.second()];
    for ((matrix, moments), (ridge, what)) in
        both.iter_mut().zip([keys, queries]).zip([(KEY_RIDGE, "keys"), (QUERY_RIDGE, "queries")])
    {
        let (seen, dim) = (moments.count(), moments.dim());
        if seen < dim as u64 {
            return Err(CalibrationError::TooFew { seen, dim });
        }
        let trace: f64 = (0..dim).map(|i| matrix[(i, i)]).sum();
        if !trace.is_normal() || trace < 0.0 {
            return Err(CalibrationError::Degenerate { what });
        }
        *matrix = ridged(matrix, ridge);
    }
    Ok(both)
}

fn dense(forward: &Mat<f64>, inverse: &Mat<f64>) -> Result<Dense, CalibrationError> {
    let dim = forward.nrows();
    let row_major = |m: &Mat<f64>| (0..dim * dim).map(|n| m[(n / dim, n % dim)] as f32).collect();
    Ok(Dense::new(dim, row_major(forward), row_major(inverse))?)
}
