//! Scores and sums over pages of plain floats.

use super::{ExactShape, Pages, by_heads};
use crate::codec::exact::Element;
use crate::codec::{Accumulator, Query};
use half::{bf16, f16};
use kvant_simd::{LANES, Simd};
use std::ops::Range;

/// A number format that pages can store.
trait Stored {
    const BYTES: usize;
    /// Sixteen numbers from `p`, which needs no alignment.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
    unsafe fn load<S: Simd>(p: *const u8) -> S::F;
    /// Sixteen numbers to `p`, which needs no alignment.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F);
}

impl Stored for f32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the trait's contract.
        unsafe { S::store(p.cast(), x) }
    }
}

impl Stored for f16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load_f16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        // SAFETY: the trait's contract.
        unsafe { S::store_f16(p.cast(), x) }
    }
}

impl Stored for bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const u8) -> S::F {
        // SAFETY: the trait's contract.
        unsafe { S::load_bf16(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut u8, x: S::F) {
        let mut floats = [0.0f32; LANES];
        // SAFETY: the trait's contract.
        unsafe {
            S::store(floats.as_mut_ptr(), x);
            p.cast::<[u16; LANES]>().write_unaligned(floats.map(|x| bf16::from_f32(x).to_bits()));
        }
    }
}

/// Picks the format once per call, so that no inner loop asks.
macro_rules! by_element {
    ($shape:ident, $function:ident, ($($arg:expr),*)) => {
        match $shape.element {
            Element::F32 => $function::<S, f32>($($arg),*),
            Element::F16 => $function::<S, f16>($($arg),*),
            Element::Bf16 => $function::<S, bf16>($($arg),*),
        }
    };
}

/// Up to 15 numbers, zeros after them.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn load_part<S: Simd, E: Stored>(p: *const u8, count: usize) -> S::F {
    let mut part = [0u8; 4 * LANES];
    // SAFETY: `count` < 16 numbers from `p` are within the page.
    unsafe {
        std::ptr::copy_nonoverlapping(p, part.as_mut_ptr(), count * E::BYTES);
        E::load::<S>(part.as_ptr())
    }
}

/// The first `count` lanes to `p`.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn store_part<S: Simd, E: Stored>(p: *mut u8, x: S::F, count: usize) {
    let mut part = [0u8; 4 * LANES];
    // SAFETY: `count` < 16 numbers from `p` are within the page.
    unsafe {
        E::store::<S>(part.as_mut_ptr(), x);
        std::ptr::copy_nonoverlapping(part.as_ptr(), p, count * E::BYTES);
    }
}

/// # Safety
/// `rows` is valid for tokens · dim floats, `page` for as many elements; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn encode<S: Simd>(shape: &ExactShape, rows: *const f32, page: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe { write::<S>(shape, rows, shape.dim, 0..shape.tokens, page) }
}

/// Writes some tokens of a page; vector i is at `rows` + i · `stride`.
///
/// # Safety
/// `rows` is valid for that, `page` for tokens · dim elements, and `tokens` lies within the page; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn write<S: Simd>(
    shape: &ExactShape,
    rows: *const f32,
    stride: usize,
    tokens: Range<usize>,
    page: *mut u8,
) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(shape, write_as, (shape, rows, stride, tokens, page)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn write_as<S: Simd, E: Stored>(
    shape: &ExactShape,
    rows: *const f32,
    stride: usize,
    tokens: Range<usize>,
    page: *mut u8,
) {
    let ExactShape { dim, transposed, .. } = *shape;
    let whole = dim / LANES * LANES;
    let mut t = tokens.start;
    // SAFETY: rows tokens.start.. are at multiples of the stride; every index is below tokens · dim; loads and stores
    // need no alignment.
    unsafe {
        while t < tokens.end {
            let row = rows.add((t - tokens.start) * stride);
            if !transposed {
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
                write_tile::<S, E>(shape, row, stride, t, page);
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
                        let to = page.add(E::BYTES * ((c + lane) * shape.tokens + t));
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
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn write_tile<S: Simd, E: Stored>(
    shape: &ExactShape,
    rows: *const f32,
    stride: usize,
    t: usize,
    page: *mut u8,
) {
    let ExactShape { dim, tokens, .. } = *shape;
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
pub(crate) unsafe fn decode<S: Simd>(shape: &ExactShape, page: *const u8, rows: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(shape, decode_as, (shape, page, rows)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn decode_as<S: Simd, E: Stored>(shape: &ExactShape, page: *const u8, rows: *mut f32) {
    let ExactShape { dim, tokens, transposed, .. } = *shape;
    // SAFETY: every index is below tokens · dim, a multiple of 16.
    unsafe {
        if !transposed {
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

/// Keys, (dim, tokens): sixteen tokens in the lanes, one fused multiply-add per channel and head.
///
/// # Safety
/// `page` holds dim · tokens elements, `out` is valid for heads · tokens floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(shape: &ExactShape, query: &Query, page: Pages, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(shape, scores_as, (shape, query, page, out)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn scores_as<S: Simd, E: Stored>(shape: &ExactShape, query: &Query, page: Pages, out: *mut f32) {
    let mut head = 0;
    while head < query.heads {
        // SAFETY: the caller's contract; blocks stay below `heads`.
        unsafe {
            let out = out.add(head * shape.tokens);
            head += by_heads!(S, query.heads - head, score_block::<S, E>(shape, query, head, page, out));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn score_block<S: Simd, E: Stored, const H: usize>(
    shape: &ExactShape,
    query: &Query,
    head: usize,
    page: Pages,
    out: *mut f32,
) -> usize {
    let tiles = shape.tokens / LANES;
    let mut tile = 0;
    while tile < tiles {
        // SAFETY: tile + N ≤ tiles.
        unsafe {
            if const { S::TILES >= 4 } && tiles - tile >= 4 {
                score_tiles::<S, E, H, 4>(shape, query, head, page, out, tile);
                tile += 4;
            } else if const { S::TILES >= 2 } && tiles - tile >= 2 {
                score_tiles::<S, E, H, 2>(shape, query, head, page, out, tile);
                tile += 2;
            } else {
                score_tiles::<S, E, H, 1>(shape, query, head, page, out, tile);
                tile += 1;
            }
        }
    }
    H
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn score_tiles<S: Simd, E: Stored, const H: usize, const N: usize>(
    shape: &ExactShape,
    query: &Query,
    head: usize,
    page: Pages,
    out: *mut f32,
    tile: usize,
) {
    let Pages { page, next } = page;
    // SAFETY: channel < dim and tile + N ≤ tiles keep every load within the page.
    unsafe {
        let q: [*const f32; H] = std::array::from_fn(|h| query.floats_of(head + h));
        let mut sums = [[S::splat(0.0); N]; H];
        for c in 0..shape.dim {
            let coming = next.wrapping_add(E::BYTES * (c * shape.tokens + tile * LANES));
            for line in 0..(N * LANES * E::BYTES).div_ceil(64) {
                S::prefetch(coming.wrapping_add(64 * line));
            }
            for n in 0..N {
                let k = E::load::<S>(page.add(E::BYTES * (c * shape.tokens + (tile + n) * LANES)));
                for h in 0..H {
                    sums[h][n] = S::fma(k, S::splat(*q[h].add(c)), sums[h][n]);
                }
            }
        }
        for h in 0..H {
            for n in 0..N {
                S::store(out.add(h * shape.tokens + (tile + n) * LANES), sums[h][n]);
            }
        }
    }
}

/// Values, (tokens, dim): sixteen channels in the lanes, one fused multiply-add per token and head.
///
/// # Safety
/// `page` holds tokens · dim elements, `weights` is valid for heads · tokens floats, `sums` has this dimension; the
/// CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd>(
    shape: &ExactShape,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(shape, accumulate_as, (shape, weights, page, sums)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn accumulate_as<S: Simd, E: Stored>(
    shape: &ExactShape,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
) {
    let mut head = 0;
    while head < sums.heads {
        // SAFETY: the caller's contract; blocks stay below `heads`.
        unsafe {
            let weights = weights.add(head * shape.tokens);
            head += by_heads!(S, sums.heads - head, sum_block::<S, E>(shape, weights, page, sums, head));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn sum_block<S: Simd, E: Stored, const H: usize>(
    shape: &ExactShape,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
    head: usize,
) -> usize {
    let ExactShape { dim, tokens, .. } = *shape;
    // SAFETY: channels below dim and tokens below `tokens`; the ragged end is copied before it is loaded.
    unsafe {
        for h in 0..H {
            let mut total = S::splat(0.0);
            for t in (0..tokens).step_by(LANES) {
                total = S::add(total, S::load(weights.add(h * tokens + t)));
            }
            sums.mass[head + h] += S::reduce_add(total);
        }
        let target: [*mut f32; H] =
            std::array::from_fn(|h| sums.sums.as_mut_ptr().add((head + h) * sums.stride));
        let mut c = 0;
        while c < dim {
            if const { S::TILES >= 4 } && dim - c >= 4 * LANES {
                sum_columns::<S, E, H, 4, false>(shape, weights, page, target, c);
                c += 4 * LANES;
            } else if dim - c >= LANES {
                sum_columns::<S, E, H, 1, false>(shape, weights, page, target, c);
                c += LANES;
            } else {
                sum_columns::<S, E, H, 1, true>(shape, weights, page, target, c);
                c += LANES;
            }
        }
    }
    H
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn sum_columns<S: Simd, E: Stored, const H: usize, const N: usize, const RAGGED: bool>(
    shape: &ExactShape,
    weights: *const f32,
    page: Pages,
    target: [*mut f32; H],
    c: usize,
) {
    let ExactShape { dim, tokens, .. } = *shape;
    let Pages { page, next } = page;
    // SAFETY: as in `sum_block`.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; H];
        for t in 0..tokens {
            let coming = next.wrapping_add(E::BYTES * (t * dim + c));
            for line in 0..(N * LANES * E::BYTES).div_ceil(64) {
                S::prefetch(coming.wrapping_add(64 * line));
            }
            for n in 0..N {
                let p = page.add(E::BYTES * (t * dim + c + n * LANES));
                let v = if RAGGED { load_part::<S, E>(p, dim - c) } else { E::load::<S>(p) };
                for h in 0..H {
                    acc[h][n] = S::fma(v, S::splat(*weights.add(h * tokens + t)), acc[h][n]);
                }
            }
        }
        for h in 0..H {
            for n in 0..N {
                let p = target[h].add(c + n * LANES);
                S::store(p, S::add(S::load(p), acc[h][n]));
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
