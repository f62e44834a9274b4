//! q·k for every token of a page, from the packed codes.
//!
//! A span of channels at a time: the query's bytes (folded with the page's channel scales, or prepared once when
//! there are none) meet units of sixteen tokens; what is left per token is one fused multiply-add with its scale.

use super::round::{self, Folded, planes};
use super::{MAX_DIM, Pages, by_heads, by_width, load_array, load_scales};
use crate::codec::Query;
use crate::codec::scalar::ScalarCodec;
use crate::pack::unpack;
use crate::page::Span;
use crate::quant::{Levels, Rule};
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Query heads that are folded before the codes are read: folding is a chain of reductions, and several chains run side
/// by side.
const BATCH: usize = 16;

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

/// A span's channel scales as floats, and what they add to every channel, zero + centre · scale.
struct Channels {
    scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    offsets: [MaybeUninit<f32>; MAX_DIM + LANES],
}

/// Scores of all heads of the query, (heads, tokens).
///
/// # Safety
/// `page` is a page of the codec's layout, `out` is valid for heads · tokens floats, the query was prepared by this
/// codec; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn scores<S: Simd>(codec: &ScalarCodec, query: &Query, pages: Pages, out: *mut f32) {
    let layout = &codec.layout;
    let folded = layout.channel_scale.is_some();
    let mut bytes = [MaybeUninit::<i8>::uninit(); BATCH * 2 * (MAX_DIM + LANES)];
    let mut channels = Channels {
        scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
        offsets: [MaybeUninit::uninit(); MAX_DIM + LANES],
    };
    // SAFETY: the caller's contract; every block of heads stays below `heads`, and the bytes hold two planes of a span
    // for every head of a batch.
    unsafe {
        for (index, span) in layout.spans.iter().enumerate() {
            let levels = &codec.levels[index];
            if folded {
                load_channels::<S>(codec, span, levels, pages, &mut channels);
            }
            let plane = span.len.next_multiple_of(LANES);
            for first in (0..query.heads).step_by(BATCH) {
                let count = BATCH.min(query.heads - first);
                let mut parts = [const { MaybeUninit::<Part>::uninit() }; BATCH];
                let mut at = 0;
                while folded && at < count {
                    let fold = Fold { codec, query, span, levels, channels: &channels, plane };
                    let bytes = bytes.as_mut_ptr().cast::<i8>().add(at * 2 * plane);
                    let parts = parts.as_mut_ptr().cast::<Part>().add(at);
                    at += by_heads!(S, count - at, fold_block::<S>(&fold, first + at, bytes, parts));
                }
                while at < count {
                    parts[at].write(prepared::<S>(codec, query, first + at, index));
                    at += 1;
                }
                let mut at = 0;
                while at < count {
                    let out = out.add((first + at) * layout.tokens);
                    let place = Place { codec, span, levels, pages, first: index == 0 };
                    let parts = parts.as_ptr().cast::<Part>().add(at);
                    at += by_heads!(S, count - at, span_block::<S>(&place, parts, out));
                }
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
    let Place { codec, span, levels, pages: Pages { page, next }, first } = *place;
    // SAFETY: the span's rows lie within the page, and every part has bytes for all its channels.
    unsafe {
        let part: &[Part; H] = &*parts.cast();
        by_width!(S, levels, SpanScores::<S, H> { codec, span, levels, part, page, next, out, first });
    }
    H
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

/// Reads the channel scales and zeros of a span.
///
/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn load_channels<S: Simd>(
    codec: &ScalarCodec,
    span: &Span,
    levels: &Levels,
    pages: Pages,
    channels: &mut Channels,
) {
    let Pages { page, next } = pages;
    let layout = &codec.layout;
    let len = span.len.next_multiple_of(LANES);
    let size = layout.format.bytes();
    let (scales, offsets) =
        (channels.scales.as_mut_ptr().cast::<f32>(), channels.offsets.as_mut_ptr().cast::<f32>());
    // SAFETY: a span's channel arrays lie within the page, and after them at least one unit of codes (32 bytes), so a
    // load of 16 that starts at the last 8 channels stays inside. The surplus lanes are zeroed before use.
    unsafe {
        let scale_at = page.add(layout.channel_scale.as_ref().map_or(0, |r| r.start) + span.first * size);
        for c in (0..len).step_by(LANES) {
            S::prefetch(next.wrapping_add(span.first * size + c * 2 * size));
            S::store(scales.add(c), load_scales::<S>(layout.format, scale_at.add(c * size)));
        }
        for c in span.len..len {
            *scales.add(c) = 0.0;
        }
        if let Some(zeros) = &layout.channel_zero {
            let zero_at = page.add(zeros.start + span.first * size);
            let centre = S::splat(levels.centre() as f32);
            for c in (0..len).step_by(LANES) {
                let zero = load_scales::<S>(layout.format, zero_at.add(c * size));
                S::store(offsets.add(c), S::fma(S::load(scales.add(c)), centre, zero));
            }
            for c in span.len..len {
                *offsets.add(c) = 0.0;
            }
        }
    }
}

/// What folding a block of heads needs to know.
struct Fold<'a> {
    codec: &'a ScalarCodec,
    query: &'a Query,
    span: &'a Span,
    levels: &'a Levels,
    channels: &'a Channels,
    /// Bytes of a plane: the span's channels, padded.
    plane: usize,
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
    let Fold { codec, query, span, levels, channels, plane } = *fold;
    let scales = channels.scales.as_ptr().cast::<f32>();
    let offsets = channels.offsets.as_ptr().cast::<f32>();
    let len = plane;
    // SAFETY: the channels were read for this span; the query has zeros up to a multiple of 16.
    unsafe {
        let row = |h: usize| query.floats_of(head + h).add(span.first);
        let Folded { steps, sums } =
            round::fold::<S, H>(row, scales, len, u32::from(span.bits), bytes, plane);
        let centre = seen_centre::<S>(levels) as f32;
        let mut bases = [S::splat(0.0); 4];
        for h in 0..H {
            let q = row(h);
            bases[h] = S::mul(sums[h], S::splat(-steps[h] * centre));
            if codec.layout.channel_zero.is_some() {
                for c in (0..len).step_by(LANES) {
                    bases[h] = S::fma(S::load(q.add(c)), S::load(offsets.add(c)), bases[h]);
                }
            }
        }
        let bases = S::reduce4_add(bases);
        for h in 0..H {
            let bytes = bytes.add(h * 2 * plane).cast_const();
            parts.add(h).write(Part { bytes, plane, step: steps[h], base: bases[h], zero: 0.0 });
        }
    }
    H
}

/// Dot products of one span and what follows from them, added to `out` (or written, for the first span).
struct SpanScores<'a, S, const H: usize, const BITS: u32, const TABLE: bool> {
    codec: &'a ScalarCodec,
    span: &'a Span,
    levels: &'a Levels,
    part: &'a [Part; H],
    page: *const u8,
    next: *const u8,
    out: *mut f32,
    first: bool,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> Work<S>
    for SpanScores<'_, S, H, BITS, TABLE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let tiles = self.codec.layout.tokens / LANES;
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
        let Self { span, part, page, next, .. } = self;
        let layout = &self.codec.layout;
        let unit = 16 * BITS as usize;
        let row = layout.tokens / LANES * unit;
        let full = TABLE || BITS == 8;
        // SAFETY: units tile..tile+N of every row lie within the page; bytes exist for all channels of the span; token
        // arrays and `out` have `tokens` entries per row.
        unsafe {
            let table = S::table(&self.levels.table);
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
                let at = (span.group * layout.tokens + t) * layout.format.bytes();
                let scale = load_array::<S>(layout.format, *page, &layout.token_scale, at);
                let zero = load_array::<S>(layout.format, *page, &layout.token_zero, at);
                for h in 0..H {
                    let dot = combine::<S, BITS>(low[h][n], high[h][n]);
                    let mut score = S::fma(dot, S::splat(part[h].step), S::splat(part[h].base));
                    if let Some(scale) = scale {
                        score = S::mul(score, scale);
                    }
                    if let Some(zero) = zero {
                        score = S::fma(zero, S::splat(part[h].zero), score);
                    }
                    let p = self.out.add(h * layout.tokens + t);
                    S::store(p, if self.first { score } else { S::add(S::load(p), score) });
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
pub(super) unsafe fn combine<S: Simd, const BITS: u32>(low: S::I, high: S::I) -> S::F {
    // SAFETY: the tier is available.
    unsafe {
        if planes(BITS) == 2 { S::fma(S::to_f(high), S::splat(256.0), S::to_f(low)) } else { S::to_f(low) }
    }
}
