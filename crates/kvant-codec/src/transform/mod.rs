//! Changes of basis: what a codec does to a vector before it rounds it.
//!
//! A [`Basis`] is the affine map y = Λ⁻¹ T (x − μ). T is a rotation (identity, SRHT, SRFT, blocks of Hadamard) or
//! a dense invertible matrix from a plan; Λ an optional positive diagonal; μ an optional fixed mean. Because
//! attention only ever meets keys through inner products and values through weighted sums, the map never has to
//! be undone token by token:
//!
//! - q·x = (Λ T⁻ᵀ q)·y + q·μ — the query moves once per step ([`Basis::query`]);
//! - Σ w x = T⁻¹ Λ Σ w y + μ Σ w — the sum moves back once per step ([`Basis::inverse`]).
//!
//! All of it runs on *columns*: sixteen vectors at a time, channel c of all of them at `x[16·c..]`, so that any
//! transform is plain vertical arithmetic, whatever the dimension and the instruction set.

mod complex;
mod dense;
mod fourier;
mod haar;
mod hadamard;
mod rows;

use crate::error::CodecError;
use crate::format::{BasisFormat, Dense, Linear, Rotation};
use fourier::RealFourier;
use hadamard::Hadamard;
use kvant_simd::{LANES, Simd, Tier, Work};
use std::sync::Arc;

enum Core {
    Identity,
    Hadamard(Hadamard),
    Fourier(RealFourier),
    Dense(Arc<Dense>),
}

/// The change of basis of one codec side: rotation or dense matrix, per-channel λ and mean.
pub struct Basis {
    format: BasisFormat,
    core: Core,
    /// Multiplies the input of the core: random sign × the core's normalisation. Empty for identity and dense.
    signs: Vec<f32>,
    inverse_lambda: Vec<f32>,
}

impl Basis {
    /// A seeded rotation of dimension `dim`. The same seed gives the same basis on every machine.
    pub fn new(rotation: Rotation, dim: usize, seed: u64) -> Basis {
        Basis::of(BasisFormat::rotation(rotation, dim, seed))
    }

    /// A dense basis from a plan.
    pub fn dense(matrix: impl Into<Arc<Dense>>) -> Basis {
        Basis::of(BasisFormat::dense(matrix.into()))
    }

    /// The linear part of a description that has no λ and no mean yet.
    fn of(format: BasisFormat) -> Basis {
        let dim = format.dim;
        let norm = || (dim as f64).sqrt().recip();
        let random = |seed| random_signs(dim, seed).map(|sign| (f64::from(sign) * norm()) as f32).collect();
        let (core, signs) = match &format.linear {
            Linear::Dense(matrix) => (Core::Dense(Arc::clone(matrix)), Vec::new()),
            Linear::Rotation { kind, seed } => match kind {
                Rotation::Srht => (Core::Hadamard(Hadamard::whole(dim)), random(*seed)),
                Rotation::Srft => (Core::Fourier(RealFourier::new(dim)), random(*seed)),
                Rotation::Haar => (Core::Dense(haar::haar(dim, *seed)), Vec::new()),
                Rotation::Hadamard64 if dim.is_multiple_of(64) => {
                    (Core::Hadamard(Hadamard::blocks(dim, 64)), vec![0.125; dim])
                }
                Rotation::Hadamard64 | Rotation::Identity => (Core::Identity, Vec::new()),
            },
        };
        Basis { format, core, signs, inverse_lambda: Vec::new() }
    }

    /// This rotation R after another change of basis T: the dense matrix R·T, whose inverse is T⁻¹·Rᵀ.
    pub(crate) fn after(&self, first: &Dense, tier: Tier) -> Basis {
        let dim = self.format.dim;
        let transposed = |m: &[f32]| (0..dim * dim).map(|n| m[n % dim * dim + n / dim]).collect::<Vec<f32>>();
        // Columns of T become columns of R·T, and rows of T⁻¹ rows of T⁻¹·Rᵀ.
        let (mut columns, mut rows) = (transposed(first.matrix()), first.inverse_matrix().to_vec());
        for vectors in [&mut columns, &mut rows] {
            self.apply(vectors, tier).expect("whole vectors");
        }
        Basis::dense(Arc::new(Dense::from_parts(dim, transposed(&columns), rows)))
    }

    /// Divides channel c by `lambda[c]` after the rotation. All entries must be positive and finite, and there
    /// must be as many as dimensions; otherwise `None`.
    pub fn with_lambda(mut self, lambda: &[f32]) -> Option<Basis> {
        let valid = lambda.len() == self.dim() && lambda.iter().all(|l| l.is_normal() && *l > 0.0);
        self.format.lambda = lambda.to_vec();
        self.inverse_lambda = lambda.iter().map(|l| 1.0 / l).collect();
        (valid && self.inverse_lambda.iter().all(|l| l.is_normal())).then_some(self)
    }

    /// Subtracts a fixed mean, given in the model's basis, before the rotation. `None` when it is not finite or
    /// not of this dimension.
    pub fn with_mean(mut self, mean: &[f32]) -> Option<Basis> {
        let valid = mean.len() == self.dim() && mean.iter().all(|m| m.is_finite());
        self.format.mean = mean.to_vec();
        valid.then_some(self)
    }

    /// The mean removed from every vector; empty when there is none.
    pub fn mean(&self) -> &[f32] {
        &self.format.mean
    }

    /// Queries, (n, dim), as they meet vectors in the basis: Λ T⁻ᵀ q.
    pub(crate) fn moved_queries(&self, queries: &[f32], tier: Tier) -> Result<Vec<f32>, CodecError> {
        let mut moved = queries.to_vec();
        if !self.is_plain() {
            rows::change(self, Way::Query, &mut moved, tier)?;
        }
        Ok(moved)
    }

    /// Moves whole vectors, (n, dim), into the basis, in place, on a given instruction set.
    ///
    /// # Errors
    /// When `rows` is not a whole number of vectors.
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn apply(&self, rows: &mut [f32], tier: Tier) -> Result<(), CodecError> {
        rows::change(self, Way::Forward, rows, tier)
    }

    /// The way back of [`Basis::apply`]: moves vectors, (n, dim), to the model's basis, in place, mean included.
    ///
    /// # Errors
    /// When `rows` is not a whole number of vectors.
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn undo(&self, rows: &mut [f32], tier: Tier) -> Result<(), CodecError> {
        rows::change(self, Way::Inverse, rows, tier)
    }

    /// The dimension.
    pub fn dim(&self) -> usize {
        self.format.dim
    }

    /// What it is, without its arithmetic.
    pub fn format(&self) -> &BasisFormat {
        &self.format
    }

    /// Whether queries pass through unchanged.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.core, Core::Identity) && self.format.lambda.is_empty()
    }

    /// y = Λ⁻¹ T (x − μ), in place.
    ///
    /// # Safety
    /// `x` and `scratch` are valid for 16 · dim floats each and do not overlap; the CPU has the tier.
    pub(crate) unsafe fn forward<S: Simd>(&self, x: *mut f32, scratch: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { S::call(Change { basis: self, way: Way::Forward, x, scratch }) }
    }

    /// Λ T⁻ᵀ q, in place: what the query becomes.
    ///
    /// # Safety
    /// As [`Basis::forward`].
    pub(crate) unsafe fn query<S: Simd>(&self, q: *mut f32, scratch: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { S::call(Change { basis: self, way: Way::Query, x: q, scratch }) }
    }

    /// T⁻¹ Λ y, in place; the mean is *not* added back.
    ///
    /// # Safety
    /// As [`Basis::forward`].
    pub(crate) unsafe fn inverse<S: Simd>(&self, y: *mut f32, scratch: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { S::call(Change { basis: self, way: Way::Inverse, x: y, scratch }) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Forward,
    Query,
    Inverse,
}

/// One change of basis of sixteen columns.
struct Change<'a> {
    basis: &'a Basis,
    way: Way,
    x: *mut f32,
    scratch: *mut f32,
}

impl<S: Simd> Work<S> for Change<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Change { basis, way, x, scratch } = self;
        // SAFETY: both buffers hold `dim` columns; every index below is one of a channel.
        unsafe {
            match way {
                Way::Forward => {
                    for (c, mean) in basis.format.mean.iter().enumerate() {
                        let p = x.add(LANES * c);
                        S::store(p, S::sub(S::load(p), S::splat(*mean)));
                    }
                }
                Way::Query => {}
                Way::Inverse => scale::<S>(x, &basis.format.lambda),
            }
            match (&basis.core, way) {
                (Core::Identity, _) => {}
                (Core::Hadamard(h), Way::Inverse) => h.apply::<S>(x, &[]),
                (Core::Hadamard(h), _) => h.apply::<S>(x, &basis.signs),
                (Core::Fourier(f), Way::Inverse) => f.transposed::<S>(x, scratch),
                (Core::Fourier(f), _) => f.forward::<S>(x, scratch, &basis.signs),
                (Core::Dense(m), Way::Forward) => dense::forward::<S>(m, x, scratch),
                (Core::Dense(m), Way::Query) => dense::query::<S>(m, x, scratch),
                (Core::Dense(m), Way::Inverse) => dense::inverse::<S>(m, x, scratch),
            }
            match way {
                Way::Forward => scale::<S>(x, &basis.inverse_lambda),
                Way::Query => scale::<S>(x, &basis.format.lambda),
                Way::Inverse => scale::<S>(x, &basis.signs),
            }
        }
    }
}

/// x\[c\] *= factors\[c\]; an empty list changes nothing.
///
/// # Safety
/// The buffers hold the columns that are indexed; the CPU has the tier.
#[inline(always)]
unsafe fn scale<S: Simd>(x: *mut f32, factors: &[f32]) {
    for (c, factor) in factors.iter().enumerate() {
        // SAFETY: there are at most `dim` factors and `x` holds `dim` columns.
        unsafe {
            let p = x.add(LANES * c);
            S::store(p, S::mul(S::load(p), S::splat(*factor)));
        }
    }
}

/// The words of SplitMix64: the same on every machine and in every version.
pub fn split_mix(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// ±1, 64 signs per word.
fn random_signs(dim: usize, seed: u64) -> impl Iterator<Item = i8> {
    split_mix(seed)
        .flat_map(|word| (0..64).map(move |bit| if (word >> bit) & 1 == 1 { 1 } else { -1 }))
        .take(dim)
}

#[cfg(test)]
mod tests;
