//! Scores and sums over pages of plain floats.

use super::{Stored, by_element, load_part};
use crate::format::ExactFormat;
use crate::kernel::{Accumulator, Pages, Query, by_heads, prefetch_lines};
use kvant_simd::{LANES, Simd};

/// Keys, (dim, tokens): sixteen tokens in the lanes, one fused multiply-add per channel and head.
///
/// # Safety
/// `page` holds dim · tokens elements, `out` is valid for heads · tokens floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(format: &ExactFormat, query: &Query, page: Pages, out: *mut f32) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(format, scores_as, (format, query, page, out)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn scores_as<S: Simd, E: Stored>(format: &ExactFormat, query: &Query, page: Pages, out: *mut f32) {
    let mut head = 0;
    while head < query.heads {
        // SAFETY: the caller's contract; blocks stay below `heads`.
        unsafe {
            let out = out.add(head * format.tokens);
            head += by_heads!(S, query.heads - head, score_block::<S, E>(format, query, head, page, out));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn score_block<S: Simd, E: Stored, const H: usize>(
    format: &ExactFormat,
    query: &Query,
    head: usize,
    page: Pages,
    out: *mut f32,
) -> usize {
    let tiles = format.tokens / LANES;
    let mut tile = 0;
    while tile < tiles {
        // SAFETY: tile + N ≤ tiles.
        unsafe {
            if const { S::TILES >= 4 } && tiles - tile >= 4 {
                score_tiles::<S, E, H, 4>(format, query, head, page, out, tile);
                tile += 4;
            } else if const { S::TILES >= 2 } && tiles - tile >= 2 {
                score_tiles::<S, E, H, 2>(format, query, head, page, out, tile);
                tile += 2;
            } else {
                score_tiles::<S, E, H, 1>(format, query, head, page, out, tile);
                tile += 1;
            }
        }
    }
    H
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn score_tiles<S: Simd, E: Stored, const H: usize, const N: usize>(
    format: &ExactFormat,
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
        for c in 0..format.dim {
            let coming = next.wrapping_add(E::BYTES * (c * format.tokens + tile * LANES));
            prefetch_lines::<S>(N * LANES * E::BYTES, coming);
            for n in 0..N {
                let k = E::load::<S>(page.add(E::BYTES * (c * format.tokens + (tile + n) * LANES)));
                for h in 0..H {
                    sums[h][n] = S::fma(k, S::splat(*q[h].add(c)), sums[h][n]);
                }
            }
        }
        for h in 0..H {
            for n in 0..N {
                S::store(out.add(h * format.tokens + (tile + n) * LANES), sums[h][n]);
            }
        }
    }
}

/// Values that are scored, (tokens, dim): sixteen channels in the lanes, whose sums are added up at the end.
///
/// # Safety
/// As [`scores`], for a page of values.
#[inline(always)]
pub(crate) unsafe fn row_major_scores<S: Simd>(
    format: &ExactFormat,
    query: &Query,
    page: Pages,
    out: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(format, turned_scores_as, (format, query, page, out)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn turned_scores_as<S: Simd, E: Stored>(
    format: &ExactFormat,
    query: &Query,
    page: Pages,
    out: *mut f32,
) {
    let mut head = 0;
    while head < query.heads {
        // SAFETY: the caller's contract; blocks stay below `heads`.
        unsafe {
            let out = out.add(head * format.tokens);
            head += by_heads!(S, query.heads - head, turned_block::<S, E>(format, query, head, page, out));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn turned_block<S: Simd, E: Stored, const H: usize>(
    format: &ExactFormat,
    query: &Query,
    head: usize,
    page: Pages,
    out: *mut f32,
) -> usize {
    let mut token = 0;
    while token < format.tokens {
        // SAFETY: pages have a multiple of four tokens.
        unsafe {
            if const { S::TILES >= 4 } {
                turned_rows::<S, E, H, 4>(format, query, head, page, out, token);
                token += 4;
            } else {
                turned_rows::<S, E, H, 1>(format, query, head, page, out, token);
                token += 1;
            }
        }
    }
    H
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn turned_rows<S: Simd, E: Stored, const H: usize, const N: usize>(
    format: &ExactFormat,
    query: &Query,
    head: usize,
    page: Pages,
    out: *mut f32,
    token: usize,
) {
    let ExactFormat { dim, tokens, .. } = *format;
    let Pages { page, next } = page;
    let whole = dim / LANES * LANES;
    // SAFETY: channels below dim and tokens below `tokens`; the ragged end is copied before it is loaded, and the query has
    // zeros after its last channel.
    unsafe {
        let q: [*const f32; H] = std::array::from_fn(|h| query.floats_of(head + h));
        let row = |n: usize, c: usize| E::BYTES * ((token + n) * dim + c);
        let mut sums = [[S::splat(0.0); 4]; N];
        for c in (0..whole).step_by(LANES) {
            for n in 0..N {
                S::prefetch(next.wrapping_add(row(n, c)));
                let v = E::load::<S>(page.add(row(n, c)));
                for h in 0..H {
                    sums[n][h] = S::fma(v, S::load(q[h].add(c)), sums[n][h]);
                }
            }
        }
        for n in 0..N {
            if whole < dim {
                let v = load_part::<S, E>(page.add(row(n, whole)), dim - whole);
                for h in 0..H {
                    sums[n][h] = S::fma(v, S::load(q[h].add(whole)), sums[n][h]);
                }
            }
            let scores = S::reduce4_add(sums[n]);
            for h in 0..H {
                *out.add(h * tokens + token + n) = scores[h];
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
    format: &ExactFormat,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
) {
    // SAFETY: the caller's contract.
    unsafe { by_element!(format, accumulate_as, (format, weights, page, sums)) }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn accumulate_as<S: Simd, E: Stored>(
    format: &ExactFormat,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
) {
    let mut head = 0;
    while head < sums.heads {
        // SAFETY: the caller's contract; blocks stay below `heads`.
        unsafe {
            let weights = weights.add(head * format.tokens);
            head += by_heads!(S, sums.heads - head, sum_block::<S, E>(format, weights, page, sums, head));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn sum_block<S: Simd, E: Stored, const H: usize>(
    format: &ExactFormat,
    weights: *const f32,
    page: Pages,
    sums: &mut Accumulator,
    head: usize,
) -> usize {
    let ExactFormat { dim, tokens, .. } = *format;
    // SAFETY: channels below dim and tokens below `tokens`; the ragged end is copied before it is loaded.
    unsafe {
        for h in 0..H {
            let mut total = S::splat(0.0);
            for t in (0..tokens).step_by(LANES) {
                total = S::add(total, S::load(weights.add(h * tokens + t)));
            }
            sums.denominator[head + h] += S::reduce_add(total);
        }
        let target: [*mut f32; H] =
            std::array::from_fn(|h| sums.sums.as_mut_ptr().add((head + h) * sums.stride));
        let mut c = 0;
        while c < dim {
            if const { S::TILES >= 4 } && dim - c >= 4 * LANES {
                sum_columns::<S, E, H, 4, false>(format, weights, page, target, c);
                c += 4 * LANES;
            } else if dim - c >= LANES {
                sum_columns::<S, E, H, 1, false>(format, weights, page, target, c);
                c += LANES;
            } else {
                sum_columns::<S, E, H, 1, true>(format, weights, page, target, c);
                c += LANES;
            }
        }
    }
    H
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn sum_columns<S: Simd, E: Stored, const H: usize, const N: usize, const RAGGED: bool>(
    format: &ExactFormat,
    weights: *const f32,
    page: Pages,
    target: [*mut f32; H],
    c: usize,
) {
    let ExactFormat { dim, tokens, .. } = *format;
    let Pages { page, next } = page;
    // SAFETY: as in `sum_block`.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; H];
        for t in 0..tokens {
            let coming = next.wrapping_add(E::BYTES * (t * dim + c));
            prefetch_lines::<S>(N * LANES * E::BYTES, coming);
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
