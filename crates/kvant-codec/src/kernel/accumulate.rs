//! Σ w·v over a page, from the packed codes, in the codec's basis.
//!
//! The token's scale folds into its weight; folded weights are rounded to signed bytes per page, head and group, and
//! meet units of sixteen channels and four tokens. What is left per channel and page is one multiply-add.

use super::round::{ONES, Rounded, multiply, planes, round_bytes, step};
use super::scores::{combine, dot, seen_centre};
use super::{MAX_TOKENS, Pages, by_heads, by_width, load_array, load_scales};
use crate::codec::Accumulator;
use crate::codec::scalar::ScalarCodec;
use crate::pack::unpack;
use crate::page::Span;
use crate::quant::Levels;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Spans whose weights are folded before their codes are read: folding is a chain of reductions, and several chains
/// run side by side.
const BATCH: usize = 4;

/// Folded and rounded weights of one head for one group of channels.
#[derive(Clone, Copy)]
struct Part {
    bytes: *const i8,
    rounded: Rounded,
    /// Added to every channel of the group: Σ w·(z + centre·s).
    offset: f32,
    /// Σ w, for channel zeros.
    mass: f32,
    /// Where the head's sums are.
    sums: *mut f32,
}

impl Part {
    const EMPTY: Part = Part {
        bytes: std::ptr::null(),
        rounded: Rounded { step: 0.0, sum: 0.0 },
        offset: 0.0,
        mass: 0.0,
        sums: std::ptr::null_mut(),
    };
}

/// Adds Σ w·v of the page for all heads.
///
/// # Safety
/// `pages.page` is a page of the codec's layout, `weights` is valid for heads · tokens floats, `sums` was made for this
/// codec; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd>(
    codec: &ScalarCodec,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
) {
    let mut head = 0;
    while head < sums.heads {
        // SAFETY: the caller's contract; every block stays below `heads`.
        unsafe {
            let weights = weights.add(head * codec.layout.tokens);
            head += by_heads!(S, sums.heads - head, block::<S>(codec, weights, pages, sums, head));
        }
    }
}

/// # Safety
/// As the kernel it is part of: pages and buffers have the sizes of the layout; the CPU has the tier.
#[inline(always)]
unsafe fn block<S: Simd, const H: usize>(
    codec: &ScalarCodec,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
    head: usize,
) -> usize {
    let layout = &codec.layout;
    let tokens = layout.tokens;
    let mut bytes = [[[MaybeUninit::<i8>::uninit(); 2 * MAX_TOKENS]; H]; BATCH];
    // SAFETY: weights and token arrays have `tokens` entries per row, a multiple of 16.
    unsafe {
        let mut totals = [S::splat(0.0); 4];
        for h in 0..H {
            for t in (0..tokens).step_by(LANES) {
                totals[h] = S::add(totals[h], S::load(weights.add(h * tokens + t)));
            }
        }
        let mass = S::reduce4_add(totals);
        for h in 0..H {
            sums.mass[head + h] += mass[h];
        }
        for (spans, levels) in layout.spans.chunks(BATCH).zip(codec.levels.chunks(BATCH)) {
            let mut parts = [[Part::EMPTY; H]; BATCH];
            for (i, (span, levels)) in spans.iter().zip(levels).enumerate() {
                let buffers = std::array::from_fn(|h| bytes[i][h].as_mut_ptr().cast());
                parts[i] = fold::<S, H>(codec, span, levels, weights, pages, buffers);
                for h in 0..H {
                    parts[i][h].mass = mass[h];
                    parts[i][h].sums = sums.sums.as_mut_ptr().add((head + h) * sums.stride);
                }
            }
            for (i, (span, levels)) in spans.iter().zip(levels).enumerate() {
                let (part, Pages { page, next }) = (&parts[i], pages);
                by_width!(S, levels, SpanSums::<S, H> { codec, span, levels, part, page, next });
            }
        }
    }
    H
}

/// w_t·s_t rounded to bytes for H heads, and the part that needs no codes.
///
/// # Safety
/// `weights` has H rows of `tokens` floats, `bytes` room for two planes; the CPU has the tier.
#[inline(always)]
unsafe fn fold<S: Simd, const H: usize>(
    codec: &ScalarCodec,
    span: &Span,
    levels: &Levels,
    weights: *const f32,
    pages: Pages,
    bytes: [*mut i8; H],
) -> [Part; H] {
    let Pages { page, next } = pages;
    let layout = &codec.layout;
    let (tokens, format) = (layout.tokens, layout.format);
    let mut converted = [MaybeUninit::<f32>::uninit(); MAX_TOKENS];
    let mut products = [[MaybeUninit::<f32>::uninit(); MAX_TOKENS]; H];
    let mut scales = ONES.as_ptr();
    let at = span.group * tokens * format.bytes();
    // SAFETY: token arrays have `tokens` entries per group.
    unsafe {
        if let Some(range) = &layout.token_scale {
            let floats = converted.as_mut_ptr().cast::<f32>();
            for line in (0..tokens * format.bytes()).step_by(64) {
                S::prefetch(next.wrapping_add(range.start + at + line));
            }
            for t in (0..tokens).step_by(LANES) {
                S::store(
                    floats.add(t),
                    load_scales::<S>(format, page.add(range.start + at + t * format.bytes())),
                );
            }
            scales = floats;
        }
        let planes = planes(u32::from(span.bits));
        let mut tops = [S::splat(0.0); 4];
        for h in 0..H {
            tops[h] = multiply::<S>(weights.add(h * tokens), scales, products[h].as_mut_ptr().cast(), tokens);
        }
        let steps = S::reduce4_max(tops).map(|top| step(top, planes));
        let mut integers = [S::splat(0.0); 4];
        for h in 0..H {
            let product = products[h].as_ptr().cast();
            integers[h] = match planes {
                1 => round_bytes::<S, 1>(product, tokens, steps[h].1, bytes[h], MAX_TOKENS),
                _ => round_bytes::<S, 2>(product, tokens, steps[h].1, bytes[h], MAX_TOKENS),
            };
        }
        let integers = S::reduce4_add(integers);
        let mut offsets = [0.0; 4];
        if let Some(range) = &layout.token_zero {
            let mut partial = [S::splat(0.0); 4];
            let centre = S::splat(levels.centre() as f32);
            for t in (0..tokens).step_by(LANES) {
                let zero = load_scales::<S>(format, page.add(range.start + at + t * format.bytes()));
                let offset = S::fma(S::load(scales.add(t)), centre, zero);
                for h in 0..H {
                    partial[h] = S::fma(S::load(weights.add(h * tokens + t)), offset, partial[h]);
                }
            }
            offsets = S::reduce4_add(partial);
        }
        let mut parts = [Part::EMPTY; H];
        for h in 0..H {
            parts[h].bytes = bytes[h];
            parts[h].rounded = Rounded { step: steps[h].0, sum: integers[h] };
            parts[h].offset = offsets[h];
        }
        parts
    }
}

/// All rows of sixteen channels of a span.
struct SpanSums<'a, S, const H: usize, const BITS: u32, const TABLE: bool> {
    codec: &'a ScalarCodec,
    span: &'a Span,
    levels: &'a Levels,
    part: &'a [Part; H],
    page: *const u8,
    next: *const u8,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> Work<S>
    for SpanSums<'_, S, H, BITS, TABLE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { span, levels, part, page, next, .. } = self;
        let layout = &self.codec.layout;
        let unit = 16 * BITS as usize;
        let units = layout.tokens / 8;
        let full = TABLE || BITS == 8;
        let size = layout.format.bytes();
        // SAFETY: a span's rows lie within the page; `sums` has padded rows; channel arrays are padded to 16 on this
        // side.
        unsafe {
            let table = S::table(&levels.table);
            let seen = seen_centre::<S>(levels) as f32;
            let mut codes = page.add(span.codes);
            let mut coming = next.wrapping_add(span.codes);
            for row in 0..span.len / LANES {
                // The two vectors of a unit have sums of their own: two chains hide more latency than one.
                let mut low = [[S::izero(); 2]; H];
                let mut high = [[S::izero(); 2]; H];
                for octet in 0..units {
                    let (mut a, mut b) = unpack::<S, BITS>(codes);
                    codes = codes.add(unit);
                    S::prefetch(coming);
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
                let channel = span.first + LANES * row;
                let scale = load_array::<S>(layout.format, page, &layout.channel_scale, channel * size);
                let zero = load_array::<S>(layout.format, page, &layout.channel_zero, channel * size);
                for h in 0..H {
                    let dot =
                        combine::<S, BITS>(S::iadd(low[h][0], low[h][1]), S::iadd(high[h][0], high[h][1]));
                    let rounded = part[h].rounded;
                    let mut sum = S::mul(S::sub(dot, S::splat(rounded.sum * seen)), S::splat(rounded.step));
                    if let Some(scale) = scale {
                        if zero.is_some() {
                            // s·(c − centre) + (z + centre·s): the centre comes back with the exact mass.
                            sum = S::add(sum, S::splat(part[h].mass * levels.centre() as f32));
                        }
                        sum = S::mul(sum, scale);
                    }
                    if let Some(zero) = zero {
                        sum = S::fma(zero, S::splat(part[h].mass), sum);
                    }
                    let p = part[h].sums.add(channel);
                    S::store(p, S::add(S::load(p), S::add(sum, S::splat(part[h].offset))));
                }
            }
        }
    }
}
