//! Products with a dense basis.

use crate::format::Dense;
use kvant_simd::{LANES, Simd};

/// y = M x, in place.
///
/// # Safety
/// `x` and `scratch` hold `dim` columns each and do not overlap; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn forward<S: Simd>(dense: &Dense, x: *mut f32, scratch: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { apply::<S>(dense.dim(), dense.matrix(), x, scratch) }
}

/// M⁻ᵀ q, in place.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
pub(super) unsafe fn query<S: Simd>(dense: &Dense, q: *mut f32, scratch: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { apply::<S>(dense.dim(), dense.query_matrix(), q, scratch) }
}

/// x = M⁻¹ y, in place.
///
/// # Safety
/// As [`forward`].
#[inline(always)]
pub(super) unsafe fn inverse<S: Simd>(dense: &Dense, y: *mut f32, scratch: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { apply::<S>(dense.dim(), dense.inverse_matrix(), y, scratch) }
}

/// # Safety
/// The matrix has `d` rows and columns, both buffers hold `d` columns; the CPU has the tier.
#[inline(always)]
unsafe fn apply<S: Simd>(d: usize, matrix: &[f32], x: *mut f32, scratch: *mut f32) {
    /// Rows per pass: enough independent sums to hide the latency of a fused multiply-add.
    const ROWS: usize = 8;
    // SAFETY: rows and columns stay below d.
    unsafe {
        std::ptr::copy_nonoverlapping(x, scratch, LANES * d);
        let mut row = 0;
        while row + ROWS <= d {
            let mut sums = [S::splat(0.0); ROWS];
            for j in 0..d {
                let column = S::load(scratch.add(LANES * j));
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(column, S::splat(*matrix.get_unchecked((row + r) * d + j)), *sum);
                }
            }
            for (r, sum) in sums.iter().enumerate() {
                S::store(x.add(LANES * (row + r)), *sum);
            }
            row += ROWS;
        }
        for row in row..d {
            let mut sum = S::splat(0.0);
            for (j, factor) in matrix[row * d..(row + 1) * d].iter().enumerate() {
                sum = S::fma(S::load(scratch.add(LANES * j)), S::splat(*factor), sum);
            }
            S::store(x.add(LANES * row), sum);
        }
    }
}
