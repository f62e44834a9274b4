//! Vectors into pages of plain floats, and back.

use super::{Stored, by_element, load_part, store_part};
use crate::format::{ExactFormat, Side};
use kvant_simd::{LANES, Simd};
use std::ops::Range;

/// # Safety
/// `rows` is valid for tokens · dim floats, `page` for as many elements; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn encode<S: Simd>(format: &ExactFormat, rows: *const f32, page: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { write::<S>(format, rows, format.dim, 0..format.tokens, page) }
}

/// Writes some tokens of a page; vector i is at `rows` + i · `stride`.
///
/// # Safety
/// `rows` is valid for that, `page` for tokens · dim elements, and `tokens` lies within the page; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn write<S: Simd>(
    format: &ExactFormat,
    rows: *const f32,
    stride: usize,
    tokens: Range<usize>,
    page: *mut u8,
) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(format, write_as, (format, rows, stride, tokens, page)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn write_as<S: Simd, E: Stored>(
    format: &ExactFormat,
    rows: *const f32,
    stride: usize,
    tokens: Range<usize>,
    page: *mut u8,
) {
    let ExactFormat { side, dim, .. } = *format;
    let whole = dim / LANES * LANES;
    let mut t = tokens.start;
    // SAFETY: rows tokens.start.. are at multiples of the stride; every index is below tokens · dim; loads and stores
    // need no alignment.
    unsafe {
        while t < tokens.end {
            let row = rows.add((t - tokens.start) * stride);
            if side == Side::Value {
                let at = page.add(E::BYTES * t * dim);
                for c in (0..whole).step_by(LANES) {
                    E::store::<S>(at.add(E::BYTES * c), S::load(row.add(c)));
                }
                if whole < dim {
                    let rest = load_part::<S, f32>(row.add(whole).cast(), dim - whole);
                    store_part::<S, E>(at.add(E::BYTES * whole), rest, dim - whole);
                }
                t += 1;
            } else if t.is_multiple_of(LANES) && t + LANES <= tokens.end {
                write_tile::<S, E>(format, row, stride, t, page);
                t += LANES;
            } else {
                let mut part = [0u8; 4 * LANES];
                for c in (0..dim).step_by(LANES) {
                    let lanes = LANES.min(dim - c);
                    let x = if c < whole {
                        S::load(row.add(c))
                    } else {
                        load_part::<S, f32>(row.add(c).cast(), lanes)
                    };
                    E::store::<S>(part.as_mut_ptr(), x);
                    for lane in 0..lanes {
                        let to = page.add(E::BYTES * ((c + lane) * format.tokens + t));
                        std::ptr::copy_nonoverlapping(part.as_ptr().add(E::BYTES * lane), to, E::BYTES);
                    }
                }
                t += 1;
            }
        }
    }
}

/// Sixteen tokens of keys.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn write_tile<S: Simd, E: Stored>(
    format: &ExactFormat,
    rows: *const f32,
    stride: usize,
    t: usize,
    page: *mut u8,
) {
    let ExactFormat { dim, tokens, .. } = *format;
    let whole = dim / LANES * LANES;
    // SAFETY: sixteen rows of `dim` floats; t + 16 ≤ tokens.
    unsafe {
        for first in (0..whole).step_by(LANES) {
            let block = S::transpose(rows.add(first), stride);
            for (c, column) in block.into_iter().enumerate() {
                E::store::<S>(page.add(E::BYTES * ((first + c) * tokens + t)), column);
            }
        }
        for c in whole..dim {
            let column: [f32; LANES] = std::array::from_fn(|lane| *rows.add(lane * stride + c));
            E::store::<S>(page.add(E::BYTES * (c * tokens + t)), S::load(column.as_ptr()));
        }
    }
}

/// All vectors of a page, (tokens, dim).
///
/// # Safety
/// `page` holds tokens · dim elements, `rows` is valid for as many floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd>(format: &ExactFormat, page: *const u8, rows: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(format, decode_as, (format, page, rows)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn decode_as<S: Simd, E: Stored>(format: &ExactFormat, page: *const u8, rows: *mut f32) {
    let ExactFormat { side, dim, tokens, .. } = *format;
    // SAFETY: every index is below tokens · dim, a multiple of 16.
    unsafe {
        if side == Side::Value {
            for at in (0..tokens * dim).step_by(LANES) {
                S::store(rows.add(at), E::load::<S>(page.add(E::BYTES * at)));
            }
            return;
        }
        let mut block = [0.0f32; LANES * LANES];
        for t in (0..tokens).step_by(LANES) {
            for first in (0..dim).step_by(LANES) {
                let channels = LANES.min(dim - first);
                for c in 0..channels {
                    let column = E::load::<S>(page.add(E::BYTES * ((first + c) * tokens + t)));
                    S::store(block.as_mut_ptr().add(LANES * c), column);
                }
                for (lane, row) in S::transpose(block.as_ptr(), LANES).into_iter().enumerate() {
                    let to = rows.add((t + lane) * dim + first);
                    if channels == LANES {
                        S::store(to, row);
                    } else {
                        store_part::<S, f32>(to.cast(), row, channels);
                    }
                }
            }
        }
    }
}

/// The largest magnitude of `rows`, or NaN when one of them is NaN or infinite. `len` is a multiple of 16.
///
/// # Safety
/// `rows` is valid for `len` floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn extent<S: Simd>(rows: &[f32]) -> f32 {
    // SAFETY: whole vectors of the slice.
    unsafe {
        let mut top = [S::splat(0.0); 2];
        // x − x is zero for finite numbers and NaN for the others, and NaN sticks to a sum.
        let mut poison = [S::splat(0.0); 2];
        for (i, block) in rows.chunks_exact(LANES).enumerate() {
            let x = S::load(block.as_ptr());
            top[i % 2] = S::max(top[i % 2], S::abs(x));
            poison[i % 2] = S::add(poison[i % 2], S::sub(x, x));
        }
        S::reduce_max(S::max(top[0], top[1])) + S::reduce_add(S::add(poison[0], poison[1]))
    }
}
