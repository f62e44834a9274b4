//! Training: what makes a codec's error least on rows of a head.

use super::adam::Adam;
use super::rounding::Rounding;
use super::turn::LearnedRotation;
use crate::error::CalibrationError;
use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, MatRef, Par};
use kvant_codec::{Basis, CodecSpec, Learned, Tier, split_mix};

/// Steps of Adam.
const STEPS: usize = 300;
/// Rows of a step.
const BATCH: usize = 256;
/// The first step, in the units of the numbers trained; steps get shorter evenly.
const RATE: f64 = 0.02;

/// What was learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Learning {
    /// The divisor of every channel after the rotation, (d), or the whole basis, rotation included, (d, d) row-major.
    pub numbers: Vec<f32>,
    /// Σ‖x̂ − x‖² over Σ‖x − μ‖², on the rows trained on: with the codec's rotation alone, and with what was learned.
    pub errors: [f64; 2],
}

/// Whether [`learn`] knows how to train what a codec asks for.
///
/// # Errors
/// When it asks for nothing, or its rounding cannot be trained through.
pub fn learnable(spec: &CodecSpec) -> Result<(), CalibrationError> {
    Change::of(spec).and(Rounding::of(spec, 1)).map(|_| ())
}

/// Trains what `spec` asks for on rows, (n, d), less the codec's mean where it takes one. What does not make the error on these rows
/// less is not kept.
///
/// # Errors
/// When the codec learns nothing, or nothing that can be trained; when there are too few rows; when numbers are not finite.
pub fn learn(spec: &CodecSpec, rows: &[f32], mean: &[f32], seed: u64) -> Result<Learning, CalibrationError> {
    let dim = mean.len();
    let change = Change::of(spec)?;
    let rounding = Rounding::of(spec, dim)?;
    if rows.len() < dim * dim {
        return Err(CalibrationError::TooFew { seen: (rows.len() / dim) as u64, dim });
    }
    if !rows.iter().chain(mean).all(|x| x.is_finite()) {
        return Err(CalibrationError::Degenerate { what: "rows to learn from" });
    }
    let mut rows = rows.to_vec();
    if spec.options.mean {
        rows.chunks_exact_mut(dim).for_each(|row| row.iter_mut().zip(mean).for_each(|(x, m)| *x -= m));
    }
    let rotation = Basis::new(spec.options.rotation, dim, spec.options.seed);
    rotation.apply(&mut rows, Tier::Scalar).expect("whole rows");
    let rows: Vec<f64> = rows.into_iter().map(f64::from).collect();

    let start = change.start(dim, seed);
    let trained = train(change, &rounding, &rows, dim, seed);
    let power: f64 = rows.iter().map(|x| x * x).sum::<f64>().max(f64::MIN_POSITIVE);
    let error =
        |numbers: &[f64]| Loss::of(change, &rounding, &rows, dim, numbers).value * (rows.len() / dim) as f64;
    let [before, after] = [&start, &trained].map(|numbers| error(numbers) / power);
    let (kept, after) = if after < before { (trained, after) } else { (start, before) };
    let numbers = match change {
        Change::Scaled => kept.iter().map(|x| x.exp() as f32).collect(),
        Change::Turned(turn) => after_rotation(&turn.matrix(dim, &kept), &rotation),
    };
    Ok(Learning { numbers, errors: [before, after] })
}

/// L of y = L R x.
#[derive(Clone, Copy)]
enum Change {
    /// Channel c over e^θ of c.
    Scaled,
    Turned(LearnedRotation),
}

impl Change {
    fn of(spec: &CodecSpec) -> Result<Self, CalibrationError> {
        match spec.options.learned {
            Some(Learned::Scaled) => Ok(Change::Scaled),
            Some(Learned::Cayley) => Ok(Change::Turned(LearnedRotation::Cayley)),
            Some(Learned::Householder) => Ok(Change::Turned(LearnedRotation::Householder)),
            None => Err(CalibrationError::Unlearnable {
                spec: spec.to_string(),
                reason: "it has none of scaled, cayley, householder",
            }),
        }
    }

    fn start(self, dim: usize, seed: u64) -> Vec<f64> {
        match self {
            Change::Scaled => vec![0.0; dim],
            Change::Turned(turn) => turn.start(dim, seed),
        }
    }
}

fn train(change: Change, rounding: &Rounding, rows: &[f64], dim: usize, seed: u64) -> Vec<f64> {
    let mut numbers = change.start(dim, seed);
    let mut adam = Adam::new(numbers.len());
    let mut words = split_mix(seed);
    let count = (rows.len() / dim) as u64;
    let mut batch = Vec::with_capacity(BATCH * dim);
    for step in 0..STEPS {
        batch.clear();
        for word in words.by_ref().take(BATCH) {
            batch.extend_from_slice(&rows[(word % count) as usize * dim..][..dim]);
        }
        let loss = Loss::of(change, rounding, &batch, dim, &numbers);
        adam.step(&mut numbers, &loss.gradient, RATE * (1.0 - step as f64 / STEPS as f64));
    }
    numbers
}

/// The mean square error of a row, and its derivative by the numbers.
struct Loss {
    value: f64,
    gradient: Vec<f64>,
}

impl Loss {
    /// On rows z = R x, (n, d).
    fn of(change: Change, rounding: &Rounding, rows: &[f64], dim: usize, numbers: &[f64]) -> Loss {
        let count = rows.len() / dim;
        let share = (count as f64).recip();
        let (mut value, mut errors) = (0.0, vec![0.0; dim]);
        match change {
            Change::Scaled => {
                let weights: Vec<f64> = numbers.iter().map(|x| x.exp()).collect();
                let (mut y, mut by_y, mut gradient) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
                for row in rows.chunks_exact(dim) {
                    for ((y, z), w) in y.iter_mut().zip(row).zip(&weights) {
                        *y = z / w;
                    }
                    value += share * rounding.cost(&y, &weights, &mut errors, &mut by_y);
                    for (c, g) in gradient.iter_mut().enumerate() {
                        *g += share * (2.0 * (weights[c] * errors[c]).powi(2) - by_y[c] * y[c]);
                    }
                }
                Loss { value, gradient }
            }
            Change::Turned(turn) => {
                let matrix = turn.matrix(dim, numbers);
                let z = MatRef::from_column_major_slice(rows, dim, count);
                let mut y = Mat::<f64>::zeros(dim, count); // a column per row
                matmul(y.as_mut(), Accum::Replace, matrix.as_ref(), z, 1.0, Par::Seq);
                let mut by_y = Mat::<f64>::zeros(dim, count);
                let ones = vec![1.0; dim];
                for column in 0..count {
                    let gradient = by_y.col_as_slice_mut(column);
                    value += share * rounding.cost(y.col_as_slice(column), &ones, &mut errors, gradient);
                }
                let mut by_matrix = Mat::<f64>::zeros(dim, dim);
                matmul(by_matrix.as_mut(), Accum::Replace, by_y.as_ref(), z.transpose(), share, Par::Seq);
                Loss { value, gradient: turn.gradient(dim, numbers, &by_matrix) }
            }
        }
    }
}

/// L·R, row-major.
fn after_rotation(matrix: &Mat<f64>, rotation: &Basis) -> Vec<f32> {
    let dim = matrix.nrows();
    // The images of the unit vectors, which are the columns of R.
    let mut columns: Vec<f32> = (0..dim * dim).map(|n| if n / dim == n % dim { 1.0 } else { 0.0 }).collect();
    rotation.apply(&mut columns, Tier::Scalar).expect("whole vectors");
    let rotation = Mat::from_fn(dim, dim, |i, j| f64::from(columns[j * dim + i]));
    let product = matrix * rotation;
    (0..dim * dim).map(|n| product[(n / dim, n % dim)] as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rounding::tests::{spec, with_residuals_of};
    use super::*;

    const DIM: usize = 16;

    /// Rows with a few directions that are much longer than the others, none of them a channel's.
    fn correlated(count: usize) -> Vec<f32> {
        let mut words = split_mix(3);
        let mut noise = || (words.next().unwrap() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let directions: Vec<f64> = (0..DIM * DIM).map(|_| noise()).collect();
        let mut row = || {
            let lengths: Vec<f64> = (0..DIM).map(|c| noise() * 8.0 / (1.0 + c as f64).powi(2)).collect();
            (0..DIM)
                .map(|c| lengths.iter().zip(&directions[c * DIM..]).map(|(l, d)| l * d).sum::<f64>() as f32)
                .collect::<Vec<f32>>()
        };
        (0..count).flat_map(|_| row()).collect()
    }

    #[test]
    fn the_gradient_by_the_numbers_is_that_of_finite_differences() {
        let rounding = Rounding::of(&spec("max3:token"), DIM).unwrap();
        let rows: Vec<f64> = correlated(3).into_iter().map(f64::from).collect();
        for change in [
            Change::Scaled,
            Change::Turned(LearnedRotation::Cayley),
            Change::Turned(LearnedRotation::Householder),
        ] {
            let numbers: Vec<f64> =
                change.start(DIM, 1).iter().enumerate().map(|(n, x)| x + 0.1 * (n as f64).sin()).collect();
            let rounded = |numbers: &[f64]| {
                let weights: Vec<f64> = (0..DIM)
                    .map(|c| if matches!(change, Change::Scaled) { numbers[c].exp() } else { 1.0 })
                    .collect();
                let matrix = match change {
                    Change::Scaled => {
                        Mat::from_fn(DIM, DIM, |i, j| if i == j { weights[i].recip() } else { 0.0 })
                    }
                    Change::Turned(turn) => turn.matrix(DIM, numbers),
                };
                let turned = |row: &[f64]| -> Vec<f64> {
                    (0..DIM).map(|i| (0..DIM).map(|j| matrix[(i, j)] * row[j]).sum()).collect()
                };
                (rows.chunks_exact(DIM).map(turned).collect::<Vec<_>>(), weights)
            };
            let (fixed, _) = rounded(&numbers);
            let value = |numbers: &[f64]| {
                let (now, weights) = rounded(numbers);
                let rows = fixed.iter().zip(&now);
                rows.map(|(fixed, now)| with_residuals_of(&rounding, fixed, now, &weights)).sum::<f64>() / 3.0
            };
            let loss = Loss::of(change, &rounding, &rows, DIM, &numbers);
            assert!((loss.value - value(&numbers)).abs() < 1e-9);
            for (i, found) in loss.gradient.iter().enumerate() {
                let at = |by: f64| {
                    let mut numbers = numbers.clone();
                    numbers[i] += by;
                    value(&numbers)
                };
                let want = (at(1e-6) - at(-1e-6)) / 2e-6;
                assert!((found - want).abs() < 1e-4 * (1.0 + want.abs()), "number {i}: {found}, {want}");
            }
        }
    }

    #[test]
    fn training_makes_the_error_less_and_a_seed_decides() {
        let (rows, mean) = (correlated(500), vec![0.0; DIM]);
        for text in [
            "sym3:token,cayley",
            "sym3:token,householder",
            "sym3g16:scaled",
            "srft3:g16,cayley",
            "max3:token,srft,householder",
        ] {
            let found = learn(&spec(text), &rows, &mean, 1).unwrap();
            let [before, after] = found.errors;
            assert!(after < 0.97 * before, "{text}: {before} before, {after} after");
            assert_eq!(found, learn(&spec(text), &rows, &mean, 1).unwrap());
        }
        let [one, two] =
            [1, 2].map(|seed| learn(&spec("sym3:token,householder"), &rows, &mean, seed).unwrap());
        assert_ne!(one, two);
    }

    #[test]
    fn a_mean_is_taken_away_where_the_codec_does_it() {
        let mean = vec![7.0; DIM];
        let centred = correlated(300);
        let rows: Vec<f32> = centred.iter().map(|x| x + 7.0).collect();
        let with = learn(&spec("sym3g16:mean,scaled"), &rows, &mean, 1).unwrap();
        let want = learn(&spec("sym3g16:scaled"), &centred, &mean, 1).unwrap();
        assert!((with.errors[1] / want.errors[1] - 1.0).abs() < 1e-2, "{with:?} {want:?}");
        let without = learn(&spec("sym3g16:scaled"), &rows, &mean, 1).unwrap();
        assert!(without.errors[1] * 49.0 > with.errors[1]);
    }

    #[test]
    fn what_cannot_be_learned_from_is_refused() {
        let mean = [0.0; DIM];
        let refusal = |text: &str, rows: &[f32]| learn(&spec(text), rows, &mean, 1).unwrap_err().to_string();
        assert!(refusal("srft4", &correlated(20)).contains("none of scaled"));
        assert!(refusal("srft4:cayley", &correlated(15)).contains("longer text"));
        let mut rows = correlated(20);
        rows[9] = f32::NAN;
        assert!(refusal("srft4:cayley", &rows).contains("finite"));
    }
}
