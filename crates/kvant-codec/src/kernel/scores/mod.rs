//! q·k for every token of a page, from the packed codes.
//!
//! A decoded key is never made. A code u of channel c stands for s·u + z with a scale and a zero of the channel and page, so with the
//! centre m of the codes (8 for four bits), a sum over channels is
//!
//! ```text
//! Σ q·(s·u + z)  =  Σ (q·s)·(u − m)  +  Σ q·(z + m·s)
//!                   integers             once per page and head, no codes
//! ```
//!
//! # Four tricks
//!
//! **Scales move to the query.** q·s is made once per page and head: d products in place of d · tokens. Where pages have no channel scales
//! there is nothing to fold, and the query is rounded once per step instead.
//!
//! **The folded query becomes bytes.** q·s is rounded to step · r, with r from −127 to 127, so that the loop is the processor's dot
//! product of unsigned with signed bytes: 64 products an instruction with AVX-512 VNNI. Against codes of five bits and more a byte is too
//! coarse: then r has two bytes in two *planes*, and the loop runs twice (`round.rs` has the figures).
//!
//! **The exact query meets what is not centred.** Only u − m, which is small, meets the rounded query. The offset z + m·s, which is large where
//! keys have a mean, meets q itself. The loop multiplies r with u as it is stored, and m · Σ r is taken off at the end.
//!
//! **Lanes are tokens.** A unit has eight channels of sixteen tokens (`pack.rs`). A lane adds up its token's products, so a score needs no
//! sum across lanes, and a code that was unpacked meets up to four heads before the next is loaded.
//!
//! # An example
//!
//! Two channels of one token in four bits: q = (2, −1), s = (0.5, 0.25), z = (−3, 1), u = (10, 3). The key is (2, 1.75) and q·k = 2.25.
//!
//! ```text
//! fold     q·s = (1, −0.25)            step = 1/127, r = (127, −32)
//! base     Σ q·(z + 8·s) = 2·1 − 1·3 = −1,  and  −8 · step · Σ r = −8 · 95/127 = −5.984
//! loop     Σ r·u = 1270 − 96 = 1174    the only part that depends on the token
//! score    step · 1174 + base = 9.244 − 6.984 = 2.260
//! ```
//!
//! The error, 0.010, is that of rounding −31.75 to −32, times the centred code −5.
//!
//! # The trade-off
//!
//! Folding costs as much as a few tokens do, and pays because a page has many, mostly 64. Each page rounds the query anew, by its own largest
//! |q·s|: more work than one rounding a step, and much less error, because one loud channel of one page spoils no other page. With sixteen
//! heads and more the integer sums are made by the processor's unit for blocks ([`block`]); what comes before and after is the same code, so
//! a head has the same bits alone and among many.
//!
//! `mixed_width` joins spans of several widths under one step; `row_major` scores pages of values, which latents are.

mod batch;
mod fold;
pub(super) mod mixed_width;
mod row_major;

pub(super) use row_major::scores as row_major_scores;

use super::block::{self, BATCH, BlockSums, Heads, Room};
use super::round::planes;
use super::{MixedWidth, Pages, Query, by_width, load_array, prefetch_lines};
use crate::format::{CodeMeaning, PackedFormat, Span};
use crate::pack::unpack;
use batch::{Part, Scoring};
use fold::{QueryFold, SpanScales, fold_block};
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// `pages.page` is a page of the format, `out` is valid for heads · tokens floats, the query was prepared for this format;
/// the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(
    format: &PackedFormat,
    joined: Option<&MixedWidth>,
    query: &Query,
    pages: Pages,
    out: *mut f32,
) {
    if let Some(joined) = joined {
        // SAFETY: the caller's contract.
        return unsafe { mixed_width::scores::<S>(format, joined, query, pages, out) };
    }
    let folded = format.channel_scale.is_some();
    let mut channels = SpanScales::new();
    // SAFETY: the caller's contract; the bytes hold two planes of a span for every head of a batch.
    unsafe {
        let plane = format.coded.next_multiple_of(LANES);
        let held = if folded { BATCH.min(query.heads) * 2 * plane } else { 0 };
        let mut room = Room::new::<S>(format, None, held, query.heads, pages);
        for (index, span) in format.spans.iter().enumerate() {
            if folded {
                channels.load::<S>(format, span, 0, pages);
            }
            let channels = folded.then_some(&channels);
            let spanwise = Spanwise { format, query, span, index, channels, pages };
            let codes = room.codes(format, span);
            batch::scores::<S>(&spanwise, query.heads, &mut room, codes, out);
        }
        for head in 0..query.heads {
            let bias = query.bias[head];
            if bias != 0.0 || format.spans.is_empty() {
                let out = out.add(head * format.tokens);
                add_bias::<S>(out, format.tokens, bias, format.spans.is_empty());
            }
        }
    }
}

/// One span of a page, for some queries.
struct Spanwise<'a> {
    format: &'a PackedFormat,
    query: &'a Query,
    span: &'a Span,
    /// Of the span.
    index: usize,
    /// The page's channel scales, where it has some to be folded in.
    channels: Option<&'a SpanScales>,
    pages: Pages,
}

impl<S: Simd> Scoring<S> for Spanwise<'_> {
    #[inline(always)]
    fn tokens(&self) -> usize {
        self.format.tokens
    }

    #[inline(always)]
    fn octets(&self) -> usize {
        block::octets(self.format, self.span)
    }

    #[inline(always)]
    fn plane(&self) -> usize {
        self.span.len.next_multiple_of(LANES)
    }

    #[inline(always)]
    unsafe fn fold<const H: usize>(&self, head: usize, bytes: *mut i8, parts: *mut Part) -> usize {
        let Spanwise { format, query, span, .. } = *self;
        // SAFETY: the caller's contract.
        unsafe {
            let Some(channels) = self.channels else {
                for h in 0..H {
                    parts.add(h).write(self.prepared::<S>(head + h));
                }
                return H;
            };
            let plane = Scoring::<S>::plane(self);
            let fold = QueryFold { format, query, span, channels, at: 0, len: plane, plane };
            fold_block::<S, H>(&fold, head, bytes, parts)
        }
    }

    #[inline(always)]
    unsafe fn multiply<const H: usize>(&self, parts: *const Part, out: *mut f32) -> usize {
        let place = self;
        // SAFETY: the span's rows lie within the page, and every part has bytes for all its channels.
        unsafe {
            let part: &[Part; H] = &*parts.cast();
            by_width!(S, self.span, SpanScores::<S, H> { place, part, out });
        }
        H
    }

    #[inline(always)]
    unsafe fn multiply_blocks(&self, parts: &[Part], codes: *const u8, sums: BlockSums, out: *mut f32) {
        let [first, second, ..] = parts else { return };
        let (tokens, octets) = (self.format.tokens, block::octets(self.format, self.span));
        let planes = planes(u32::from(self.span.bits));
        // SAFETY: a page has at most `TILES` tiles of tokens; the rest is the caller's contract.
        unsafe {
            let stride = second.bytes.offset_from_unsigned(first.bytes);
            let heads = Heads { bytes: first.bytes, stride, plane: first.plane };
            sums.multiply::<S>(planes, heads, parts.len(), codes, octets, tokens / LANES);
            for tile in 0..tokens / LANES {
                let scales = self.scales::<S>(tile * LANES);
                for h in 0..parts.len() {
                    let (low, high) = sums.of::<S>(planes, h, tile);
                    let dot = combine::<S>(planes, low, high);
                    self.put::<S>(&parts[h], scales, dot, out.add(h * tokens + tile * LANES));
                }
            }
        }
    }
}

impl Spanwise<'_> {
    /// The bytes of a head as they were prepared, where no page has scales to be folded in.
    #[inline(always)]
    fn prepared<S: Simd>(&self, head: usize) -> Part {
        let Spanwise { format, query, span, index, .. } = *self;
        let prepared = query.span(head, index, format.spans.len());
        let centre = f64::from(seen_centre::<S>(span)) as f32;
        // An asymmetric code c stands for s·c + z, so the centre is not taken away but given back.
        let back = if span.meaning == CodeMeaning::WithZero {
            span.centre() as f32 * prepared.exact_sum
        } else {
            0.0
        };
        Part {
            bytes: query.bytes_of(head, span.first),
            plane: query.plane(),
            step: prepared.rounded.step,
            base: back - prepared.rounded.step * prepared.rounded.sum * centre,
            zero: prepared.exact_sum,
        }
    }

    /// Scales and zeros of sixteen tokens.
    ///
    /// # Safety
    /// As the kernel it is part of; there are sixteen tokens from `t` on.
    #[inline(always)]
    unsafe fn scales<S: Simd>(&self, t: usize) -> (Option<S::F>, Option<S::F>) {
        let format = self.format;
        let at = (self.span.group * format.tokens + t) * format.scales.bytes();
        // SAFETY: the caller's contract.
        unsafe {
            (
                load_array::<S>(format.scales, self.pages.page, &format.token_scale, at),
                load_array::<S>(format.scales, self.pages.page, &format.token_zero, at),
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
            S::store(out, if self.index == 0 { score } else { S::add(S::load(out), score) });
        }
    }
}

/// What was added to a level to make the byte that the dot product reads.
#[inline(always)]
pub(super) fn seen_centre<S: Simd>(span: &Span) -> i32 {
    if span.meaning.is_table() || span.bits == 8 { S::BYTE_CENTRE } else { span.centre() }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
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
    place: &'a Spanwise<'a>,
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
        let tiles = self.place.format.tokens / LANES;
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
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    unsafe fn tiles<const N: usize>(&self, tile: usize) -> usize {
        let Self { place, part, out, .. } = self;
        let Spanwise { format, span, pages: Pages { page, next }, .. } = **place;
        let unit = 16 * BITS as usize;
        let row = format.tokens / LANES * unit;
        let full = TABLE || BITS == 8;
        // SAFETY: units tile..tile+N of every row lie within the page; bytes exist for all channels of the span; token
        // arrays and `out` have `tokens` entries per row.
        unsafe {
            let table = S::table(span.meaning.table());
            let mut low = [[S::izero(); N]; H];
            let mut high = [[S::izero(); N]; H];
            let mut codes = page.add(span.codes + tile * unit);
            let mut coming = next.wrapping_add(span.codes + tile * unit);
            for octet in 0..span.len / 8 {
                for n in 0..N {
                    prefetch_lines::<S>(unit, coming.wrapping_add(n * unit));
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
                    place.put::<S>(&part[h], scales, dot, out.add(h * format.tokens + t));
                }
            }
        }
        N
    }
}

/// The dot product that suits the codes' range.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
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
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
pub(super) unsafe fn combine<S: Simd>(planes: usize, low: S::I, high: S::I) -> S::F {
    // SAFETY: the tier is available.
    unsafe { if planes == 2 { S::fma(S::to_f(high), S::splat(256.0), S::to_f(low)) } else { S::to_f(low) } }
}
