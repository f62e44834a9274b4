//! q·v for every token of a page of *values*, from the packed codes: how latents are scored, which lie as values do.
//!
//! A unit of values has channels in the lanes and tokens within; a dot product over channels wants it the other way round. So
//! the page's codes are turned first, sixteen channels by sixteen tokens at a time, into bytes that lie as those of keys
//! do, and all heads of the group read these: turning costs twelve shuffles for 256 codes, once, whatever the heads.
//! Scores stay in registers from the first span of channels to the last, since values have a scale for every token and
//! few channels.
//!
//! **Invariant:** a byte of the room is a code, not a number; what a page decodes to is nowhere.

use super::batch::Part;
use super::fold::{QueryFold, SpanScales, fold_block};
use super::{Spanwise, add_bias, combine, dot};
use crate::format::{MAX_DIM, PackedFormat, Side, Span};
use crate::kernel::block::{BlockSums, Heads, LEAST, Room};
use crate::kernel::round::planes;
use crate::kernel::{Pages, Query, by_heads, by_width, prefetch_lines};
use crate::pack::unpack;
use kvant_simd::{LANES, MatrixUnit, OCTET, ROWS, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The most spans of a page: each has at least a row of units.
const SPANS: usize = MAX_DIM / 16;

/// What the heads of a block mean, by span.
type Parts = [[MaybeUninit<Part>; ROWS]; SPANS];

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// As [`super::scores`], for a page of values.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(format: &PackedFormat, query: &Query, pages: Pages, out: *mut f32) {
    debug_assert_eq!(format.side, Side::Value);
    let tokens = format.tokens;
    let spans = || format.spans.iter();
    let by_unit = query.heads >= ROWS && S::Matrix::is_there() && spans().all(|span| span.len / 8 >= LEAST);
    let folded = format.channel_scale.is_some();
    let mut channels = SpanScales::new();
    // SAFETY: the caller's contract; there is a byte for every code, and two planes for every head of a block.
    unsafe {
        let held = if folded { ROWS * 2 * format.coded } else { 0 };
        let mut room = Room::sized(held, format.coded * tokens, by_unit);
        let (bytes, codes, sums) = room.places();
        for span in spans() {
            let Pages { page, next } = pages;
            let to = codes.add(span.first * tokens);
            by_width!(S, span, RowScores::<S> { format, span, page, next, to });
            if folded {
                channels.load::<S>(format, span, span.first, pages);
            }
        }
        ask_for_token_scales::<S>(format, pages);
        let (codes, channels) = (codes.cast_const(), folded.then_some(&channels));
        let place = Turned { format, query, channels, pages, codes, simd: PhantomData::<S> };
        // Octets that the unit is ready for.
        let mut ready = 0;
        for first in (0..query.heads).step_by(ROWS) {
            let count = ROWS.min(query.heads - first);
            let mut parts: Parts = [const { [const { MaybeUninit::uninit() }; ROWS] }; SPANS];
            let mut at = 0;
            while at < count {
                let bytes = bytes.wrapping_add(at * 2 * format.coded);
                at += by_heads!(S, count - at, place.fold(first + at, bytes, &mut parts, at));
            }
            let out = out.add(first * tokens);
            if by_unit && count == ROWS {
                place.multiply_blocks(&parts, sums, &mut ready, out);
                continue;
            }
            let mut at = 0;
            while at < count {
                at += by_heads!(S, count - at, place.multiply(&parts, at, out.add(at * tokens)));
            }
        }
        if ready > 0 {
            S::Matrix::end();
        }
        for head in 0..query.heads {
            let bias = query.bias[head];
            if bias != 0.0 || format.spans.is_empty() {
                add_bias::<S>(out.add(head * tokens), tokens, bias, format.spans.is_empty());
            }
        }
    }
}

/// The token arrays of the page that comes next; its codes are asked for while this page's are turned.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn ask_for_token_scales<S: Simd>(format: &PackedFormat, pages: Pages) {
    for array in [&format.token_scale, &format.token_zero].into_iter().flatten() {
        // SAFETY: nothing is read.
        unsafe { prefetch_lines::<S>(array.len(), pages.next.wrapping_add(array.start)) };
    }
}

/// One span's codes from units of values to bytes as keys have them.
struct RowScores<'a, S, const BITS: u32, const TABLE: bool> {
    format: &'a PackedFormat,
    span: &'a Span,
    page: *const u8,
    next: *const u8,
    /// (tiles of sixteen tokens, octets of channels, 128).
    to: *mut u8,
    simd: PhantomData<S>,
}

impl<S: Simd, const BITS: u32, const TABLE: bool> Work<S> for RowScores<'_, S, BITS, TABLE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { format, span, page, next, to, .. } = self;
        let (unit, tiles, octets) = (16 * BITS as usize, format.tokens / LANES, span.len / 8);
        // SAFETY: the span's units lie within the page, and there is room for all of them.
        unsafe {
            let table = S::table(span.meaning.table());
            for row in 0..span.len / LANES {
                for tile in 0..tiles {
                    // Two units of eight tokens.
                    let at = span.codes + (row * tiles + tile) * 2 * unit;
                    prefetch_lines::<S>(2 * unit, next.wrapping_add(at));
                    let (mut a, mut b) = unpack::<S, BITS>(page.add(at));
                    let (mut c, mut d) = unpack::<S, BITS>(page.add(at + unit));
                    if TABLE {
                        (a, b) = (S::lookup::<BITS>(table, a), S::lookup::<BITS>(table, b));
                        (c, d) = (S::lookup::<BITS>(table, c), S::lookup::<BITS>(table, d));
                    }
                    let turned = S::transpose_bytes([a, b, c, d]);
                    let to = to.add((tile * octets + 2 * row) * OCTET);
                    S::Matrix::keep(to, turned[0], turned[1]);
                    S::Matrix::keep(to.add(OCTET), turned[2], turned[3]);
                }
            }
        }
    }
}

/// A page whose codes have been turned, for some queries.
struct Turned<'a, S> {
    format: &'a PackedFormat,
    query: &'a Query,
    /// The page's channel scales, where it has some to be folded in.
    channels: Option<&'a SpanScales>,
    pages: Pages,
    /// Span by span: (tiles, octets, 128).
    codes: *const u8,
    simd: PhantomData<S>,
}

impl<S: Simd> Turned<'_, S> {
    fn span<'a>(&'a self, index: usize) -> Spanwise<'a> {
        let Turned { format, query, channels, pages, .. } = *self;
        Spanwise { format, query, span: &format.spans[index], index, channels, pages }
    }

    /// What H heads from `head` on mean, for every span: the places from `at` on. Returns H.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` has room for two planes of H heads, if there are channel scales.
    #[inline(always)]
    unsafe fn fold<const H: usize>(
        &self,
        head: usize,
        bytes: *mut i8,
        parts: &mut Parts,
        at: usize,
    ) -> usize {
        let Turned { format, query, channels, .. } = *self;
        for (index, span) in format.spans.iter().enumerate() {
            let to = parts[index][at..at + H].as_mut_ptr().cast::<Part>();
            // SAFETY: there are H places; the rest is the caller's contract.
            unsafe {
                if let Some(channels) = channels {
                    let (at, len, plane) = (span.first, span.len, format.coded);
                    let fold = QueryFold { format, query, span, channels, at, len, plane };
                    fold_block::<S, H>(&fold, head, bytes.add(span.first), to);
                } else {
                    for h in 0..H {
                        to.add(h).write(self.span(index).prepared::<S>(head + h));
                    }
                }
            }
        }
        H
    }

    /// The scores of the H heads whose parts are at `at`. Returns H.
    ///
    /// # Safety
    /// As the kernel it is part of, for H rows of `out`.
    #[inline(always)]
    unsafe fn multiply<const H: usize>(&self, parts: &Parts, at: usize, out: *mut f32) -> usize {
        let place = self;
        let spans = &self.format.spans;
        let kind = |span: &Span| (planes(u32::from(span.bits)), span.meaning.is_table() || span.bits == 8);
        let mut first = 0;
        while first < spans.len() {
            // Neighbours that are read alike, as all are unless widths were planned.
            let (planes, full) = kind(&spans[first]);
            let end = spans[first..].iter().position(|span| kind(span) != (planes, full));
            let run = first..end.map_or(spans.len(), |end| first + end);
            first = run.end;
            // SAFETY: the parts of these spans and heads have been written; the rest is the caller's contract.
            unsafe {
                match (planes, full) {
                    (1, false) => S::call(Run::<S, H, 1, false> { place, parts, at, run, out }),
                    (1, true) => S::call(Run::<S, H, 1, true> { place, parts, at, run, out }),
                    (_, false) => S::call(Run::<S, H, 2, false> { place, parts, at, run, out }),
                    (_, true) => S::call(Run::<S, H, 2, true> { place, parts, at, run, out }),
                }
            }
        }
        H
    }

    /// The scores of sixteen heads, by the unit for blocks.
    ///
    /// # Safety
    /// As the kernel it is part of; the unit is there and `ready` for so many octets, and there is room for its sums.
    #[inline(always)]
    unsafe fn multiply_blocks(&self, parts: &Parts, sums: BlockSums, ready: &mut usize, out: *mut f32) {
        let tokens = self.format.tokens;
        for (index, span) in self.format.spans.iter().enumerate() {
            let (place, octets) = (self.span(index), span.len / 8);
            let planes = planes(u32::from(span.bits));
            // SAFETY: the parts of all spans have been written, their bytes equally far apart; a page has at most `TILES`
            // tiles of tokens; the rest is the caller's contract.
            unsafe {
                let parts: &[Part; ROWS] = &*parts[index].as_ptr().cast();
                let stride = parts[1].bytes.offset_from_unsigned(parts[0].bytes);
                let heads = Heads { bytes: parts[0].bytes, stride, plane: parts[0].plane };
                let codes = self.codes.add(span.first * tokens);
                if *ready != octets {
                    S::Matrix::begin(octets);
                    *ready = octets;
                }
                sums.multiply::<S>(planes, heads, ROWS, codes, octets, tokens / LANES);
                for tile in 0..tokens / LANES {
                    let scales = place.scales::<S>(tile * LANES);
                    for (h, part) in parts.iter().enumerate() {
                        let (low, high) = sums.of::<S>(planes, h, tile);
                        let out = out.add(h * tokens + tile * LANES);
                        let before = if index == 0 { S::splat(0.0) } else { S::load(out) };
                        S::store(out, plus::<S>(part, scales, combine::<S>(planes, low, high), before));
                    }
                }
            }
        }
    }
}

/// What a head has of sixteen tokens, and what one more span adds to it.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn plus<S: Simd>(
    part: &Part,
    (scale, zero): (Option<S::F>, Option<S::F>),
    dot: S::F,
    before: S::F,
) -> S::F {
    // SAFETY: the tier is available.
    unsafe {
        let score = S::fma(dot, S::splat(part.step), S::splat(part.base));
        let sum = match scale {
            Some(scale) => S::fma(score, scale, before),
            None => S::add(score, before),
        };
        match zero {
            Some(zero) => S::fma(zero, S::splat(part.zero), sum),
            None => sum,
        }
    }
}

/// Some neighbouring spans that are read alike, for H heads.
struct Run<'a, S, const H: usize, const PLANES: usize, const FULL: bool> {
    place: &'a Turned<'a, S>,
    parts: &'a Parts,
    /// The first head's place among the parts.
    at: usize,
    run: std::ops::Range<usize>,
    out: *mut f32,
}

impl<S: Simd, const H: usize, const PLANES: usize, const FULL: bool> Work<S> for Run<'_, S, H, PLANES, FULL> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let tiles = self.place.format.tokens / LANES;
        let mut tile = 0;
        while tile < tiles {
            // Pages have an even number of tiles.
            // SAFETY: tile + N ≤ tiles; the rest is the caller's contract.
            tile +=
                unsafe { if const { S::TILES >= 2 } { self.tiles::<2>(tile) } else { self.tiles::<1>(tile) } }
        }
    }
}

impl<S: Simd, const H: usize, const PLANES: usize, const FULL: bool> Run<'_, S, H, PLANES, FULL> {
    /// The inner loop: N tiles of 16 tokens for H heads in registers. Returns N.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, tile: usize) -> usize {
        let Self { place, parts, at, ref run, out, .. } = *self;
        let tokens = place.format.tokens;
        // SAFETY: codes of all tiles of a span are there, bytes of every part for all its channels, and `out` has `tokens`
        // entries per row.
        unsafe {
            let mut totals = [[S::splat(0.0); N]; H];
            if run.start > 0 {
                for h in 0..H {
                    for n in 0..N {
                        totals[h][n] = S::load(out.add(h * tokens + (tile + n) * LANES));
                    }
                }
            }
            for index in run.clone() {
                let spanwise = place.span(index);
                let octets = spanwise.span.len / 8;
                let part: &[Part; H] = &*parts[index][at..at + H].as_ptr().cast();
                let codes = place.codes.add(spanwise.span.first * tokens + tile * octets * OCTET);
                let mut low = [[S::izero(); N]; H];
                let mut high = [[S::izero(); N]; H];
                for octet in 0..octets {
                    for n in 0..N {
                        let (a, b) = S::Matrix::kept(codes.add((n * octets + octet) * OCTET));
                        for h in 0..H {
                            let q = part[h].bytes.add(8 * octet);
                            low[h][n] = dot::<S>(FULL, low[h][n], a, S::quad(q));
                            low[h][n] = dot::<S>(FULL, low[h][n], b, S::quad(q.add(4)));
                            if PLANES == 2 {
                                let q = q.add(part[h].plane);
                                high[h][n] = dot::<S>(FULL, high[h][n], a, S::quad(q));
                                high[h][n] = dot::<S>(FULL, high[h][n], b, S::quad(q.add(4)));
                            }
                        }
                    }
                }
                for n in 0..N {
                    let scales = spanwise.scales::<S>((tile + n) * LANES);
                    for h in 0..H {
                        let dot = combine::<S>(PLANES, low[h][n], high[h][n]);
                        totals[h][n] = plus::<S>(&part[h], scales, dot, totals[h][n]);
                    }
                }
            }
            for h in 0..H {
                for n in 0..N {
                    S::store(out.add(h * tokens + (tile + n) * LANES), totals[h][n]);
                }
            }
        }
        N
    }
}
