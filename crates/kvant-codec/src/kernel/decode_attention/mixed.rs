//! q·k of a few heads over keys whose channels are of several widths: decoding with a plan's `klt` keys.
//!
//! The arithmetic is that of [`mixed_width`](crate::kernel::scores::mixed_width), step by step, so the bits are the same. What is left
//! out: scratch memory, codes as bytes for the unit for blocks, products of query and scale that are made twice, and fine bytes of channels
//! that have none.

use super::{HEADS, Lines, Queries, start, unit};
use crate::format::{PackedFormat, Span};
use crate::kernel::round::{planes, step};
use crate::kernel::scores::dot;
use crate::kernel::{MixedWidth, Pages, Query, by_heads, prefetch_lines};
use crate::pack::unpack;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Channels at most.
pub(super) const CHANNELS: usize = 128;

/// Vectors of channels whose bytes are stored at once, where they come in such fours.
const FOUR: usize = 4;

/// Bytes of a head: its whole steps, then what is left of them.
const ROW: usize = 2 * CHANNELS;

/// What every block of heads reads.
#[derive(Clone, Copy)]
struct Keys<'a> {
    format: &'a PackedFormat,
    widths: &'a MixedWidth,
    query: &'a Query,
    pages: Pages,
    /// The page's channel scales and zeros.
    scales: *const f32,
    zeros: *const f32,
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// As [`crate::kernel::scores::scores`], for a format of keys that [suits](super::suits_mixed) and its widths.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(
    format: &PackedFormat,
    widths: &MixedWidth,
    query: &Query,
    pages: Pages,
    out: *mut f32,
) {
    let mut scales = Lines::<[MaybeUninit<f32>; CHANNELS]>::new();
    let mut zeros = Lines::<[MaybeUninit<f32>; CHANNELS]>::new();
    // SAFETY: a page's channel arrays have `coded` entries, and after them lies at least a unit of codes, so a load of 16 that starts at
    // the last 8 channels stays inside; heads from `at` on are there.
    unsafe {
        let Pages { page, next } = pages;
        let (scale, zero) = (page.add(start(&format.channel_scale)), page.add(start(&format.channel_zero)));
        for c in (0..widths.channels()).step_by(LANES) {
            S::prefetch(next.wrapping_add(4 * c));
            S::store(scales.at(c), S::load_f16(scale.add(2 * c).cast()));
            S::store(zeros.at(c), S::load_f16(zero.add(2 * c).cast()));
        }
        for c in format.coded..widths.channels() {
            scales.at(c).write(0.0);
            zeros.at(c).write(0.0);
        }
        let keys = Keys { format, widths, query, pages, scales: scales.at(0), zeros: zeros.at(0) };
        let mut at = 0;
        while at < query.heads {
            let (left, out) = (query.heads - at, out.add(at * format.tokens));
            at += by_heads!(S, left, score::<S>(keys, at, out));
        }
    }
}

/// # Safety
/// As [`scores`], for H heads.
#[inline(always)]
unsafe fn score<S: Simd, const H: usize>(keys: Keys<'_>, head: usize, out: *mut f32) -> usize {
    // SAFETY: the caller's contract.
    unsafe { S::call(MixedScores::<S, H> { keys, head, out, simd: PhantomData }) };
    H
}

/// The scores of H heads.
struct MixedScores<'a, S, const H: usize> {
    keys: Keys<'a>,
    /// The first of the heads.
    head: usize,
    out: *mut f32,
    simd: PhantomData<S>,
}

/// What becomes of four vectors of products, or of one.
struct Rounding<S: Simd> {
    /// Exact parts of the scores, and what the rounded ones bring with the centres.
    exact: [S::F; HEADS],
    centred: [S::F; HEADS],
    /// One over a head's step.
    inverse: [f32; HEADS],
}

impl<S: Simd, const H: usize> Work<S> for MixedScores<'_, S, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let mut bytes = Lines::<[MaybeUninit<i8>; HEADS * ROW]>::new();
        // SAFETY: a page has a multiple of four tiles, and as many are taken at once as divide them.
        unsafe {
            let queries = self.fold(bytes.at(0));
            if self.keys.widths.wide() == 0 {
                if const { S::TILES >= 4 } { self.all::<4, 1>(&queries) } else { self.some::<1>(&queries) }
            } else if const { S::TILES >= 4 && H <= 3 } {
                self.all::<4, 2>(&queries)
            } else {
                self.some::<2>(&queries)
            }
        }
    }
}

impl<S: Simd, const H: usize> MixedScores<'_, S, H> {
    /// Folds the page's channel scales into the queries: q_c·s_c rounded to bytes, the rest exact.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` has room for H rows.
    #[inline(always)]
    unsafe fn fold(&self, bytes: *mut i8) -> Queries {
        let Keys { widths, query, scales, .. } = self.keys;
        let mut products = Lines::<[MaybeUninit<f32>; HEADS * CHANNELS]>::new();
        let channels = widths.channels();
        // SAFETY: scales, widths and queries go as far as `channels`.
        unsafe {
            let mut tops = [S::splat(0.0); HEADS];
            for c in (0..channels).step_by(LANES) {
                let scale = S::load(scales.add(c));
                for h in 0..H {
                    let product = S::mul(S::load(query.floats_of(self.head + h).add(c)), scale);
                    S::store(products.at(h * CHANNELS + c), product);
                    tops[h] = S::max_abs(tops[h], product);
                }
            }
            let steps = S::reduce4_max(tops).map(|top| step(top, 1));
            let zero = [S::splat(0.0); HEADS];
            let mut rounding =
                Rounding::<S> { exact: zero, centred: zero, inverse: steps.map(|step| step.1) };
            let products = products.at(0).cast_const();
            let mut c = 0;
            while c < channels {
                c += if channels - c >= FOUR * LANES {
                    self.round::<FOUR>(c, products, &mut rounding, bytes)
                } else {
                    self.round::<1>(c, products, &mut rounding, bytes)
                };
            }
            let Rounding { mut exact, centred, .. } = rounding;
            for h in 0..H {
                exact[h] = S::fnma(S::splat(steps[h].0), centred[h], exact[h]);
            }
            let bases = S::reduce4_add(exact);
            Queries { bytes, steps: steps.map(|step| step.0), bases }
        }
    }

    /// Rounds N vectors of products of every head from channel `c` on. Returns how many channels that are.
    ///
    /// # Safety
    /// As [`Self::fold`]; there are so many channels.
    #[inline(always)]
    unsafe fn round<const N: usize>(
        &self,
        c: usize,
        products: *const f32,
        rounding: &mut Rounding<S>,
        bytes: *mut i8,
    ) -> usize {
        let Keys { widths, query, zeros, .. } = self.keys;
        // SAFETY: the caller's contract.
        unsafe {
            for h in 0..H {
                let (q, product) = (query.floats_of(self.head + h), products.add(h * CHANNELS));
                let (mut coarse, mut fine) = ([S::izero(); FOUR], [S::izero(); FOUR]);
                for n in 0..N {
                    let c = c + n * LANES;
                    let known = widths.of(c);
                    let (centre, seen) = (S::load(known.centres), S::load(known.seen));
                    let product = S::load(product.add(c));
                    let inverse = S::splat(rounding.inverse[h]);
                    let met = if c >= widths.wide() {
                        coarse[n] = S::round(S::mul(product, inverse));
                        S::to_f(coarse[n])
                    } else {
                        let (units, whole) = (S::load(known.parts), S::load(known.whole));
                        let rounded = S::to_f(S::round(S::mul(product, S::mul(inverse, units))));
                        // A quarter breaks the tie at ±128, which would not fit the fine byte.
                        coarse[n] = S::round(S::mul(S::add(rounded, S::splat(0.25)), whole));
                        fine[n] = S::round(S::fnma(S::to_f(coarse[n]), units, rounded));
                        S::mul(rounded, whole)
                    };
                    let offset = S::fma(S::load(q.add(c)), S::load(zeros.add(c)), rounding.exact[h]);
                    rounding.exact[h] = S::fma(product, centre, offset);
                    rounding.centred[h] = S::fma(met, seen, rounding.centred[h]);
                }
                let bytes = bytes.add(h * ROW + c);
                if N == FOUR {
                    S::bstore(bytes, S::narrow(coarse));
                } else {
                    S::store_low_bytes(bytes.cast(), coarse[0]);
                }
                if c < widths.wide() {
                    let bytes = bytes.add(CHANNELS);
                    if N == FOUR {
                        S::bstore(bytes, S::narrow(fine));
                    } else {
                        S::store_low_bytes(bytes.cast(), fine[0]);
                    }
                }
            }
        }
        N * LANES
    }

    /// As many tiles at once as the tier holds.
    ///
    /// # Safety
    /// As the kernel it is part of.
    #[inline(always)]
    unsafe fn some<const PLANES: usize>(&self, queries: &Queries) {
        // SAFETY: the caller's contract.
        unsafe {
            if const { S::TILES >= 2 } {
                self.all::<2, PLANES>(queries)
            } else {
                self.all::<1, PLANES>(queries)
            }
        }
    }

    /// All tiles of 16 tokens, N at once.
    ///
    /// # Safety
    /// As the kernel it is part of; N divides the tiles of a page.
    #[inline(always)]
    unsafe fn all<const N: usize, const PLANES: usize>(&self, queries: &Queries) {
        for tile in (0..self.keys.format.tokens / LANES).step_by(N) {
            // SAFETY: the caller's contract.
            unsafe { self.tiles::<N, PLANES>(queries, tile) };
        }
    }

    /// All spans over N tiles, for H heads in registers.
    ///
    /// # Safety
    /// As the kernel it is part of; there are N tiles from `tile` on.
    #[inline(always)]
    unsafe fn tiles<const N: usize, const PLANES: usize>(&self, queries: &Queries, tile: usize) {
        let Keys { format, query, .. } = self.keys;
        let tokens = format.tokens;
        // SAFETY: units of every row lie within the page; `out` has a page's tokens for every head.
        unsafe {
            let mut sums = Sums::<S, H, N> { coarse: [[S::izero(); N]; H], fine: [[S::izero(); N]; H] };
            for span in &format.spans {
                let bytes = queries.bytes.add(span.first);
                match span.bits {
                    1 => self.span::<N, 1>(span, tile, bytes, &mut sums),
                    2 => self.span::<N, 2>(span, tile, bytes, &mut sums),
                    3 => self.span::<N, 3>(span, tile, bytes, &mut sums),
                    4 => self.span::<N, 4>(span, tile, bytes, &mut sums),
                    5 if PLANES == 2 => self.span::<N, 5>(span, tile, bytes, &mut sums),
                    6 if PLANES == 2 => self.span::<N, 6>(span, tile, bytes, &mut sums),
                    7 if PLANES == 2 => self.span::<N, 7>(span, tile, bytes, &mut sums),
                    _ if PLANES == 2 => self.span::<N, 8>(span, tile, bytes, &mut sums),
                    _ => {}
                }
            }
            for h in 0..H {
                let (step, base) = (S::splat(queries.steps[h]), S::splat(queries.bases[h]));
                let bias = query.bias[self.head + h];
                for n in 0..N {
                    let mut dot = S::to_f(sums.coarse[h][n]);
                    if PLANES == 2 {
                        dot = S::fma(S::to_f(sums.fine[h][n]), S::splat(1.0 / 256.0), dot);
                    }
                    let mut score = S::fma(dot, step, base);
                    if bias != 0.0 {
                        score = S::add(score, S::splat(bias));
                    }
                    S::store(self.out.add(h * tokens + (tile + n) * LANES), score);
                }
            }
        }
    }

    /// The inner loop: the channels of one span.
    ///
    /// # Safety
    /// As the kernel it is part of; the span has codes of so many bits, and `bytes` are those of its first channel.
    #[inline(always)]
    unsafe fn span<const N: usize, const BITS: u32>(
        &self,
        span: &Span,
        tile: usize,
        bytes: *const i8,
        sums: &mut Sums<S, H, N>,
    ) {
        let Keys { format, pages: Pages { page, next }, .. } = self.keys;
        let row = format.tokens / LANES * unit(BITS);
        // SAFETY: the span's rows lie within the page, and every head has bytes for all channels.
        unsafe {
            let first = span.codes + tile * unit(BITS);
            let (codes, coming) = (page.add(first), next.wrapping_add(first));
            for octet in 0..span.len / 8 {
                let q = bytes.add(8 * octet);
                for n in 0..N {
                    let at = octet * row + n * unit(BITS);
                    prefetch_lines::<S>(unit(BITS), coming.wrapping_add(at));
                    let (a, b) = unpack::<S, BITS>(codes.add(at));
                    for h in 0..H {
                        let q = q.add(h * ROW);
                        let coarse = &mut sums.coarse[h][n];
                        *coarse = dot::<S>(BITS == 8, *coarse, a, S::quad(q));
                        *coarse = dot::<S>(BITS == 8, *coarse, b, S::quad(q.add(4)));
                        if planes(BITS) == 2 {
                            let q = q.add(CHANNELS);
                            let fine = &mut sums.fine[h][n];
                            *fine = dot::<S>(BITS == 8, *fine, a, S::quad(q));
                            *fine = dot::<S>(BITS == 8, *fine, b, S::quad(q.add(4)));
                        }
                    }
                }
            }
        }
    }
}

/// Integer sums of H heads with N tiles.
struct Sums<S: Simd, const H: usize, const N: usize> {
    coarse: [[S::I; N]; H],
    fine: [[S::I; N]; H],
}
