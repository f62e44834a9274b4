//! The changes of basis of codecs as dense matrices, for kernels.

use kvant_codec::format::{BasisFormat, Linear};
use kvant_codec::{Basis, Rotation, Tier};

/// The matrices of a change of basis y = Λ⁻¹ T (x − μ).
pub(crate) struct Matrices {
    /// Λ⁻¹ T row by row, then μ: what a vector is encoded with.
    pub forward: Vec<f32>,
    /// Λ T⁻ᵀ column by column, then μ: what a query is multiplied with.
    pub query: Vec<f32>,
    /// T⁻¹ Λ column by column, then μ: what a sum is multiplied with.
    pub finish: Vec<f32>,
}

/// The matrices of a format; `None` where vectors stay as they are.
pub(crate) fn matrices(format: &BasisFormat) -> Option<Matrices> {
    let dim = format.dim;
    let plain = matches!(format.linear, Linear::Rotation { kind: Rotation::Identity, .. })
        || matches!(format.linear, Linear::Rotation { kind: Rotation::Hadamard64, .. } if !dim.is_multiple_of(64));
    if plain && format.lambda.is_empty() && format.mean.iter().all(|mean| *mean == 0.0) {
        return None;
    }
    // T and T⁻¹, row by row.
    let (forward, inverse) = match &format.linear {
        Linear::Dense(dense) => (dense.matrix().to_vec(), dense.inverse_matrix().to_vec()),
        Linear::Rotation { kind, seed } => {
            let basis = Basis::new(*kind, dim, *seed);
            let mut columns: Vec<f32> =
                (0..dim * dim).map(|n| f32::from(u8::from(n % dim == n / dim))).collect();
            // Row j becomes T e_j, a column of T; of a rotation that is a row of T⁻¹.
            basis.apply(&mut columns, Tier::Scalar).expect("whole vectors");
            (transposed(dim, &columns), columns)
        }
    };
    let lambda = |c: usize| format.lambda.get(c).copied().unwrap_or(1.0);
    let mean = (0..dim).map(|c| format.mean.get(c).copied().unwrap_or(0.0));
    let with_mean = |matrix: Vec<f32>| matrix.into_iter().chain(mean.clone()).collect();
    Some(Matrices {
        forward: with_mean((0..dim * dim).map(|n| forward[n] / lambda(n / dim)).collect()),
        // Entry (j, c) is λ_c · (T⁻¹)[j][c], which is also what moves sums back, the other way round.
        query: with_mean((0..dim * dim).map(|n| inverse[n] * lambda(n % dim)).collect()),
        finish: with_mean(transposed(
            dim,
            &(0..dim * dim).map(|n| inverse[n] * lambda(n % dim)).collect::<Vec<_>>(),
        )),
    })
}

fn transposed(dim: usize, matrix: &[f32]) -> Vec<f32> {
    (0..dim * dim).map(|n| matrix[n % dim * dim + n / dim]).collect()
}
