//! q·k of a few heads.

use super::{HEADS, Lines, Queries, TILES, TOKENS, row, start, unit};
use crate::format::PackedFormat;
use crate::kernel::round::{self, Folded, planes};
use crate::kernel::scores::{combine, dot, seen_centre};
use crate::kernel::{Pages, Query, by_heads, prefetch_lines};
use crate::pack::unpack;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// What every block of heads reads.
#[derive(Clone, Copy)]
struct Keys<'a> {
    format: &'a PackedFormat,
    query: &'a Query,
    pages: Pages,
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// As [`crate::kernel::scores::scores`], for a format of keys that [suits](super::suit).
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(format: &PackedFormat, query: &Query, pages: Pages, out: *mut f32) {
    let (keys, mut at) = (Keys { format, query, pages }, 0);
    while at < query.heads {
        // SAFETY: heads from `at` on are there.
        unsafe {
            let (left, out) = (query.heads - at, out.add(at * TOKENS));
            at += by_heads!(S, left, score::<S>(keys, at, out));
        }
    }
}

/// # Safety
/// As [`scores`], for H heads.
#[inline(always)]
unsafe fn score<S: Simd, const H: usize>(keys: Keys<'_>, head: usize, out: *mut f32) -> usize {
    let simd = PhantomData;
    // SAFETY: the caller's contract.
    unsafe {
        match (keys.format.coded, keys.format.spans[0].bits) {
            (64, 4) => S::call(DecodeScores::<S, H, 64, 4> { keys, head, out, simd }),
            (64, _) => S::call(DecodeScores::<S, H, 64, 8> { keys, head, out, simd }),
            (_, 4) => S::call(DecodeScores::<S, H, 128, 4> { keys, head, out, simd }),
            (_, _) => S::call(DecodeScores::<S, H, 128, 8> { keys, head, out, simd }),
        }
    }
    H
}

/// The scores of H heads of D channels.
struct DecodeScores<'a, S, const H: usize, const D: usize, const BITS: u32> {
    keys: Keys<'a>,
    /// The first of the heads.
    head: usize,
    out: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const D: usize, const BITS: u32> Work<S> for DecodeScores<'_, S, H, D, BITS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let mut bytes = Lines::<[MaybeUninit<i8>; HEADS * row(8, 128)]>::new();
        // SAFETY: a page has four tiles, and as many are taken at once as divide them.
        unsafe {
            let queries = self.fold(bytes.at(0));
            let mut tile = 0;
            while tile < TILES {
                tile += if const { S::TILES >= 4 && planes(BITS) == 1 } {
                    self.tiles::<4>(&queries, tile)
                } else if const { S::TILES >= 2 } {
                    self.tiles::<2>(&queries, tile)
                } else {
                    self.tiles::<1>(&queries, tile)
                }
            }
        }
    }
}

impl<S: Simd, const H: usize, const D: usize, const BITS: u32> DecodeScores<'_, S, H, D, BITS> {
    /// Folds the page's channel scales into the queries: q_c·s_c rounded to bytes, the rest exact.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` has room for H rows.
    #[inline(always)]
    unsafe fn fold(&self, bytes: *mut i8) -> Queries {
        let Keys { format, query, pages: Pages { page, next } } = self.keys;
        let mut scales = Lines::<[MaybeUninit<f32>; D]>::new();
        let mut offsets = Lines::<[MaybeUninit<f32>; D]>::new();
        let centre = format.spans[0].centre() as f32;
        let seen = seen_centre::<S>(&format.spans[0]) as f32;
        let rows: [*const f32; H] = std::array::from_fn(|h| query.floats_of(self.head + h));
        // SAFETY: the channel arrays of the page and the queries have D entries.
        unsafe {
            let (scale, zero) =
                (page.add(start(&format.channel_scale)), page.add(start(&format.channel_zero)));
            for c in (0..D).step_by(LANES) {
                S::prefetch(next.wrapping_add(4 * c));
                let scale = S::load_f16(scale.add(2 * c).cast());
                S::store(scales.at(c), scale);
                S::store(offsets.at(c), S::fma(scale, S::splat(centre), S::load_f16(zero.add(2 * c).cast())));
            }
            let Folded { steps, sums } =
                round::fold::<S, H>(|h| rows[h], scales.at(0), D, BITS, bytes, row(BITS, D) / 2);
            let mut bases = [S::splat(0.0); HEADS];
            for h in 0..H {
                bases[h] = S::mul(sums[h], S::splat(-steps[h] * seen));
                for c in (0..D).step_by(LANES) {
                    bases[h] = S::fma(S::load(rows[h].add(c)), S::load(offsets.at(c)), bases[h]);
                }
            }
            Queries { bytes, steps, bases: S::reduce4_add(bases) }
        }
    }

    /// N tiles of 16 tokens for H heads in registers. Returns N.
    ///
    /// # Safety
    /// As the kernel it is part of; there are N tiles from `tile` on.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, queries: &Queries, tile: usize) -> usize {
        let Keys { format, query, pages: Pages { page, next } } = self.keys;
        // SAFETY: units tile..tile+N of every row lie within the page; `out` has a page's tokens for every head.
        unsafe {
            let first = format.spans[0].codes + tile * unit(BITS);
            let (codes, coming) = (page.add(first), next.wrapping_add(first));
            let (mut low, mut high) = ([[S::izero(); N]; H], [[S::izero(); N]; H]);
            for octet in 0..D / 8 {
                for n in 0..N {
                    let at = (TILES * octet + n) * unit(BITS);
                    prefetch_lines::<S>(unit(BITS), coming.wrapping_add(at));
                    let (a, b) = unpack::<S, BITS>(codes.add(at));
                    for h in 0..H {
                        let q = queries.bytes.add(h * row(BITS, D) + 8 * octet);
                        low[h][n] = dot::<S>(BITS == 8, low[h][n], a, S::quad(q));
                        low[h][n] = dot::<S>(BITS == 8, low[h][n], b, S::quad(q.add(4)));
                        if planes(BITS) == 2 {
                            let q = q.add(D);
                            high[h][n] = dot::<S>(BITS == 8, high[h][n], a, S::quad(q));
                            high[h][n] = dot::<S>(BITS == 8, high[h][n], b, S::quad(q.add(4)));
                        }
                    }
                }
            }
            for h in 0..H {
                let (step, base) = (S::splat(queries.steps[h]), S::splat(queries.bases[h]));
                let bias = query.bias[self.head + h];
                for n in 0..N {
                    let mut score = S::fma(combine::<S>(planes(BITS), low[h][n], high[h][n]), step, base);
                    if bias != 0.0 {
                        score = S::add(score, S::splat(bias));
                    }
                    S::store(self.out.add(h * TOKENS + (tile + n) * LANES), score);
                }
            }
        }
        N
    }
}
