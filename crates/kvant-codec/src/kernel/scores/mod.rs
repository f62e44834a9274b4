//! q·k for every token of a page, from the packed codes.
//!
//! A span of channels at a time: the query's bytes (folded with the page's channel scales, or prepared once when
//! there are none) meet units of sixteen tokens; what is left per token is one fused multiply-add with its scale.

mod fold;
pub(crate) mod joined;

use super::block::{self, BATCH, Heads, Room, Sums};
use super::round::planes;
use super::{Pages, by_heads, by_width, load_array};
use crate::codec::Query;
use crate::codec::scalar::ScalarCodec;
use crate::pack::unpack;
use crate::page::Span;
use crate::quant::{Levels, Rule};
use fold::{Channels, Fold, fold_block};
use kvant_simd::{LANES, MatrixUnit, ROWS, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// What a span's bytes mean for one head.
#[derive(Clone, Copy)]
struct Part {
    /// `len` bytes, and as many again one plane on.
    bytes: *const i8,
    plane: usize,
    /// score = step · (dot product) + base, before the token's scale.
    step: f32,
    base: f32,
    /// Multiplies the token's zero: Σ q over the span.
    zero: f32,
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// `page` is a page of the codec's layout, `out` is valid for heads · tokens floats, the query was prepared by this
/// codec; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(codec: &ScalarCodec, query: &Query, pages: Pages, out: *mut f32) {
    let layout = &codec.layout;
    if let Some(joined) = &codec.joined {
        // SAFETY: the caller's contract.
        return unsafe { joined::scores::<S>(codec, joined, query, pages, out) };
    }
    let folded = layout.channel_scale.is_some();
    let mut channels = Channels::new();
    // SAFETY: the caller's contract; every block of heads stays below `heads`, and the bytes hold two planes of a span
    // for every head of a batch.
    unsafe {
        let plane = layout.coded.next_multiple_of(LANES);
        let held = if folded { BATCH.min(query.heads) * 2 * plane } else { 0 };
        let mut room = Room::new::<S>(codec, held, query.heads, pages);
        for (index, span) in layout.spans.iter().enumerate() {
            let levels = &codec.levels[index];
            let codes = room.codes(layout, span);
            if codes.is_some() {
                S::Matrix::begin(block::octets(layout, span));
            }
            if folded {
                channels.load::<S>(codec, span, levels, pages);
            }
            let plane = span.len.next_multiple_of(LANES);
            for first in (0..query.heads).step_by(BATCH) {
                let count = BATCH.min(query.heads - first);
                let mut parts = [const { MaybeUninit::<Part>::uninit() }; BATCH];
                let mut at = 0;
                while folded && at < count {
                    let fold = Fold { codec, query, span, levels, channels: &channels, plane };
                    let bytes = room.bytes().add(at * 2 * plane);
                    let parts = parts.as_mut_ptr().cast::<Part>().add(at);
                    at += by_heads!(S, count - at, fold_block::<S>(&fold, first + at, bytes, parts));
                }
                while at < count {
                    parts[at].write(prepared::<S>(codec, query, first + at, index));
                    at += 1;
                }
                let (out, parts) = (out.add(first * layout.tokens), parts.as_ptr().cast::<Part>());
                let place = Place { codec, span, levels, pages, first: index == 0 };
                let mut at = 0;
                if let Some(codes) = codes {
                    let parts = std::slice::from_raw_parts(parts, count / ROWS * ROWS);
                    block_scores::<S>(&place, parts, codes, room.sums(), out);
                    at = parts.len();
                }
                while at < count {
                    let (parts, out) = (parts.add(at), out.add(at * layout.tokens));
                    at += by_heads!(S, count - at, span_block::<S>(&place, parts, out));
                }
            }
            if codes.is_some() {
                S::Matrix::end();
            }
        }
        for head in 0..query.heads {
            let bias = query.bias[head];
            if bias != 0.0 || layout.spans.is_empty() {
                let out = out.add(head * layout.tokens);
                add_bias::<S>(out, layout.tokens, bias, layout.spans.is_empty());
            }
        }
    }
}

/// The bytes of a head as they were prepared, where no page has scales to be folded in.
#[inline(always)]
fn prepared<S: Simd>(codec: &ScalarCodec, query: &Query, head: usize, index: usize) -> Part {
    let (span, levels) = (&codec.layout.spans[index], &codec.levels[index]);
    let prepared = query.span(head, index, codec.layout.spans.len());
    let centre = f64::from(seen_centre::<S>(levels)) as f32;
    // An asymmetric code c stands for s·c + z, so the centre is not taken away but given back.
    let back =
        if levels.rule == Rule::Asymmetric { levels.centre() as f32 * prepared.exact_sum } else { 0.0 };
    Part {
        bytes: query.bytes_of(head, span.first),
        plane: query.plane(),
        step: prepared.rounded.step,
        base: back - prepared.rounded.step * prepared.rounded.sum * centre,
        zero: prepared.exact_sum,
    }
}

/// Where a block of heads reads and writes.
struct Place<'a> {
    codec: &'a ScalarCodec,
    span: &'a Span,
    levels: &'a Levels,
    pages: Pages,
    first: bool,
}

/// # Safety
/// As the kernel it is part of, for H parts and H rows of `out`.
#[inline(always)]
unsafe fn span_block<S: Simd, const H: usize>(place: &Place<'_>, parts: *const Part, out: *mut f32) -> usize {
    let levels = place.levels;
    // SAFETY: the span's rows lie within the page, and every part has bytes for all its channels.
    unsafe {
        let part: &[Part; H] = &*parts.cast();
        by_width!(S, levels, SpanScores::<S, H> { place, part, out });
    }
    H
}

/// The scores of a multiple of sixteen heads, by the unit for blocks.
///
/// # Safety
/// As the kernel it is part of, for parts whose bytes are equally far apart; `codes` are the span's, and the unit has begun.
#[inline(always)]
unsafe fn block_scores<S: Simd>(
    place: &Place<'_>,
    parts: &[Part],
    codes: *const u8,
    sums: Sums,
    out: *mut f32,
) {
    let [first, second, ..] = parts else { return };
    let Place { codec, span, .. } = place;
    let (tokens, octets) = (codec.layout.tokens, block::octets(&codec.layout, span));
    let planes = planes(u32::from(span.bits));
    // SAFETY: a page has at most `TILES` tiles of tokens; the rest is the caller's contract.
    unsafe {
        let stride = second.bytes.offset_from_unsigned(first.bytes);
        let heads = Heads { bytes: first.bytes, stride, plane: first.plane };
        sums.multiply::<S>(planes, heads, parts.len(), codes, octets, tokens / LANES);
        for tile in 0..tokens / LANES {
            let scales = place.scales::<S>(tile * LANES);
            for h in 0..parts.len() {
                let (low, high) = sums.of::<S>(planes, h, tile);
                let dot = combine::<S>(planes, low, high);
                place.put::<S>(&parts[h], scales, dot, out.add(h * tokens + tile * LANES));
            }
        }
    }
}

impl Place<'_> {
    /// Scales and zeros of sixteen tokens.
    ///
    /// # Safety
    /// As the kernel it is part of; there are sixteen tokens from `t` on.
    #[inline(always)]
    unsafe fn scales<S: Simd>(&self, t: usize) -> (Option<S::F>, Option<S::F>) {
        let layout = &self.codec.layout;
        let at = (self.span.group * layout.tokens + t) * layout.format.bytes();
        // SAFETY: the caller's contract.
        unsafe {
            (
                load_array::<S>(layout.format, self.pages.page, &layout.token_scale, at),
                load_array::<S>(layout.format, self.pages.page, &layout.token_zero, at),
            )
        }
    }

    /// From a head's dot products with sixteen tokens to their scores.
    ///
    /// # Safety
    /// `out` is valid for sixteen floats; the CPU has the tier.
    #[inline(always)]
    unsafe fn put<S: Simd>(
        &self,
        part: &Part,
        (scale, zero): (Option<S::F>, Option<S::F>),
        dot: S::F,
        out: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe {
            let mut score = S::fma(dot, S::splat(part.step), S::splat(part.base));
            if let Some(scale) = scale {
                score = S::mul(score, scale);
            }
            if let Some(zero) = zero {
                score = S::fma(zero, S::splat(part.zero), score);
            }
            S::store(out, if self.first { score } else { S::add(S::load(out), score) });
        }
    }
}

/// What was added to a level to make the byte that the dot product reads.
#[inline(always)]
pub(super) fn seen_centre<S: Simd>(levels: &Levels) -> i32 {
    if levels.rule == Rule::LloydMax || levels.bits == 8 { S::BYTE_CENTRE } else { levels.centre() }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn add_bias<S: Simd>(out: *mut f32, tokens: usize, bias: f32, fresh: bool) {
    for t in (0..tokens).step_by(LANES) {
        // SAFETY: the caller's row has `tokens` floats.
        unsafe {
            let before = if fresh { S::splat(0.0) } else { S::load(out.add(t)) };
            S::store(out.add(t), S::add(before, S::splat(bias)));
        }
    }
}

/// Dot products of one span and what follows from them, added to `out` (or written, for the first span).
struct SpanScores<'a, S, const H: usize, const BITS: u32, const TABLE: bool> {
    place: &'a Place<'a>,
    part: &'a [Part; H],
    out: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> Work<S>
    for SpanScores<'_, S, H, BITS, TABLE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let tiles = self.place.codec.layout.tokens / LANES;
        let mut tile = 0;
        while tile < tiles {
            // Pages have an even number of tiles.
            // SAFETY: tile + N ≤ tiles; the rest is the caller's contract.
            tile += unsafe {
                if const { S::TILES >= 4 && planes(BITS) == 1 } && tiles - tile >= 4 {
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

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> SpanScores<'_, S, H, BITS, TABLE> {
    /// The inner loop: N tiles of 16 tokens for H heads in registers. Returns N.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, tile: usize) -> usize {
        let Self { place, part, out, .. } = self;
        let Place { codec, span, levels, pages: Pages { page, next }, .. } = **place;
        let layout = &codec.layout;
        let unit = 16 * BITS as usize;
        let row = layout.tokens / LANES * unit;
        let full = TABLE || BITS == 8;
        // SAFETY: units tile..tile+N of every row lie within the page; bytes exist for all channels of the span; token
        // arrays and `out` have `tokens` entries per row.
        unsafe {
            let table = S::table(&levels.table);
            let mut low = [[S::izero(); N]; H];
            let mut high = [[S::izero(); N]; H];
            let mut codes = page.add(span.codes + tile * unit);
            let mut coming = next.wrapping_add(span.codes + tile * unit);
            for octet in 0..span.len / 8 {
                for n in 0..N {
                    S::prefetch(coming.wrapping_add(n * unit));
                    let (mut a, mut b) = unpack::<S, BITS>(codes.add(n * unit));
                    if TABLE {
                        (a, b) = (S::lookup::<BITS>(table, a), S::lookup::<BITS>(table, b));
                    }
                    for h in 0..H {
                        let q = part[h].bytes.add(8 * octet);
                        low[h][n] = dot::<S>(full, low[h][n], a, S::quad(q));
                        low[h][n] = dot::<S>(full, low[h][n], b, S::quad(q.add(4)));
                        if planes(BITS) == 2 {
                            let q = q.add(part[h].plane);
                            high[h][n] = dot::<S>(full, high[h][n], a, S::quad(q));
                            high[h][n] = dot::<S>(full, high[h][n], b, S::quad(q.add(4)));
                        }
                    }
                }
                codes = codes.add(row);
                coming = coming.wrapping_add(row);
            }
            for n in 0..N {
                let t = (tile + n) * LANES;
                let scales = place.scales::<S>(t);
                for h in 0..H {
                    let dot = combine::<S>(planes(BITS), low[h][n], high[h][n]);
                    place.put::<S>(&part[h], scales, dot, out.add(h * layout.tokens + t));
                }
            }
        }
        N
    }
}

/// The dot product that suits the codes' range.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd>(full: bool, acc: S::I, codes: S::B, q: S::Quad) -> S::I {
    // SAFETY: the tier is available.
    unsafe { if full { S::dot_full(acc, codes, q) } else { S::dot(acc, codes, q) } }
}

/// Both planes of a dot product as a float.
///
/// The low plane of a split number is stored as the low byte of a two's complement integer, which is what a signed
/// byte reads back.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn combine<S: Simd>(planes: usize, low: S::I, high: S::I) -> S::F {
    // SAFETY: the tier is available.
    unsafe { if planes == 2 { S::fma(S::to_f(high), S::splat(256.0), S::to_f(low)) } else { S::to_f(low) } }
}
