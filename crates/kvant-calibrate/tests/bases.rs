//! Bases against their definitions, and against what they are for.

use faer::Mat;
use kvant_calibrate::basis::{self, Klt};
use kvant_calibrate::matrix::ridged;
use kvant_calibrate::{CalibrationError, Moments};
use kvant_codec::allocation::widths;
use kvant_codec::{Budget, Calibration, Dense, KvSpec, PageCodec, PageSize, Query, Side, Tier};
use std::sync::Arc;

const DIM: usize = 24;
const TOKENS: usize = 2048;

/// Numbers that are nearly Gaussian: the sum of twelve uniform ones.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn gaussian(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Vectors with correlated channels of very different size, and a mean.
fn vectors(seed: u64, count: usize, spread: f64) -> Vec<f64> {
    let mut noise = Noise(seed);
    let mix: Vec<f64> = (0..DIM * DIM).map(|_| noise.gaussian()).collect();
    let mean: Vec<f64> = (0..DIM).map(|_| 3.0 * noise.gaussian()).collect();
    let mut rows = Vec::with_capacity(count * DIM);
    for _ in 0..count {
        let source: Vec<f64> = (0..DIM).map(|c| noise.gaussian() * spread.powi(-(c as i32))).collect();
        for (mix, mean) in mix.chunks_exact(DIM).zip(&mean) {
            rows.push(mean + mix.iter().zip(&source).map(|(m, s)| m * s).sum::<f64>());
        }
    }
    rows
}

fn moments(rows: &[f64]) -> Moments {
    let mut moments = Moments::new(DIM);
    moments.add(rows);
    moments
}

/// Keys and queries.
fn both() -> (Vec<f64>, Vec<f64>) {
    (vectors(1, TOKENS, 1.3), vectors(2, 3 * TOKENS, 1.2))
}

fn wide(matrix: &[f32]) -> Mat<f64> {
    Mat::from_fn(DIM, DIM, |i, j| f64::from(matrix[i * DIM + j]))
}

/// F Σk Fᵀ and F⁻ᵀ Σq F⁻¹, with the shares of the mean variance that are added in every direction.
fn in_basis(dense: &Dense, keys: &Moments, queries: &Moments) -> [Mat<f64>; 2] {
    let (forward, inverse) = (wide(dense.matrix()), wide(dense.inverse_matrix()));
    [
        &forward * ridged(&keys.covariance(), 1e-4) * forward.transpose(),
        inverse.transpose() * ridged(&queries.second(), 1e-3) * &inverse,
    ]
}

#[test]
fn balanced_keys_and_queries_have_the_same_covariance() {
    let (keys, queries) = both();
    let (keys, queries) = (moments(&keys), moments(&queries));
    let dense = basis::balanced(&keys, &queries).unwrap();
    let [of_keys, of_queries] = in_basis(&dense, &keys, &queries);
    assert!((&of_keys - &of_queries).norm_max() < 1e-4 * of_keys.norm_max(), "{of_keys:?} {of_queries:?}");
    let matrix = wide(dense.matrix());
    assert!((&matrix - matrix.transpose()).norm_max() < 1e-5 * matrix.norm_max(), "T is symmetric");
}

#[test]
fn the_klt_makes_keys_diagonal_and_queries_the_identity() {
    let (keys, queries) = both();
    let (keys, queries) = (moments(&keys), moments(&queries));
    let found = basis::klt(&keys, &queries).unwrap();
    assert!(found.variances.is_sorted_by(|a, b| a >= b));
    let [of_keys, of_queries] = in_basis(&found.basis, &keys, &queries);
    for i in 0..DIM {
        for j in 0..DIM {
            let (key, query) = if i == j { (found.variances[i], 1.0) } else { (0.0, 0.0) };
            assert!((of_keys[(i, j)] - key).abs() < 1e-5 * found.variances[0], "keys {i} {j}");
            assert!((of_queries[(i, j)] - query).abs() < 1e-3, "queries {i} {j}: {}", of_queries[(i, j)]);
        }
    }
}

/// The mean square of q·(k − k̂), by the codecs themselves.
fn score_error(codec: &dyn PageCodec, keys: &[f64], queries: &[f64]) -> f64 {
    let narrow = |rows: &[f64]| rows.iter().map(|x| *x as f32).collect::<Vec<f32>>();
    let (keys, queries) = (narrow(keys), narrow(&queries[..16 * DIM]));
    let tokens = codec.page_tokens();
    let mut page = vec![0; codec.page_bytes()];
    let mut query = Query::default();
    codec.prepare(&queries, &mut query).unwrap();
    let mut scores = vec![0.0; 16 * tokens];
    let (mut sum, mut count) = (0.0, 0);
    for rows in keys.chunks_exact(tokens * DIM) {
        codec.encode(rows, &mut page).unwrap();
        codec.scores(&query, &page, &mut scores).unwrap();
        for (head, scores) in scores.chunks_exact(tokens).enumerate() {
            for (score, row) in scores.iter().zip(rows.chunks_exact(DIM)) {
                let exact: f64 =
                    row.iter().zip(&queries[head * DIM..]).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
                sum += (f64::from(*score) - exact).powi(2);
                count += 1;
            }
        }
    }
    sum / f64::from(count)
}

#[test]
fn planned_keys_make_a_fraction_of_the_score_error_on_vectors_they_have_not_seen() {
    let (keys, queries) = both();
    let half = TOKENS / 2 * DIM;
    let seen = (moments(&keys[..half]), moments(&queries[..half]));
    let Klt { basis: dense, variances } = basis::klt(&seen.0, &seen.1).unwrap();
    let variances: Vec<f32> = variances.iter().map(|x| *x as f32).collect();
    let widths = widths(&variances, Side::Key, Budget::hundredths(400), PageSize::P128).unwrap();
    let balanced = Arc::new(basis::balanced(&seen.0, &seen.1).unwrap());
    let mean = Some(basis::mean(&seen.0, "keys").unwrap());
    let klt =
        Calibration { mean: mean.clone(), basis: Some(Arc::new(dense)), widths: Some(widths), lambda: None };
    let balanced = Calibration { mean, basis: Some(balanced), ..Calibration::default() };
    let build = |spec: &str, calibration: &Calibration| {
        let spec: KvSpec = spec.parse().unwrap();
        spec.key.build_with(Side::Key, DIM, calibration, Tier::Scalar).unwrap()
    };
    let plain = build("ch4:p128", &Calibration::default());
    let planned = build("klt4", &klt);
    let [rotated, evened] = [
        build("rot4g32:mean", &balanced), // the mean alone
        build("rot4g32:mean,balanced", &balanced),
    ];
    assert!(planned.page_bytes() <= plain.page_bytes(), "{} {}", planned.page_bytes(), plain.page_bytes());
    let (keys, queries) = (&keys[half..], &queries[2 * half..]);
    let errors = [score_error(&*plain, keys, queries), score_error(&*planned, keys, queries)];
    assert!(errors[1] < 0.5 * errors[0], "{errors:?}");
    let errors = [score_error(&*rotated, keys, queries), score_error(&*evened, keys, queries)];
    assert!(errors[1] < 0.5 * errors[0], "{errors:?}");
}

#[test]
fn means_are_those_of_the_rows() {
    let (keys, _) = both();
    let of_keys = moments(&keys);
    let mean = basis::mean(&of_keys, "keys").unwrap();
    let third: f64 = keys.iter().skip(3).step_by(DIM).sum::<f64>() / TOKENS as f64;
    assert!((f64::from(mean[3]) - third).abs() < 1e-5);
}

#[test]
fn too_little_and_nothing_are_refused() {
    let (keys, queries) = both();
    let (some, queries) = (moments(&keys[..5 * DIM]), moments(&queries));
    let few = CalibrationError::TooFew { seen: 5, dim: DIM };
    assert_eq!(basis::klt(&some, &queries).unwrap_err(), few);
    assert_eq!(basis::balanced(&some, &queries).unwrap_err(), few);
    let zeros = moments(&vec![0.0; 100 * DIM]);
    let nothing = CalibrationError::Degenerate { what: "keys" };
    assert_eq!(basis::klt(&zeros, &queries).unwrap_err(), nothing);
    let mut spoiled = moments(&keys);
    spoiled.add(&[f64::NAN; DIM]);
    assert_eq!(basis::klt(&spoiled, &queries).unwrap_err(), nothing);
    assert_eq!(basis::mean(&spoiled, "keys").unwrap_err(), nothing);
    assert_eq!(
        basis::mean(&Moments::new(3), "keys").unwrap_err(),
        CalibrationError::TooFew { seen: 0, dim: 3 }
    );
}
