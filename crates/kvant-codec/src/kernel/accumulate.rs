//! Σ w·v over a page, from the packed codes, in the codec's basis.
//!
//! The token's scale folds into its weight; folded weights are rounded to signed bytes per page, head and group, and
//! meet units of sixteen channels and four tokens. What is left per channel and page is one multiply-add.

use super::round::{Rounded, planes, round_bytes};
use super::scores::{combine, dot, seen_centre};
use super::{MAX_TOKENS, by_heads, by_width, load_scales};
use crate::codec::Accumulator;
use crate::codec::scalar::ScalarCodec;
use crate::pack::unpack;
use crate::page::Span;
use crate::quant::Levels;
use crate::simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

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
/// `page` is a page of the codec's layout, `weights` is valid for heads · tokens floats, `sums` was made for this
/// codec; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd>(
    codec: &ScalarCodec,
    weights: *const f32,
    page: *const u8,
    sums: &mut Accumulator,
) {
    let mut head = 0;
    while head < sums.heads {
        // SAFETY: the caller's contract; every block stays below `heads`.
        unsafe {
            let weights = weights.add(head * codec.layout.tokens);
            head += by_heads!(S, sums.heads - head, block::<S>(codec, weights, page, sums, head));
        }
    }
}

#[inline(always)]
unsafe fn block<S: Simd, const H: usize>(
    codec: &ScalarCodec,
    weights: *const f32,
    page: *const u8,
    sums: &mut Accumulator,
    head: usize,
) -> usize {
    let layout = &codec.layout;
    let tokens = layout.tokens;
    let mut bytes = [[MaybeUninit::<i8>::uninit(); 2 * MAX_TOKENS]; H];
    let mut mass = [0.0f32; H];
    // SAFETY: weights and token arrays have `tokens` entries per row, a multiple of 16.
    unsafe {
        for (h, mass) in mass.iter_mut().enumerate() {
            let mut sum = S::splat(0.0);
            for t in (0..tokens).step_by(LANES) {
                sum = S::add(sum, S::load(weights.add(h * tokens + t)));
            }
            *mass = S::reduce_add(sum);
            sums.mass[head + h] += *mass;
        }
        // Weights are folded anew when the token scale or the number of bytes they are rounded to changes.
        let mut folded = None;
        let mut part = [Part::EMPTY; H];
        for (span, levels) in layout.spans.iter().zip(&codec.levels) {
            let wide = planes(u32::from(span.bits)) == 2;
            if folded != Some((span.group, wide)) {
                folded = Some((span.group, wide));
                for (h, part) in part.iter_mut().enumerate() {
                    let bytes = bytes[h].as_mut_ptr().cast();
                    let sums = sums.sums.as_mut_ptr().add((head + h) * sums.stride);
                    *part =
                        fold::<S>(codec, span, levels, weights.add(h * tokens), mass[h], page, bytes, sums);
                }
            }
            by_width!(S, levels, SpanSums::<S, H> { codec, span, levels, part: &part, page });
        }
    }
    H
}

/// w_t·s_t rounded to bytes, and the part that needs no codes.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "inlined into its only caller, once per head and group")]
unsafe fn fold<S: Simd>(
    codec: &ScalarCodec,
    span: &Span,
    levels: &Levels,
    weights: *const f32,
    mass: f32,
    page: *const u8,
    bytes: *mut i8,
    sums: *mut f32,
) -> Part {
    let layout = &codec.layout;
    let tokens = layout.tokens;
    let mut product = [MaybeUninit::<f32>::uninit(); MAX_TOKENS];
    let product = product.as_mut_ptr().cast::<f32>();
    let size = layout.format.bytes();
    let at = |r: &std::ops::Range<usize>| r.start + span.group * tokens * size;
    // SAFETY: token arrays have `tokens` entries per group.
    unsafe {
        let centre = S::splat(levels.centre() as f32);
        let mut top = S::splat(0.0);
        let mut offset = S::splat(0.0);
        for t in (0..tokens).step_by(LANES) {
            let weight = S::load(weights.add(t));
            let mut folded = weight;
            if let Some(scales) = &layout.token_scale {
                folded = S::mul(weight, load_scales::<S>(layout.format, page.add(at(scales) + t * size)));
            }
            if let Some(zeros) = &layout.token_zero {
                let zero = load_scales::<S>(layout.format, page.add(at(zeros) + t * size));
                offset = S::fma(folded, centre, S::fma(weight, zero, offset));
            }
            S::store(product.add(t), folded);
            top = S::max(top, S::abs(folded));
        }
        let top = S::reduce_max(top);
        let rounded = match planes(u32::from(span.bits)) {
            1 => round_bytes::<S, 1>(product, tokens, top, bytes, MAX_TOKENS),
            _ => round_bytes::<S, 2>(product, tokens, top, bytes, MAX_TOKENS),
        };
        let offset = if layout.token_zero.is_some() { S::reduce_add(offset) } else { 0.0 };
        Part { bytes, rounded, offset, mass, sums }
    }
}

/// All rows of sixteen channels of a span.
struct SpanSums<'a, S, const H: usize, const BITS: u32, const TABLE: bool> {
    codec: &'a ScalarCodec,
    span: &'a Span,
    levels: &'a Levels,
    part: &'a [Part; H],
    page: *const u8,
    simd: PhantomData<S>,
}

impl<S: Simd, const H: usize, const BITS: u32, const TABLE: bool> Work<S>
    for SpanSums<'_, S, H, BITS, TABLE>
{
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { span, levels, part, page, .. } = self;
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
            for row in 0..span.len / LANES {
                // The two vectors of a unit have sums of their own: two chains hide more latency than one.
                let mut low = [[S::izero(); 2]; H];
                let mut high = [[S::izero(); 2]; H];
                for octet in 0..units {
                    let (mut a, mut b) = unpack::<S, BITS>(codes);
                    codes = codes.add(unit);
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
                let array =
                    |r: &Range<usize>| load_scales::<S>(layout.format, page.add(r.start + channel * size));
                let scale = layout.channel_scale.as_ref().map(array);
                let zero = layout.channel_zero.as_ref().map(array);
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
