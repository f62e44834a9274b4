//! The changes of basis of codecs, for kernels: one for each kv head, or one for all.
//!
//! Vectors are encoded by the transform itself where it is a fast one, by a matrix product where it is a plan's matrix. Queries and
//! sums are moved once per step, always by a matrix.

use kvant_codec::format::{BasisFormat, Linear};
use kvant_codec::{Basis, Rotation, Tier};
use std::f64::consts::TAU;

/// How vectors get into the basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Signs, the Hartley transform of odd neighbours, butterflies.
    Walsh,
    /// Signs, a complex transform of half the length, evens and odds separated.
    Fourier,
    /// A matrix product.
    Dense,
}

/// The changes of basis y = Λ⁻¹ T (x − μ) of the kv heads of a slot.
pub(crate) struct Bases {
    pub way: Way,
    /// For every head: T (signs; signs and roots of unity; the matrix, column by column), then μ, then 1/λ. What a vector is
    /// encoded with.
    pub forward: Vec<f32>,
    /// For every head: Λ T⁻ᵀ column by column, then μ. What a query is multiplied with.
    pub query: Vec<f32>,
    /// For every head: T⁻¹ Λ column by column, then μ. What a sum is multiplied with.
    pub finish: Vec<f32>,
    /// Numbers of T, and of one head in `forward` and in the others; 0 from head to head where all have the same.
    pub linear: usize,
    pub forward_step: usize,
    pub matrix_step: usize,
    /// Whether any head has λ, or a mean.
    pub has_lambda: bool,
    pub has_mean: bool,
}

/// Hartley matrices and butterflies of one prime are written out up to this size; real head dimensions have 1, 3, 5, 7 and 9.
pub(crate) const MOST_ODD: usize = 15;

fn is_plain(format: &BasisFormat) -> bool {
    let identity = match format.linear {
        Linear::Rotation { kind: Rotation::Identity, .. } => true,
        Linear::Rotation { kind: Rotation::Hadamard64, .. } => !format.dim.is_multiple_of(64),
        _ => false,
    };
    identity && format.lambda.is_empty() && format.mean.iter().all(|mean| *mean == 0.0)
}

fn way(format: &BasisFormat) -> Way {
    let dim = format.dim;
    match format.linear {
        Linear::Rotation { kind: Rotation::Srht, .. } if dim >> dim.trailing_zeros() <= MOST_ODD => {
            Way::Walsh
        }
        Linear::Rotation { kind: Rotation::Srft, .. } if radices(dim / 2).is_some() => Way::Fourier,
        _ => Way::Dense,
    }
}

/// Radices of the stages of a complex transform; `None` where a prime is too large to be written out.
pub(crate) fn radices(mut length: usize) -> Option<Vec<usize>> {
    let mut radices = Vec::new();
    for radix in [4, 2].into_iter().chain((3..=MOST_ODD).step_by(2)) {
        while length > 1 && length.is_multiple_of(radix) {
            radices.push(radix);
            length /= radix;
        }
    }
    (length == 1).then_some(radices)
}

/// The changes of basis of heads of one dimension; `None` where vectors stay as they are.
pub(crate) fn bases(heads: &[&BasisFormat]) -> Option<Bases> {
    let first = way(heads[0]);
    bases_by(heads, if heads.iter().all(|format| way(format) == first) { first } else { Way::Dense })
}

/// The same by matrices.
pub(crate) fn dense_bases(heads: &[&BasisFormat]) -> Option<Bases> {
    bases_by(heads, Way::Dense)
}

fn bases_by(heads: &[&BasisFormat], way: Way) -> Option<Bases> {
    if heads.iter().all(|format| is_plain(format)) {
        return None;
    }
    let dim = heads[0].dim;
    let linear = match way {
        Way::Walsh => dim,
        Way::Fourier => 3 * dim,
        Way::Dense => dim * dim,
    };
    let differ = heads.iter().any(|format| *format != heads[0]);
    let step = |numbers: usize| if differ { numbers } else { 0 };
    let mut bases = Bases {
        way,
        forward: Vec::new(),
        query: Vec::new(),
        finish: Vec::new(),
        linear,
        forward_step: step(linear + 2 * dim),
        matrix_step: step(dim * dim + dim),
        has_lambda: heads.iter().any(|format| !format.lambda.is_empty()),
        has_mean: heads.iter().any(|format| format.mean.iter().any(|mean| *mean != 0.0)),
    };
    heads.iter().take(if differ { heads.len() } else { 1 }).for_each(|format| bases.add(format));
    Some(bases)
}

impl Bases {
    fn add(&mut self, format: &BasisFormat) {
        let dim = format.dim;
        let (forward, inverse) = matrices(format);
        let lambda = |c: usize| format.lambda.get(c).copied().unwrap_or(1.0);
        let mean = || (0..dim).map(|c| format.mean.get(c).copied().unwrap_or(0.0));
        match self.way {
            Way::Dense => self.forward.extend(transposed(dim, &forward)),
            // The first row of both transforms has nothing but the signs, over the root of the dimension.
            Way::Walsh | Way::Fourier => self.forward.extend(&forward[..dim]),
        }
        if self.way == Way::Fourier {
            self.forward.extend((0..dim).flat_map(|k| {
                let (sin, cos) = (TAU * k as f64 / dim as f64).sin_cos();
                [cos as f32, -sin as f32]
            }));
        }
        self.forward.extend(mean());
        self.forward.extend((0..dim).map(|c| 1.0 / lambda(c)));
        // Entry (j, c) is λ_c · (T⁻¹)[j][c], which is also what moves sums back, the other way round.
        let back: Vec<f32> = (0..dim * dim).map(|n| inverse[n] * lambda(n % dim)).collect();
        self.finish.extend(transposed(dim, &back).into_iter().chain(mean()));
        self.query.extend(back.into_iter().chain(mean()));
    }
}

/// T and T⁻¹, row by row.
fn matrices(format: &BasisFormat) -> (Vec<f32>, Vec<f32>) {
    let dim = format.dim;
    match &format.linear {
        Linear::Dense(dense) => (dense.matrix().to_vec(), dense.inverse_matrix().to_vec()),
        Linear::Rotation { kind, seed } => {
            let basis = Basis::new(*kind, dim, *seed);
            let mut columns: Vec<f32> =
                (0..dim * dim).map(|n| f32::from(u8::from(n % dim == n / dim))).collect();
            // Row j becomes T e_j, a column of T; of a rotation that is a row of T⁻¹.
            basis.apply(&mut columns, Tier::Scalar).expect("whole vectors");
            (transposed(dim, &columns), columns)
        }
    }
}

/// From the coordinates of one rotation to those of another, `(to, from)`.
pub(crate) fn turn(from: &BasisFormat, to: &BasisFormat) -> Vec<f32> {
    let dim = from.dim;
    let (to, back) = (matrices(to).0, matrices(from).1);
    let entry = |n: usize| -> f32 {
        let row = (0..dim).map(|k| f64::from(to[n / dim * dim + k]) * f64::from(back[k * dim + n % dim]));
        row.sum::<f64>() as f32
    };
    (0..dim * dim).map(entry).collect()
}

pub(crate) fn transposed(dim: usize, matrix: &[f32]) -> Vec<f32> {
    (0..dim * dim).map(|n| matrix[n % dim * dim + n / dim]).collect()
}
