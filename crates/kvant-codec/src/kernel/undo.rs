//! Vectors back to the model's basis, for codecs that decode.

use super::scratch::Scratch;
use crate::transform::Basis;
use kvant_simd::{LANES, Simd};

/// Moves `count` vectors back to the model's basis, in place, sixteen at a time.
///
/// # Safety
/// `rows` is valid for count · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn undo<S: Simd>(basis: &Basis, rows: *mut f32, count: usize) {
    let dim = basis.dim();
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for first in (0..count).step_by(LANES) {
        let lanes = LANES.min(count - first);
        columns.fill(0.0);
        // SAFETY: rows first .. first + lanes are within the vectors; both buffers have `dim` columns.
        unsafe {
            let rows = std::slice::from_raw_parts_mut(rows.add(first * dim), lanes * dim);
            for (lane, row) in rows.chunks_exact(dim).enumerate() {
                for (c, x) in row.iter().enumerate() {
                    columns[LANES * c + lane] = *x;
                }
            }
            basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr());
            for (lane, row) in rows.chunks_exact_mut(dim).enumerate() {
                for (c, x) in row.iter_mut().enumerate() {
                    *x = columns[LANES * c + lane] + basis.mean().get(c).copied().unwrap_or(0.0);
                }
            }
        }
    }
}
