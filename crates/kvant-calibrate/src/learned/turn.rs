//! Rotations from numbers without a constraint, and back from a derivative by the rotation to one by the numbers.

use faer::Mat;
use faer::linalg::solvers::DenseSolveCore;
use kvant_codec::split_mix;

/// How a rotation is written down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum LearnedRotation {
    /// (I − A)(I + A)⁻¹; A above its diagonal, row by row.
    Cayley,
    /// The product of reflections I − 2vvᵀ/‖v‖², the last one met first; one v after the other.
    Householder,
}

impl LearnedRotation {
    /// Numbers of the identity; reflections come in pairs that undo each other, and one without a partner turns a sign.
    pub fn start(self, dim: usize, seed: u64) -> Vec<f64> {
        match self {
            LearnedRotation::Cayley => vec![0.0; dim * (dim - 1) / 2],
            LearnedRotation::Householder => {
                let reflections = (dim / 2).max(1);
                let mut words = split_mix(seed);
                let mut number =
                    || (words.next().unwrap_or_default() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
                let mut vectors = Vec::with_capacity(reflections * dim);
                for _ in 0..reflections / 2 {
                    let vector: Vec<f64> = (0..dim).map(|_| number()).collect();
                    vectors.extend([&vector[..], &vector].concat());
                }
                if reflections % 2 == 1 {
                    vectors.extend((0..dim).map(|c| if c == 0 { 1.0 } else { 0.0 }));
                }
                vectors
            }
        }
    }

    /// The rotation, (d, d).
    pub fn matrix(self, dim: usize, numbers: &[f64]) -> Mat<f64> {
        match self {
            LearnedRotation::Cayley => {
                let (a, inverse) = skew(dim, numbers);
                (Mat::<f64>::identity(dim, dim) - a) * inverse
            }
            LearnedRotation::Householder => {
                let mut product = Mat::identity(dim, dim);
                for v in numbers.chunks_exact(dim).rev() {
                    reflect(v, &mut product);
                }
                product
            }
        }
    }

    /// From the derivative of something by the rotation, (d, d), to that by the numbers.
    pub fn gradient(self, dim: usize, numbers: &[f64], by_matrix: &Mat<f64>) -> Vec<f64> {
        match self {
            LearnedRotation::Cayley => {
                // dU = −(I + U) dA (I + A)⁻¹.
                let (a, inverse) = skew(dim, numbers);
                let identity = Mat::<f64>::identity(dim, dim);
                let turned = (&identity - a) * &inverse + &identity;
                let by_a = turned.transpose() * by_matrix * inverse.transpose();
                above(dim).map(|(i, j)| by_a[(j, i)] - by_a[(i, j)]).collect()
            }
            LearnedRotation::Householder => {
                // U = H P with the product P of the reflections after H: by H it is G Pᵀ, and P itself is left with H G.
                let mut rest = self.matrix(dim, numbers);
                let mut by_rest = by_matrix.clone();
                let mut gradient = Vec::with_capacity(numbers.len());
                for v in numbers.chunks_exact(dim) {
                    reflect(v, &mut rest);
                    // dH = −2(dv vᵀ + v dvᵀ)/n + 4 (v·dv) vvᵀ/n² with n = ‖v‖².
                    let n = v.iter().map(|x| x * x).sum::<f64>();
                    let forward = times(&by_rest, &transposed_times(&rest, v));
                    let backward = times(&rest, &transposed_times(&by_rest, v));
                    let along = forward.iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
                    let both = forward.iter().zip(&backward).zip(v);
                    gradient.extend(both.map(|((f, b), v)| -2.0 * (f + b) / n + 4.0 * along * v / (n * n)));
                    reflect(v, &mut by_rest);
                }
                gradient
            }
        }
    }
}

/// Places above the diagonal, row by row.
fn above(dim: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..dim).flat_map(move |i| (i + 1..dim).map(move |j| (i, j)))
}

/// A and (I + A)⁻¹, which is there for every A = −Aᵀ: the eigenvalues of A are imaginary.
fn skew(dim: usize, numbers: &[f64]) -> (Mat<f64>, Mat<f64>) {
    let mut a = Mat::zeros(dim, dim);
    for ((i, j), x) in above(dim).zip(numbers) {
        (a[(i, j)], a[(j, i)]) = (*x, -x);
    }
    let inverse = (Mat::<f64>::identity(dim, dim) + &a).partial_piv_lu().inverse();
    (a, inverse)
}

/// M becomes (I − 2vvᵀ/‖v‖²) M.
fn reflect(v: &[f64], m: &mut Mat<f64>) {
    let n = v.iter().map(|x| x * x).sum::<f64>();
    for column in 0..m.ncols() {
        let column = m.col_as_slice_mut(column);
        let along = 2.0 / n * column.iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
        column.iter_mut().zip(v).for_each(|(x, v)| *x -= along * v);
    }
}

/// M x.
fn times(m: &Mat<f64>, x: &[f64]) -> Vec<f64> {
    let mut sum = vec![0.0; m.nrows()];
    for (column, x) in x.iter().enumerate() {
        sum.iter_mut().zip(m.col_as_slice(column)).for_each(|(sum, m)| *sum += m * x);
    }
    sum
}

/// Mᵀ x.
fn transposed_times(m: &Mat<f64>, x: &[f64]) -> Vec<f64> {
    (0..m.ncols()).map(|column| m.col_as_slice(column).iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [LearnedRotation; 2] = [LearnedRotation::Cayley, LearnedRotation::Householder];

    /// Numbers off the start, so that nothing is special about them.
    fn moved(turn: LearnedRotation, dim: usize, by: &[f64]) -> Vec<f64> {
        turn.start(dim, 5).iter().zip(by).map(|(start, by)| start + by).collect()
    }

    fn off_identity(m: &Mat<f64>) -> f64 {
        (m - Mat::<f64>::identity(m.nrows(), m.ncols())).norm_max()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn all_numbers_give_rotations(dim in 2usize..20, by in prop::collection::vec(-2.0f64..2.0, 200)) {
            for turn in BOTH {
                let m = turn.matrix(dim, &moved(turn, dim, &by));
                prop_assert!(off_identity(&(&m * m.transpose())) < 1e-12, "{:?}", turn);
            }
        }

        #[test]
        fn gradients_are_those_of_finite_differences(
            dim in 2usize..8,
            by in prop::collection::vec(-1.0f64..1.0, 64),
            weights in prop::collection::vec(-1.0f64..1.0, 64),
        ) {
            for turn in BOTH {
                let numbers = moved(turn, dim, &by);
                // Any function of the matrix will do: Σ w·m, whose derivative is w.
                let by_matrix = Mat::from_fn(dim, dim, |i, j| weights[i * dim + j]);
                let value = |numbers: &[f64]| {
                    let m = turn.matrix(dim, numbers);
                    (0..dim * dim).map(|n| weights[n] * m[(n / dim, n % dim)]).sum::<f64>()
                };
                for (i, found) in turn.gradient(dim, &numbers, &by_matrix).into_iter().enumerate() {
                    let at = |step: f64| {
                        let mut numbers = numbers.clone();
                        numbers[i] += step;
                        value(&numbers)
                    };
                    let want = (at(1e-6) - at(-1e-6)) / 2e-6;
                    prop_assert!((found - want).abs() < 1e-5 * (1.0 + want.abs()), "{:?}: {} {}", turn, found, want);
                }
            }
        }
    }

    #[test]
    fn training_starts_from_the_identity() {
        for dim in [4, 8, 64] {
            for turn in BOTH {
                assert!(off_identity(&turn.matrix(dim, &turn.start(dim, 1))) < 1e-12, "{turn:?} {dim}");
            }
        }
        // Three reflections: one has no partner.
        let odd = LearnedRotation::Householder.matrix(6, &LearnedRotation::Householder.start(6, 1));
        assert!((odd[(0, 0)] + 1.0).abs() < 1e-12 && (odd[(3, 3)] - 1.0).abs() < 1e-12);
    }
}
