//! Whole vectors into a basis and back, sixteen at a time: for codecs that decode, and for whoever makes bases.

use super::{Basis, Way};
use crate::error::{CodecError, whole};
use crate::scratch::Scratch;
use kvant_simd::{LANES, Simd, Tier, Work, with_tier};

/// Moves vectors, (n, dim), into the basis or, mean included, back to the model's, in place.
///
/// # Panics
/// When this CPU does not have the tier: running its code would be undefined.
pub(super) fn change(basis: &Basis, way: Way, rows: &mut [f32], tier: Tier) -> Result<(), CodecError> {
    let count = whole("rows", rows.len(), basis.dim())?;
    assert!(tier.is_available(), "this CPU cannot run {tier} kernels");
    let work = Rows { basis, way, rows: rows.as_mut_ptr(), count };
    // SAFETY: `rows` holds `count` vectors, and the CPU has the tier.
    unsafe { with_tier!(tier, S => <S as Simd>::call(work)) };
    Ok(())
}

struct Rows<'a> {
    basis: &'a Basis,
    way: Way,
    rows: *mut f32,
    count: usize,
}

impl<S: Simd> Work<S> for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Rows { basis, way, rows, count } = self;
        // SAFETY: the caller's contract.
        unsafe {
            match way {
                Way::Inverse => undo::<S>(basis, rows, count),
                Way::Forward | Way::Query => apply::<S>(basis, way, rows, count),
            }
        }
    }
}

/// Moves `count` vectors into the basis, in place.
///
/// # Safety
/// `rows` is valid for count · dim floats; the CPU has the tier.
#[inline(always)]
unsafe fn apply<S: Simd>(basis: &Basis, way: Way, rows: *mut f32, count: usize) {
    let dim = basis.dim();
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for first in (0..count).step_by(LANES) {
        let lanes = LANES.min(count - first);
        // SAFETY: rows first .. first + lanes are within the vectors; both buffers have `dim` columns.
        unsafe {
            let rows = rows.add(first * dim);
            for c in (0..dim).step_by(LANES) {
                if lanes == LANES && c + LANES <= dim {
                    let block = S::transpose(rows.add(c), dim);
                    for i in 0..LANES {
                        S::store(columns.as_mut_ptr().add(LANES * (c + i)), block[i]);
                    }
                } else {
                    for c in c..dim.min(c + LANES) {
                        for lane in 0..LANES {
                            columns[LANES * c + lane] =
                                if lane < lanes { *rows.add(lane * dim + c) } else { 0.0 };
                        }
                    }
                }
            }
            match way {
                Way::Query => basis.query::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()),
                Way::Forward | Way::Inverse => basis.forward::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr()),
            }
            for c in (0..dim).step_by(LANES) {
                if lanes == LANES && c + LANES <= dim {
                    let block = S::transpose(columns.as_ptr().add(LANES * c), LANES);
                    for i in 0..LANES {
                        S::store(rows.add(i * dim + c), block[i]);
                    }
                } else {
                    for c in c..dim.min(c + LANES) {
                        for lane in 0..lanes {
                            *rows.add(lane * dim + c) = columns[LANES * c + lane];
                        }
                    }
                }
            }
        }
    }
}

/// Moves `count` vectors back to the model's basis, in place.
///
/// # Safety
/// `rows` is valid for count · dim floats; the CPU has the tier.
#[inline(always)]
unsafe fn undo<S: Simd>(basis: &Basis, rows: *mut f32, count: usize) {
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
