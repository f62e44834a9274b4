//! Pages whose channels have scales of their own and are of several widths: all of them under one step.
//!
//! Such widths are chosen so that every channel's scale, seen by the queries, is about the same. So are the products of
//! query and scale, and one step for a whole head loses little. What it wins: the integer sums of all widths are one sum,
//! kept in registers from the first channel to the last.
//!
//! A product is rounded to a whole number of steps against codes of up to four bits and to a 256th against wider ones,
//! the *coarse* byte the whole steps, the *fine* byte what is left.

use super::super::block::{BATCH, Heads, Room, Sums};
use super::super::{MAX_DIM, Pages, by_heads, load_scales};
use super::{Part, add_bias, dot};
use crate::codec::Query;
use crate::codec::scalar::ScalarCodec;
use crate::kernel::round::step;
use crate::pack::unpack;
use crate::page::Span;
use kvant_simd::{LANES, MatrixUnit, ROWS, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// What is known of the channels before there is a page, padded to whole vectors.
pub(crate) struct Joined {
    /// Channels whose codes are wide, the first ones.
    wide: usize,
    /// Parts that a step is cut into, 256 or 1, and one over that.
    parts: Vec<f32>,
    whole: Vec<f32>,
    /// The code in the middle, and what is in its place in the byte that the dot product reads.
    centres: Vec<f32>,
    seen: Vec<f32>,
}

impl Joined {
    /// For neighbouring channels of these spans; `byte_centre` is that of the tier.
    pub(crate) fn new(spans: &[Span], byte_centre: i32) -> Joined {
        let mut joined = Joined { wide: 0, parts: vec![], whole: vec![], centres: vec![], seen: vec![] };
        for span in spans {
            let is_wide = super::planes(u32::from(span.bits)) == 2;
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
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// As [`super::scores`], for a codec whose channels are joined.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd>(
    codec: &ScalarCodec,
    joined: &Joined,
    query: &Query,
    pages: Pages,
    out: *mut f32,
) {
    let layout = &codec.layout;
    let plane = joined.parts.len();
    let mut channels = Channels::new();
    // SAFETY: the caller's contract; every block of heads stays below `heads`, and the bytes hold two planes for every head
    // of a batch.
    unsafe {
        channels.load::<S>(codec, plane, pages);
        let mut room = Room::new::<S>(codec, BATCH.min(query.heads) * 2 * plane, query.heads, pages);
        let place = Place { codec, joined, pages };
        let codes = room.joined_codes();
        if codes.is_some() {
            S::Matrix::begin(layout.coded / 8);
        }
        for first in (0..query.heads).step_by(BATCH) {
            let count = BATCH.min(query.heads - first);
            let mut parts = [const { MaybeUninit::<Part>::uninit() }; BATCH];
            let mut at = 0;
            while at < count {
                let (bytes, parts) =
                    (room.bytes().add(at * 2 * plane), parts.as_mut_ptr().cast::<Part>().add(at));
                let fold = Fold { joined, query, channels: &channels };
                at += by_heads!(S, count - at, fold_block::<S>(&fold, first + at, bytes, parts));
            }
            let (out, parts) = (out.add(first * layout.tokens), parts.as_ptr().cast::<Part>());
            let mut at = 0;
            if let Some(codes) = codes {
                let parts = std::slice::from_raw_parts(parts, count / ROWS * ROWS);
                block_scores::<S>(&place, parts, codes, room.sums(), out);
                at = parts.len();
            }
            while at < count {
                let (parts, out) = (parts.add(at), out.add(at * layout.tokens));
                at += by_heads!(S, count - at, head_block::<S>(&place, parts, out));
            }
        }
        if codes.is_some() {
            S::Matrix::end();
        }
        for head in 0..query.heads {
            if query.bias[head] != 0.0 {
                add_bias::<S>(out.add(head * layout.tokens), layout.tokens, query.bias[head], false);
            }
        }
    }
}

/// A page's channel scales and zeros as floats.
struct Channels {
    scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    zeros: [MaybeUninit<f32>; MAX_DIM + LANES],
}

impl Channels {
    fn new() -> Channels {
        Channels {
            scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
            zeros: [MaybeUninit::uninit(); MAX_DIM + LANES],
        }
    }

    /// Reads `len` of each, those past the last channel as zeros.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
    #[inline(always)]
    unsafe fn load<S: Simd>(&mut self, codec: &ScalarCodec, len: usize, Pages { page, next }: Pages) {
        let layout = &codec.layout;
        let size = layout.format.bytes();
        let arrays = [(&layout.channel_scale, &mut self.scales), (&layout.channel_zero, &mut self.zeros)];
        for (array, to) in arrays {
            let to = to.as_mut_ptr().cast::<f32>();
            let at = array.as_ref().map_or(0, |range| range.start);
            // SAFETY: the channel arrays lie within the page, and after them at least one unit of codes, so a load of 16
            // that starts at the last 8 channels stays inside. What it reads too much is zeroed.
            unsafe {
                for c in (0..len).step_by(LANES) {
                    S::prefetch(next.wrapping_add(at + c * size));
                    S::store(to.add(c), load_scales::<S>(layout.format, page.add(at + c * size)));
                }
                for c in layout.coded..len {
                    *to.add(c) = 0.0;
                }
            }
        }
    }
}

/// What folding a block of heads needs to know.
struct Fold<'a> {
    joined: &'a Joined,
    query: &'a Query,
    channels: &'a Channels,
}

/// Folds the page's channel scales into H queries: q_c·s_c rounded to bytes, the rest exact.
///
/// # Safety
/// As the kernel it is part of; `bytes` has room for two planes of H heads, `parts` for H.
#[inline(always)]
unsafe fn fold_block<S: Simd, const H: usize>(
    fold: &Fold<'_>,
    head: usize,
    bytes: *mut i8,
    parts: *mut Part,
) -> usize {
    let Fold { joined, query, channels } = *fold;
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
            let of = |known: &[f32]| S::load(known.as_ptr().add(c));
            let (units, whole) = (of(&joined.parts), of(&joined.whole));
            let (centre, seen) = (of(&joined.centres), of(&joined.seen));
            for h in 0..H {
                let q = S::load(row(h).add(c));
                let product = S::mul(q, scale);
                let units_of = S::mul(S::splat(steps[h].1), units);
                let rounded = S::to_f(S::round(S::mul(product, units_of)));
                // A quarter breaks the tie at ±128, which would not fit the fine byte.
                let coarse = S::round(S::mul(S::add(rounded, S::splat(0.25)), whole));
                let bytes = bytes.add(h * 2 * plane + c);
                S::store_low_bytes(bytes.cast(), coarse);
                if joined.wide > 0 {
                    let fine = S::fnma(S::to_f(coarse), units, rounded);
                    S::store_low_bytes(bytes.add(plane).cast(), S::round(fine));
                }
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

/// Where a block of heads reads.
struct Place<'a> {
    codec: &'a ScalarCodec,
    joined: &'a Joined,
    pages: Pages,
}

/// # Safety
/// As the kernel it is part of, for H parts and H rows of `out`.
#[inline(always)]
unsafe fn head_block<S: Simd, const H: usize>(place: &Place<'_>, parts: *const Part, out: *mut f32) -> usize {
    // SAFETY: the caller's contract.
    unsafe {
        let part: &[Part; H] = &*parts.cast();
        S::call(HeadScores::<S, H> { place, part, out, simd: PhantomData });
    }
    H
}

/// The scores of a multiple of sixteen heads, by the unit for blocks.
///
/// # Safety
/// As the kernel it is part of, for parts whose bytes are equally far apart; `codes` are the page's, and the unit has begun.
#[inline(always)]
unsafe fn block_scores<S: Simd>(
    place: &Place<'_>,
    parts: &[Part],
    codes: *const u8,
    sums: Sums,
    out: *mut f32,
) {
    let [first, ..] = parts else { return };
    let layout = &place.codec.layout;
    let planes = if place.joined.wide > 0 { 2 } else { 1 };
    // SAFETY: a page has at most `TILES` tiles of tokens; the rest is the caller's contract.
    unsafe {
        let heads = Heads { bytes: first.bytes, stride: 2 * first.plane, plane: first.plane };
        sums.multiply::<S>(planes, heads, parts.len(), codes, layout.coded / 8, layout.tokens / LANES);
        for tile in 0..layout.tokens / LANES {
            for h in 0..parts.len() {
                let (coarse, fine) = sums.of::<S>(planes, h, tile);
                place.put::<S>(&parts[h], coarse, fine, out.add(h * layout.tokens + tile * LANES));
            }
        }
    }
}

impl Place<'_> {
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
    place: &'a Place<'a>,
    part: &'a [Part; H],
    out: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize> Work<S> for HeadScores<'_, S, H> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let tiles = self.place.codec.layout.tokens / LANES;
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
    /// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, tile: usize) -> usize {
        let layout = &self.place.codec.layout;
        // SAFETY: units tile..tile+N of every row lie within the page; `out` has `tokens` entries per row.
        unsafe {
            let mut sums = Running::<S, H, N> { coarse: [[S::izero(); N]; H], fine: [[S::izero(); N]; H] };
            for span in &layout.spans {
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
                    let out = self.out.add(h * layout.tokens + t);
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
        let row = self.place.codec.layout.tokens / LANES * unit;
        // SAFETY: the span's rows lie within the page, and every head has bytes for all channels.
        unsafe {
            let mut codes = page.add(span.codes + tile * unit);
            let mut coming = next.wrapping_add(span.codes + tile * unit);
            for octet in span.first / 8..(span.first + span.len) / 8 {
                for n in 0..N {
                    S::prefetch(coming.wrapping_add(n * unit));
                    let (a, b) = unpack::<S, BITS>(codes.add(n * unit));
                    for h in 0..H {
                        let q = self.part[h].bytes.add(8 * octet);
                        let coarse = &mut sums.coarse[h][n];
                        *coarse = dot::<S>(BITS == 8, *coarse, a, S::quad(q));
                        *coarse = dot::<S>(BITS == 8, *coarse, b, S::quad(q.add(4)));
                        if super::planes(BITS) == 2 {
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
