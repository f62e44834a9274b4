//! Σ w·v over a page, from the packed codes, in the codec's basis.
//!
//! The mirror image of `scores`. There a sum runs over channels, and what belongs to a channel folds into the query. Here it runs over
//! tokens, and what belongs to a token folds into its weight: with a scale s and a zero z of the token, and the centre m of the codes u,
//!
//! ```text
//! Σ w·(s·u + z)  =  Σ (w·s)·(u − m)  +  Σ w·(z + m·s)
//!                   integers             one number for all channels of a group
//! ```
//!
//! # Three tricks
//!
//! **Weights become bytes, page by page.** w·s is rounded to step · r by the largest of the page. A weight is never negative, and most are
//! tiny; where a page holds nothing that matters its step is tiny too, so rounding adds at most 1/254 of the page's own
//! largest w·s to a term.
//!
//! **Lanes are channels.** A unit has eight tokens of sixteen channels. A lane adds up its channel, and the sum of a page goes into the
//! accumulator by one multiply-add for sixteen channels. Its two vectors have a chain of sums each: the dot product takes several cycles, and one
//! chain would wait for itself.
//!
//! **The change of basis waits.** Codes lie in the codec's basis (a rotation, say). Σ w·Rv = R·Σ w·v, so the accumulator stays in that basis,
//! and `finish` goes back once a step, however many pages there were. The sum of the weights is kept beside it (`denominator`): a mean that the
//! codec took off comes back as `denominator` times the mean.
//!
//! # An example
//!
//! Three tokens of one channel, four bits, no zeros: w = (0.5, 0.3, 0.2), s = (2, 1, 4), u = (9, 4, 7). With m = 8 the values are
//! 2·1, 1·(−4) and 4·(−1), and the sum is 1 − 1.2 − 0.8 = −1.
//!
//! ```text
//! fold     w·s = (1, 0.3, 0.8)         step = 1/127, r = (127, 38, 102)
//! centre   8 · Σ r = 8 · 267 = 2136    once per page and head
//! loop     Σ r·u = 1143 + 152 + 714 = 2009
//! sum      step · (2009 − 2136) = −127/127 = −1.000
//! ```
//!
//! The roundings −0.1 and +0.4 of the integers, times the levels −4 and −1, happen to cancel here; in general they do not.
//!
//! # The trade-off
//!
//! Groups of channels with scales of their own (`rot4g32`) fold and round the same weights once per group, which is why weights of up to four
//! spans are folded before the first code is read: folding is a chain of reductions, and four of them run side by side. Channel scales
//! (`chg`), which fold into nothing here, cost one multiplication per channel and page at the end.

use super::block::{BATCH, BlockSums, Heads, Room, TILES};
use super::round::{self, Folded, ONES, planes};
use super::scores::{combine, dot, seen_centre};
use super::{Accumulator, Pages, by_heads, by_width, load_array, load_scales, prefetch_lines};
use crate::format::{MAX_TOKENS, PackedFormat, Span};
use crate::pack::unpack;
use kvant_simd::{LANES, MatrixUnit, OCTET, ROWS, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Spans whose weights are folded before their codes are read.
const SPANS: usize = 4;

/// Folded and rounded weights of one head for one group of channels.
#[derive(Clone, Copy)]
struct WeightPart {
    bytes: *const i8,
    /// One unit of the integers.
    step: f32,
    /// What the centre of the codes adds to every dot product.
    centre: f32,
    /// Added to every channel of the group: Σ w·(z + centre·s).
    offset: f32,
    /// Σ w, for channel zeros.
    denominator: f32,
    /// Where the head's sums are.
    sums: *mut f32,
}

/// Adds Σ w·v of the page for all heads.
///
/// # Safety
/// `pages.page` is a page of the format, `weights` is valid for heads · tokens floats, `sums` was made for its dimension;
/// the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd>(
    format: &PackedFormat,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
) {
    let tokens = format.tokens;
    let held = SPANS.min(format.spans.len()) * BATCH.min(sums.heads) * 2 * MAX_TOKENS;
    // SAFETY: the caller's contract; a value's sums run over all tokens of the page, whatever the span.
    let mut room = unsafe { Room::new::<S>(format, None, held, sums.heads, pages) };
    let blocks = format.spans.first().is_some_and(|span| room.codes(format, span).is_some());
    if blocks {
        // SAFETY: the unit is there.
        unsafe { S::Matrix::begin(tokens / 8) };
    }
    for first in (0..sums.heads).step_by(BATCH) {
        let count = BATCH.min(sums.heads - first);
        // SAFETY: the caller's contract; heads first .. first + count exist, weights and token arrays have `tokens`
        // entries per row, a multiple of 16, and there is room for two planes of a page for every head and span.
        unsafe {
            let weights = weights.add(first * tokens);
            let denominator = denominators::<S>(weights, tokens, count);
            for h in 0..count {
                sums.denominator[first + h] += denominator[h];
            }
            for spans in format.spans.chunks(SPANS) {
                let mut parts = [[const { MaybeUninit::<WeightPart>::uninit() }; BATCH]; SPANS];
                for (i, span) in spans.iter().enumerate() {
                    let mut scales = [MaybeUninit::<f32>::uninit(); MAX_TOKENS];
                    let scales = load_token_scales::<S>(format, span, pages, &mut scales);
                    let mut at = 0;
                    while at < count {
                        let fold = WeightFold {
                            format,
                            span,
                            page: pages.page,
                            scales,
                            weights: weights.add(at * tokens),
                            denominator: denominator.as_ptr().add(at),
                            sums: sums.sums.as_mut_ptr().add((first + at) * sums.stride),
                            stride: sums.stride,
                        };
                        let bytes = room.bytes().add((i * count + at) * 2 * MAX_TOKENS);
                        let part = parts[i].as_mut_ptr().cast::<WeightPart>().add(at);
                        at += by_heads!(S, count - at, fold_block::<S>(&fold, bytes, part));
                    }
                }
                for (i, span) in spans.iter().enumerate() {
                    let parts = parts[i].as_ptr().cast::<WeightPart>();
                    let place = Place { format, span, pages };
                    let mut at = 0;
                    if let Some(codes) = room.codes(format, span) {
                        let parts = std::slice::from_raw_parts(parts, count / ROWS * ROWS);
                        block_sums::<S>(&place, parts, codes, room.sums());
                        at = parts.len();
                    }
                    while at < count {
                        at += by_heads!(S, count - at, span_block::<S>(&place, parts.add(at)));
                    }
                }
            }
        }
    }
    if blocks {
        // SAFETY: it has begun.
        unsafe { S::Matrix::end() };
    }
}

/// Σ w of every head.
///
/// # Safety
/// `weights` has `count` rows of `tokens` floats; the CPU has the tier.
#[inline(always)]
unsafe fn denominators<S: Simd>(weights: *const f32, tokens: usize, count: usize) -> [f32; BATCH] {
    let mut denominator = [0.0; BATCH];
    for first in (0..count).step_by(4) {
        let heads = 4.min(count - first);
        // SAFETY: the caller's rows.
        unsafe {
            let mut totals = [S::splat(0.0); 4];
            for h in 0..heads {
                for t in (0..tokens).step_by(LANES) {
                    totals[h] = S::add(totals[h], S::load(weights.add((first + h) * tokens + t)));
                }
            }
            denominator[first..first + heads].copy_from_slice(&S::reduce4_add(totals)[..heads]);
        }
    }
    denominator
}

/// The token scales of a span's group as floats, or ones.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
#[inline(always)]
unsafe fn load_token_scales<S: Simd>(
    format: &PackedFormat,
    span: &Span,
    pages: Pages,
    converted: &mut [MaybeUninit<f32>; MAX_TOKENS],
) -> *const f32 {
    let (tokens, scales) = (format.tokens, format.scales);
    let Some(range) = &format.token_scale else { return ONES.as_ptr() };
    let at = range.start + span.group * tokens * scales.bytes();
    let floats = converted.as_mut_ptr().cast::<f32>();
    // SAFETY: token arrays have `tokens` entries per group.
    unsafe {
        prefetch_lines::<S>(tokens * scales.bytes(), pages.next.wrapping_add(at));
        for t in (0..tokens).step_by(LANES) {
            S::store(floats.add(t), load_scales::<S>(scales, pages.page.add(at + t * scales.bytes())));
        }
    }
    floats
}

/// What folding a block of heads needs to know.
struct WeightFold<'a> {
    format: &'a PackedFormat,
    span: &'a Span,
    page: *const u8,
    /// (tokens).
    scales: *const f32,
    /// (heads, tokens).
    weights: *const f32,
    /// (heads): Σ w.
    denominator: *const f32,
    /// The first head's sums, the next `stride` on.
    sums: *mut f32,
    stride: usize,
}

/// w_t·s_t rounded to bytes for H heads, and the part that needs no codes.
///
/// # Safety
/// Weights, denominators and sums are there for H heads, `bytes` has room for two planes of each, `parts` for H; the CPU has the
/// tier.
#[inline(always)]
unsafe fn fold_block<S: Simd, const H: usize>(
    fold: &WeightFold<'_>,
    bytes: *mut i8,
    parts: *mut WeightPart,
) -> usize {
    let WeightFold { format, span, page, scales, weights, .. } = *fold;
    let (tokens, stored) = (format.tokens, format.scales);
    let at = span.group * tokens * stored.bytes();
    // SAFETY: token arrays have `tokens` entries per group.
    unsafe {
        let row = |h: usize| weights.add(h * tokens);
        let Folded { steps, sums } =
            round::fold::<S, H>(row, scales, tokens, u32::from(span.bits), bytes, MAX_TOKENS);
        let integers = S::reduce4_add(sums);
        let centre = seen_centre::<S>(span) as f32;
        let mut offsets = [0.0; 4];
        if let Some(range) = &format.token_zero {
            let mut partial = [S::splat(0.0); 4];
            let centre = S::splat(span.centre() as f32);
            for t in (0..tokens).step_by(LANES) {
                let zero = load_scales::<S>(stored, page.add(range.start + at + t * stored.bytes()));
                let offset = S::fma(S::load(scales.add(t)), centre, zero);
                for h in 0..H {
                    partial[h] = S::fma(S::load(weights.add(h * tokens + t)), offset, partial[h]);
                }
            }
            offsets = S::reduce4_add(partial);
        }
        for h in 0..H {
            parts.add(h).write(WeightPart {
                bytes: bytes.add(h * 2 * MAX_TOKENS),
                step: steps[h],
                centre: integers[h] * centre,
                offset: offsets[h],
                denominator: *fold.denominator.add(h),
                sums: fold.sums.add(h * fold.stride),
            });
        }
    }
    H
}

/// What a block of heads reads.
struct Place<'a> {
    format: &'a PackedFormat,
    span: &'a Span,
    pages: Pages,
}

/// Scales and zeros of sixteen channels, as far as a page has them.
#[derive(Clone, Copy)]
struct LaneScales<F> {
    first: usize,
    scale: Option<F>,
    zero: Option<F>,
}

impl Place<'_> {
    /// # Safety
    /// As the kernel it is part of; `row` counts sixteen channels of the span.
    #[inline(always)]
    unsafe fn channels<S: Simd>(&self, row: usize) -> LaneScales<S::F> {
        let format = self.format;
        let first = self.span.first + LANES * row;
        let at = first * format.scales.bytes();
        // SAFETY: channel arrays are padded to sixteen on this side.
        unsafe {
            LaneScales {
                first,
                scale: load_array::<S>(format.scales, self.pages.page, &format.channel_scale, at),
                zero: load_array::<S>(format.scales, self.pages.page, &format.channel_zero, at),
            }
        }
    }

    /// Adds a head's dot products with sixteen channels to its sums.
    ///
    /// # Safety
    /// The part is of this span; the CPU has the tier.
    #[inline(always)]
    unsafe fn put<S: Simd>(&self, part: &WeightPart, channels: LaneScales<S::F>, dot: S::F) {
        let format = self.format;
        // SAFETY: `sums` has padded rows.
        unsafe {
            let p = part.sums.add(channels.first);
            // Of one plane both are integers that a float holds: nothing is rounded here.
            let dot = S::sub(dot, S::splat(part.centre));
            if format.channel_scale.is_none() && format.token_zero.is_none() {
                // Nothing but the step is left to be done.
                S::store(p, S::fma(dot, S::splat(part.step), S::load(p)));
                return;
            }
            let mut sum = S::mul(dot, S::splat(part.step));
            if let Some(scale) = channels.scale {
                if channels.zero.is_some() {
                    // s·(c − centre) + (z + centre·s): the centre comes back with the exact denominator.
                    sum = S::add(sum, S::splat(part.denominator * self.span.centre() as f32));
                }
                sum = S::mul(sum, scale);
            }
            if let Some(zero) = channels.zero {
                sum = S::fma(zero, S::splat(part.denominator), sum);
            }
            S::store(p, S::add(S::load(p), S::add(sum, S::splat(part.offset))));
        }
    }
}

/// The sums of a multiple of sixteen heads, by the unit for blocks.
///
/// # Safety
/// As the kernel it is part of; `codes` are the span's, and the unit has begun.
#[inline(always)]
unsafe fn block_sums<S: Simd>(place: &Place<'_>, parts: &[WeightPart], codes: *const u8, sums: BlockSums) {
    let Some(head) = parts.first() else { return };
    let (planes, octets) = (planes(u32::from(place.span.bits)), place.format.tokens / 8);
    let rows = place.span.len / LANES;
    let heads = Heads { bytes: head.bytes, stride: 2 * MAX_TOKENS, plane: MAX_TOKENS };
    for first in (0..rows).step_by(TILES) {
        let count = TILES.min(rows - first);
        // SAFETY: rows first .. first + count are of the span.
        unsafe {
            sums.multiply::<S>(planes, heads, parts.len(), codes.add(first * octets * OCTET), octets, count);
            for row in 0..count {
                let channels = place.channels::<S>(first + row);
                for (h, part) in parts.iter().enumerate() {
                    let (low, high) = sums.of::<S>(planes, h, row);
                    place.put::<S>(part, channels, combine::<S>(planes, low, high));
                }
            }
        }
    }
}

/// # Safety
/// As the kernel it is part of, for H parts.
#[inline(always)]
unsafe fn span_block<S: Simd, const H: usize>(place: &Place<'_>, parts: *const WeightPart) -> usize {
    // SAFETY: the span's rows lie within the page, and every part has bytes for all its tokens.
    unsafe {
        let part: &[WeightPart; H] = &*parts.cast();
        by_width!(S, place.span, SpanSums::<S, H> { place, part });
    }
    H
}

/// All rows of sixteen channels of a span.
struct SpanSums<'a, S, const H: usize, const BITS: u32, const TABLE: bool> {
    place: &'a Place<'a>,
    part: &'a [WeightPart; H],
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> Work<S>
    for SpanSums<'_, S, H, BITS, TABLE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { place, part, .. } = self;
        let Place { format, span, pages: Pages { page, next } } = *place;
        let unit = 16 * BITS as usize;
        let units = format.tokens / 8;
        let full = TABLE || BITS == 8;
        // SAFETY: a span's rows lie within the page; the rest is the caller's contract.
        unsafe {
            let table = S::table(span.meaning.table());
            let mut codes = page.add(span.codes);
            let mut coming = next.wrapping_add(span.codes);
            for row in 0..span.len / LANES {
                // The two vectors of a unit have sums of their own: two chains hide more latency than one.
                let mut low = [[S::izero(); 2]; H];
                let mut high = [[S::izero(); 2]; H];
                for octet in 0..units {
                    let (mut a, mut b) = unpack::<S, BITS>(codes);
                    codes = codes.add(unit);
                    prefetch_lines::<S>(unit, coming);
                    coming = coming.wrapping_add(unit);
                    if TABLE {
                        (a, b) = (S::lookup::<BITS>(table, a), S::lookup::<BITS>(table, b));
                    }
                    for h in 0..H {
                        let w = part[h].bytes.add(8 * octet);
                        low[h][0] = dot::<S>(full, low[h][0], a, S::quad(w));
                        low[h][1] = dot::<S>(full, low[h][1], b, S::quad(w.add(4)));
                        if planes(BITS) == 2 {
                            let w = w.add(MAX_TOKENS);
                            high[h][0] = dot::<S>(full, high[h][0], a, S::quad(w));
                            high[h][1] = dot::<S>(full, high[h][1], b, S::quad(w.add(4)));
                        }
                    }
                }
                let channels = place.channels::<S>(row);
                for h in 0..H {
                    let (low, high) = (S::iadd(low[h][0], low[h][1]), S::iadd(high[h][0], high[h][1]));
                    place.put::<S>(&part[h], channels, combine::<S>(planes(BITS), low, high));
                }
            }
        }
    }
}
