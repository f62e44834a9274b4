//! A dense invertible basis, as plans carry it: d×d numbers for keys and their inverse for the way back.

/// y = M x with a known inverse.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    dim: usize,
    /// Row-major M.
    forward: Vec<f32>,
    /// Row-major M⁻¹.
    inverse: Vec<f32>,
    /// Row-major M⁻ᵀ, what a query is multiplied with.
    query: Vec<f32>,
}

/// Why a pair of matrices is no basis.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DenseError {
    /// Not d² numbers each.
    #[error("a basis of dimension {dim} needs two matrices of {} numbers, got {forward} and {inverse}", dim * dim)]
    Shape {
        /// The dimension asked for.
        dim: usize,
        /// Numbers in the matrix.
        forward: usize,
        /// Numbers in the inverse.
        inverse: usize,
    },
    /// A number is NaN or infinite.
    #[error("a basis must be finite")]
    NotFinite,
    /// The product of the two is not the identity.
    #[error(
        "the second matrix is not the inverse of the first: their product is off the identity by {0:.1e}"
    )]
    NotInverse(f64),
}

impl Dense {
    /// Checks that the row-major matrices are finite and inverse to each other (to 1e-3 in f32 data).
    ///
    /// # Errors
    /// See [`DenseError`].
    pub fn new(dim: usize, forward: Vec<f32>, inverse: Vec<f32>) -> Result<Dense, DenseError> {
        if forward.len() != dim * dim || inverse.len() != dim * dim {
            return Err(DenseError::Shape { dim, forward: forward.len(), inverse: inverse.len() });
        }
        if !forward.iter().chain(&inverse).all(|x| x.is_finite()) {
            return Err(DenseError::NotFinite);
        }
        let mut worst = 0.0f64;
        for i in 0..dim {
            // Row i of the product minus the identity's; rows of the inverse are read front to back.
            let mut row = vec![0.0f64; dim];
            row[i] = -1.0;
            for (factor, inverse) in forward[i * dim..].iter().zip(inverse.chunks_exact(dim)) {
                for (sum, x) in row.iter_mut().zip(inverse) {
                    *sum += f64::from(*factor) * f64::from(*x);
                }
            }
            worst = row.iter().fold(worst, |worst, x| worst.max(x.abs()));
        }
        if worst > 1e-3 {
            return Err(DenseError::NotInverse(worst));
        }
        Ok(Dense::from_parts(dim, forward, inverse))
    }

    /// The basis of a row-major matrix, whose inverse is computed.
    ///
    /// # Errors
    /// When it is not d² finite numbers, or has no inverse that holds in f32.
    pub fn of(dim: usize, forward: Vec<f32>) -> Result<Dense, DenseError> {
        if forward.len() != dim * dim {
            return Err(DenseError::Shape { dim, forward: forward.len(), inverse: dim * dim });
        }
        let inverse = inverse(dim, &forward);
        Dense::new(dim, forward, inverse)
    }

    pub(crate) fn from_parts(dim: usize, forward: Vec<f32>, inverse: Vec<f32>) -> Dense {
        let query = (0..dim * dim).map(|n| inverse[(n % dim) * dim + n / dim]).collect();
        Dense { dim, forward, inverse, query }
    }

    /// A rotation from its orthonormal rows: the inverse is the transpose, and queries turn with the vectors.
    pub(crate) fn orthonormal(dim: usize, rows: Vec<f32>) -> Dense {
        let inverse = (0..dim * dim).map(|n| rows[(n % dim) * dim + n / dim]).collect();
        Dense { dim, query: rows.clone(), forward: rows, inverse }
    }

    /// d.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Row-major M.
    pub fn matrix(&self) -> &[f32] {
        &self.forward
    }

    /// Row-major M⁻¹.
    pub fn inverse_matrix(&self) -> &[f32] {
        &self.inverse
    }

    /// Row-major M⁻ᵀ, what a query is multiplied with.
    pub(crate) fn query_matrix(&self) -> &[f32] {
        &self.query
    }
}

/// M⁻¹ by elimination in f64, with the largest pivot of each column. Where there is none, numbers that are not finite.
fn inverse(dim: usize, matrix: &[f32]) -> Vec<f32> {
    // Rows of M beside those of the identity, (d, 2d): what turns the left half into the identity makes the right M⁻¹.
    let width = 2 * dim;
    let mut rows = vec![0.0f64; dim * width];
    for (i, row) in rows.chunks_exact_mut(width.max(1)).enumerate() {
        row[dim + i] = 1.0;
        row.iter_mut().zip(&matrix[i * dim..(i + 1) * dim]).for_each(|(x, m)| *x = f64::from(*m));
    }
    let mut pivot = vec![0.0; width];
    for column in 0..dim {
        let size = |row: usize| rows[row * width + column].abs();
        let largest = (column..dim).max_by(|a, b| size(*a).total_cmp(&size(*b))).unwrap_or(column);
        for i in 0..width {
            rows.swap(column * width + i, largest * width + i);
        }
        let factor = rows[column * width + column].recip();
        rows[column * width..(column + 1) * width].iter_mut().for_each(|x| *x *= factor);
        pivot.copy_from_slice(&rows[column * width..(column + 1) * width]);
        for (_, row) in rows.chunks_exact_mut(width).enumerate().filter(|(i, _)| *i != column) {
            let factor = row[column];
            row.iter_mut().zip(&pivot).for_each(|(x, p)| *x -= factor * p);
        }
    }
    rows.chunks_exact(width.max(1)).flat_map(|row| row[dim..].iter().map(|x| *x as f32)).collect()
}
