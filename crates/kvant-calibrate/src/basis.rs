//! Changes of basis from statistics.

use crate::allocation::{allocate, distortions};
use crate::error::CalibrationError;
use crate::matrix::{Eigen, geometric_mean, ridged};
use crate::moments::{Extent, Moments};
use faer::Mat;
use kvant_codec::{Basis, Calibration, Dense, Rotation, Tier};

/// Share of the mean variance that is added to the variance of keys in every direction.
const KEY_RIDGE: f64 = 1e-4;
/// The same for queries; larger, because a direction without queries in some text may have some in another.
const QUERY_RIDGE: f64 = 1e-3;
/// Key channels that share a width.
const GROUP: usize = 8;

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

/// The largest magnitude of every channel after the rotation, for codecs with `lambda`; with a mean, that of what is left.
/// Channels that were always zero get the least of the others.
///
/// # Errors
/// When there is no channel with a finite magnitude above zero.
pub fn lambda(
    extent: &Extent,
    mean: Option<&[f32]>,
    what: &'static str,
) -> Result<Vec<f32>, CalibrationError> {
    let magnitudes = extent.magnitudes(mean);
    let least = magnitudes.iter().copied().filter(|x| x.is_normal()).fold(f32::INFINITY, f32::min);
    if !least.is_finite() || magnitudes.iter().any(|x| !x.is_finite()) {
        return Err(CalibrationError::Degenerate { what });
    }
    Ok(magnitudes.into_iter().map(|x| x.max(least)).collect())
}

/// The basis in which keys and queries have the same covariance, turned by SRHT so that it is even: y = R T (k − μ) with
/// T = (Σk⁻¹ # Σq)^½. What treats all directions alike makes the least error of scores here.
///
/// # Errors
/// When there were too few vectors, or nothing but zeros.
pub fn balanced(keys: &Moments, queries: &Moments, seed: u64, tier: Tier) -> Result<Dense, CalibrationError> {
    let [of_keys, of_queries] = covariances(keys, queries)?;
    let inverse = Eigen::of(of_keys.as_ref(), "keys")?.map(f64::recip);
    let between = geometric_mean(&inverse, &of_queries)?;
    let eigen = Eigen::of(between.as_ref(), "keys and queries")?;
    let rotation = rotation(keys.dim(), seed, tier);
    let forward = &rotation * eigen.map(f64::sqrt);
    let inverse = eigen.map(|value| value.sqrt().recip()) * rotation.transpose();
    dense(&forward, &inverse)
}

/// What [`klt`] finds.
#[derive(Clone, Debug, PartialEq)]
pub struct Klt {
    /// Mean, basis and widths, for codecs `klt` with `mean`.
    pub calibration: Calibration,
    /// Variances of the channels in the basis, largest first.
    pub variances: Vec<f64>,
}

/// The attention-aware Karhunen–Loève basis: y = Eᵀ Σq^½ (k − μ) with the eigenvectors E of Σq^½ Σk Σq^½. The queries of the group
/// have covariance one here, so an error costs the same in every channel, and the keys have variances λ in channels that are not
/// correlated. `bits` a channel on average, scales apart, are given to groups of 8 channels so that Σ λ·D(b) is least for pages of
/// `tokens`.
///
/// # Errors
/// When there were too few vectors, or nothing but zeros, or the bits cannot be had.
pub fn klt(keys: &Moments, queries: &Moments, bits: f64, tokens: usize) -> Result<Klt, CalibrationError> {
    let [of_keys, of_queries] = covariances(keys, queries)?;
    let of_queries = Eigen::of(of_queries.as_ref(), "queries")?;
    let (root, inverse_root) = (of_queries.map(f64::sqrt), of_queries.map(|value| value.sqrt().recip()));
    let product = crate::matrix::symmetric(&root * of_keys * &root);
    let Eigen { values, vectors } = Eigen::of(product.as_ref(), "keys as queries see them")?;
    let variances: Vec<f64> = values.into_iter().map(|value| value.max(0.0)).collect();
    let sums: Vec<f64> = variances.chunks(GROUP).map(|group| group.iter().sum()).collect();
    let widths = allocate(&sums, bits, &distortions(tokens))?;
    let forward = vectors.transpose() * &root;
    let inverse = &inverse_root * &vectors;
    let calibration = Calibration {
        mean: Some(mean(keys, "keys")?),
        lambda: None,
        basis: Some(dense(&forward, &inverse)?),
        widths: Some(widths),
    };
    Ok(Klt { calibration, variances })
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

/// The matrix of the codecs' rotation.
fn rotation(dim: usize, seed: u64, tier: Tier) -> Mat<f64> {
    let mut rows: Vec<f32> = (0..dim * dim).map(|n| f32::from(u8::from(n / dim == n % dim))).collect();
    Basis::new(Rotation::Srht, dim, seed).apply(&mut rows, tier).expect("whole vectors");
    // Row j is the image of unit vector j: column j of the matrix.
    Mat::from_fn(dim, dim, |i, j| f64::from(rows[j * dim + i]))
}

fn dense(forward: &Mat<f64>, inverse: &Mat<f64>) -> Result<Dense, CalibrationError> {
    let dim = forward.nrows();
    let row_major = |m: &Mat<f64>| (0..dim * dim).map(|n| m[(n / dim, n % dim)] as f32).collect();
    Ok(Dense::new(dim, row_major(forward), row_major(inverse))?)
}
