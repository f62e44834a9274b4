//! Pages whose channels have scales of their own and are of several widths: all of them under one step.
//!
//! Such widths are chosen so that every channel's scale, seen by the queries, is about the same. So are the products of
//! query and scale, and one step for a whole head loses little. What it wins: the integer sums of all widths are one sum,
//! kept in registers from the first channel to the last.
//!
//! A product is rounded to a whole number of steps against codes of up to four bits and to a 256th against wider ones,
//! the *coarse* byte the whole steps, the *fine* byte what is left.

use super::batch::{self, Part, Scoring};
use super::{add_bias, dot, planes};
use crate::format::{MAX_DIM, PackedFormat, Span};
use crate::kernel::block::{BATCH, BlockSums, Heads, Room};
use crate::kernel::round::step;
use crate::kernel::{Pages, Query, load_scales, prefetch_lines};
use crate::pack::unpack;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// What is known of the channels before there is a page, padded to whole vectors.
pub(crate) struct MixedWidth {
    /// Channels whose codes are wide, the first ones.
    wide: usize,
    /// Parts that a step is cut into, 256 or 1, and one over that.
    parts: Vec<f32>,
    whole: Vec<f32>,
    /// The code in the middle, and what is in its place in the byte that the dot product reads.
    centres: Vec<f32>,
    seen: Vec<f32>,
}

/// What is known of a vector of channels: sixteen floats each.
pub(in crate::kernel) struct WidthsOf {
    pub parts: *const f32,
    pub whole: *const f32,
    pub centres: *const f32,
    pub seen: *const f32,
}

impl MixedWidth {
    /// For neighbouring channels of these spans; `byte_centre` is that of the tier.
    pub(crate) fn new(spans: &[Span], byte_centre: i32) -> MixedWidth {
        let mut joined = MixedWidth { wide: 0, parts: vec![], whole: vec![], centres: vec![], seen: vec![] };
        for span in spans {
            let is_wide = planes(u32::from(span.bits)) == 2;
            let end = span.first + span.len;
            if is_wide {
                joined.wide = end;
            }
            let parts: f32 = if is_wide { 256.0 } else { 1.0 };
            let centre = (1u32 << (span.bits - 1)) as f32;
            joined.parts.resize(end, parts);
            joined.whole.resize(end, 1.0 / parts);
            joined.centres.resize(end, centre);
            joined.seen.resize(end, if span.bits == 8 { byte_centre as f32 } else { centre });
        }
        let padded = joined.parts.len().next_multiple_of(LANES);
        joined.parts.resize(padded, 1.0);
        joined.whole.resize(padded, 1.0);
        joined.centres.resize(padded, 0.0);
        joined.seen.resize(padded, 0.0);
        joined
    }

    /// Channels, padded to whole vectors.
    #[inline(always)]
    pub(in crate::kernel) fn channels(&self) -> usize {
        self.parts.len()
    }

    /// Channels whose codes are wide, the first ones.
    #[inline(always)]
    pub(in crate::kernel) fn wide(&self) -> usize {
        self.wide
    }

    /// What is known of the vector of channels from `c` on.
    #[inline(always)]
    pub(in crate::kernel) fn of(&self, c: usize) -> WidthsOf {
        debug_assert!(c < self.channels());
        let at = |numbers: &[f32]| numbers.as_ptr().wrapping_add(c);
        WidthsOf {
            parts: at(&self.parts),
            whole: at(&self.whole),
            centres: at(&self.centres),
            seen: at(&self.seen),
        }
    }
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// As [`super::scores`], for a page whose channels are joined.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd>(
    format: &PackedFormat,
    joined: &MixedWidth,
    query: &Query,
    pages: Pages,
    out: *mut f32,
) {
    let plane = joined.parts.len();
    let mut channels = PageScales::new();
    // SAFETY: the caller's contract; the bytes hold two planes for every head of a batch.
    unsafe {
        channels.load::<S>(format, plane, pages);
        let held = BATCH.min(query.heads) * 2 * plane;
        let mut room = Room::new::<S>(format, Some(joined), held, query.heads, pages);
        let codes = room.joined_codes();
        let whole = Whole { format, joined, query, channels: &channels, pages };
        batch::scores::<S>(&whole, query.heads, &mut room, codes, out);
        for head in 0..query.heads {
            if query.bias[head] != 0.0 {
                add_bias::<S>(out.add(head * format.tokens), format.tokens, query.bias[head], false);
            }
        }
    }
}

/// A page's channel scales and zeros as floats.
struct PageScales {
    scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    zeros: [MaybeUninit<f32>; MAX_DIM + LANES],
}

impl PageScales {
    fn new() -> PageScales {
        PageScales {
            scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
            zeros: [MaybeUninit::uninit(); MAX_DIM + LANES],
        }
    }

    /// Reads `len` of each, those past the last channel as zeros.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    unsafe fn load<S: Simd>(&mut self, format: &PackedFormat, len: usize, Pages { page, next }: Pages) {
        let size = format.scales.bytes();
        let arrays = [(&format.channel_scale, &mut self.scales), (&format.channel_zero, &mut self.zeros)];
        for (array, to) in arrays {
            let to = to.as_mut_ptr().cast::<f32>();
            let at = array.as_ref().map_or(0, |range| range.start);
            // SAFETY: the channel arrays lie within the page, and after them at least one unit of codes, so a load of 16
            // that starts at the last 8 channels stays inside. What it reads too much is zeroed.
            unsafe {
                for c in (0..len).step_by(LANES) {
                    S::prefetch(next.wrapping_add(at + c * size));
                    S::store(to.add(c), load_scales::<S>(format.scales, page.add(at + c * size)));
                }
                for c in format.coded..len {
                    *to.add(c) = 0.0;
                }
            }
        }
    }
}

/// All spans of a page, for some queries.
struct Whole<'a> {
    format: &'a PackedFormat,
    joined: &'a MixedWidth,
    query: &'a Query,
    channels: &'a PageScales,
    pages: Pages,
}

impl<S: Simd> Scoring<S> for Whole<'_> {
    #[inline(always)]
    fn tokens(&self) -> usize {
        self.format.tokens
    }

    #[inline(always)]
    fn octets(&self) -> usize {
        self.format.coded / 8
    }

    #[inline(always)]
    fn plane(&self) -> usize {
        self.joined.parts.len()
    }

    /// Folds the page's channel scales into H queries: q_c·s_c rounded to bytes, the rest exact.
    #[inline(always)]
    unsafe fn fold<const H: usize>(&self, head: usize, bytes: *mut i8, parts: *mut Part) -> usize {
        let Whole { joined, query, channels, .. } = *self;
        let plane = joined.parts.len();
        let (scales, zeros) = (channels.scales.as_ptr().cast::<f32>(), channels.zeros.as_ptr().cast::<f32>());
        // SAFETY: the channels were read up to `plane`, where the query has zeros after its last channel, and what is known
        // before there is a page goes as far.
        unsafe {
            let row = |h: usize| query.floats_of(head + h);
            let mut tops = [S::splat(0.0); 4];
            for c in (0..plane).step_by(LANES) {
                let scale = S::load(scales.add(c));
                for h in 0..H {
                    tops[h] = S::max_abs(tops[h], S::mul(S::load(row(h).add(c)), scale));
                }
            }
            let steps = S::reduce4_max(tops).map(|top| step(top, 1));
            // Exact parts of the scores, and what the rounded ones bring with the centres.
            let (mut exact, mut centred) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            for c in (0..plane).step_by(LANES) {
                let (scale, zero) = (S::load(scales.add(c)), S::load(zeros.add(c)));
                let (units, whole) =
                    (S::load(joined.parts.as_ptr().add(c)), S::load(joined.whole.as_ptr().add(c)));
                let (centre, seen) =
                    (S::load(joined.centres.as_ptr().add(c)), S::load(joined.seen.as_ptr().add(c)));
                for h in 0..H {
                    let q = S::load(row(h).add(c));
                    let product = S::mul(q, scale);
                    if c >= joined.wide {
                        // Whole steps alone: what follows, without what comes to nothing.
                        let rounded = S::round(S::mul(product, S::splat(steps[h].1)));
                        let bytes = bytes.add(h * 2 * plane + c);
                        S::store_low_bytes(bytes.cast(), rounded);
                        if joined.wide > 0 {
                            // Blocks read both planes of all channels.
                            S::store_low_bytes(bytes.add(plane).cast(), S::izero());
                        }
                        exact[h] = S::fma(product, centre, S::fma(q, zero, exact[h]));
                        centred[h] = S::fma(S::to_f(rounded), seen, centred[h]);
                        continue;
                    }
                    let units_of = S::mul(S::splat(steps[h].1), units);
                    let rounded = S::to_f(S::round(S::mul(product, units_of)));
                    // A quarter breaks the tie at ±128, which would not fit the fine byte.
                    let coarse = S::round(S::mul(S::add(rounded, S::splat(0.25)), whole));
                    let bytes = bytes.add(h * 2 * plane + c);
                    S::store_low_bytes(bytes.cast(), coarse);
                    let fine = S::fnma(S::to_f(coarse), units, rounded);
                    S::store_low_bytes(bytes.add(plane).cast(), S::round(fine));
                    exact[h] = S::fma(product, centre, S::fma(q, zero, exact[h]));
                    centred[h] = S::fma(S::mul(rounded, whole), seen, centred[h]);
                }
            }
            for h in 0..H {
                exact[h] = S::fnma(S::splat(steps[h].0), centred[h], exact[h]);
            }
            let bases = S::reduce4_add(exact);
            for h in 0..H {
                let bytes = bytes.add(h * 2 * plane).cast_const();
                parts.add(h).write(Part { bytes, plane, step: steps[h].0, base: bases[h], zero: 0.0 });
            }
        }
        H
    }

    #[inline(always)]
    unsafe fn multiply<const H: usize>(&self, parts: *const Part, out: *mut f32) -> usize {
        // SAFETY: the caller's contract.
        unsafe {
            let part: &[Part; H] = &*parts.cast();
            S::call(HeadScores::<S, H> { place: self, part, out, simd: PhantomData });
        }
        H
    }

    #[inline(always)]
    unsafe fn multiply_blocks(&self, parts: &[Part], codes: *const u8, sums: BlockSums, out: *mut f32) {
        let [first, ..] = parts else { return };
        let PackedFormat { tokens, coded, .. } = *self.format;
        let planes = if self.joined.wide > 0 { 2 } else { 1 };
        // SAFETY: a page has at most `TILES` tiles of tokens; the rest is the caller's contract.
        unsafe {
            let heads = Heads { bytes: first.bytes, stride: 2 * first.plane, plane: first.plane };
            sums.multiply::<S>(planes, heads, parts.len(), codes, coded / 8, tokens / LANES);
            for tile in 0..tokens / LANES {
                for h in 0..parts.len() {
                    let (coarse, fine) = sums.of::<S>(planes, h, tile);
                    self.put::<S>(&parts[h], coarse, fine, out.add(h * tokens + tile * LANES));
                }
            }
        }
    }
}

impl Whole<'_> {
    /// From a head's dot products with sixteen tokens to their scores.
    ///
    /// # Safety
    /// `out` is valid for sixteen floats; the CPU has the tier.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, part: &Part, coarse: S::I, fine: S::I, out: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut dot = S::to_f(coarse);
            if self.joined.wide > 0 {
                dot = S::fma(S::to_f(fine), S::splat(1.0 / 256.0), dot);
            }
            S::store(out, S::fma(dot, S::splat(part.step), S::splat(part.base)));
        }
    }
}

/// Dot products of all channels and what follows from them.
struct HeadScores<'a, S, const H: usize> {
    place: &'a Whole<'a>,
    part: &'a [Part; H],
    out: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize> Work<S> for HeadScores<'_, S, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let tiles = self.place.format.tokens / LANES;
        let mut tile = 0;
        while tile < tiles {
            // Pages have an even number of tiles.
            // SAFETY: tile + N ≤ tiles; the rest is the caller's contract.
            tile += unsafe {
                if const { S::TILES >= 4 && H <= 3 } && tiles - tile >= 4 {
                    self.tiles::<4>(tile)
                } else if const { S::TILES >= 2 } {
                    self.tiles::<2>(tile)
                } else {
                    self.tiles::<1>(tile)
                }
            }
        }
    }
}

/// Integer sums of H heads with N tiles.
struct Running<S: Simd, const H: usize, const N: usize> {
    coarse: [[S::I; N]; H],
    fine: [[S::I; N]; H],
}

impl<S: Simd, const H: usize> HeadScores<'_, S, H> {
    /// All spans over N tiles of 16 tokens, for H heads in registers. Returns N.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, tile: usize) -> usize {
        let format = self.place.format;
        // SAFETY: units tile..tile+N of every row lie within the page; `out` has `tokens` entries per row.
        unsafe {
            let mut sums = Running::<S, H, N> { coarse: [[S::izero(); N]; H], fine: [[S::izero(); N]; H] };
            for span in &format.spans {
                match span.bits {
                    1 => self.span::<N, 1>(span, tile, &mut sums),
                    2 => self.span::<N, 2>(span, tile, &mut sums),
                    3 => self.span::<N, 3>(span, tile, &mut sums),
                    4 => self.span::<N, 4>(span, tile, &mut sums),
                    5 => self.span::<N, 5>(span, tile, &mut sums),
                    6 => self.span::<N, 6>(span, tile, &mut sums),
                    7 => self.span::<N, 7>(span, tile, &mut sums),
                    _ => self.span::<N, 8>(span, tile, &mut sums),
                }
            }
            for n in 0..N {
                let t = (tile + n) * LANES;
                for h in 0..H {
                    let out = self.out.add(h * format.tokens + t);
                    self.place.put::<S>(&self.part[h], sums.coarse[h][n], sums.fine[h][n], out);
                }
            }
        }
        N
    }

    /// The inner loop: the channels of one span.
    ///
    /// # Safety
    /// As the kernel it is part of; the span has codes of so many bits, and there are N tiles from `tile` on.
    #[inline(always)]
    unsafe fn span<const N: usize, const BITS: u32>(
        &self,
        span: &Span,
        tile: usize,
        sums: &mut Running<S, H, N>,
    ) {
        let Pages { page, next } = self.place.pages;
        let unit = 16 * BITS as usize;
        let row = self.place.format.tokens / LANES * unit;
        // SAFETY: the span's rows lie within the page, and every head has bytes for all channels.
        unsafe {
            let mut codes = page.add(span.codes + tile * unit);
            let mut coming = next.wrapping_add(span.codes + tile * unit);
            for octet in span.first / 8..(span.first + span.len) / 8 {
                for n in 0..N {
                    prefetch_lines::<S>(unit, coming.wrapping_add(n * unit));
                    let (a, b) = unpack::<S, BITS>(codes.add(n * unit));
                    for h in 0..H {
                        let q = self.part[h].bytes.add(8 * octet);
                        let coarse = &mut sums.coarse[h][n];
                        *coarse = dot::<S>(BITS == 8, *coarse, a, S::quad(q));
                        *coarse = dot::<S>(BITS == 8, *coarse, b, S::quad(q.add(4)));
                        if planes(BITS) == 2 {
                            let q = q.add(self.part[h].plane);
                            let fine = &mut sums.fine[h][n];
                            *fine = dot::<S>(BITS == 8, *fine, a, S::quad(q));
                            *fine = dot::<S>(BITS == 8, *fine, b, S::quad(q.add(4)));
                        }
                    }
                }
                codes = codes.add(row);
                coming = coming.wrapping_add(row);
            }
        }
    }
}
