//! Σ w·v of a few heads.

use super::{HEADS, Lines, TOKENS, row, start, unit};
use crate::format::{PackedFormat, Span};
use crate::kernel::round::{self, Folded, planes};
use crate::kernel::scores::{combine, dot, seen_centre};
use crate::kernel::{Accumulator, Pages, by_heads, prefetch_lines};
use crate::pack::unpack;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Spans whose weights are folded before their codes are read.
const SPANS: usize = 4;

/// Adds Σ w·v of the page for all heads.
///
/// # Safety
/// As [`crate::kernel::accumulate::accumulate`], for a format of values that [suits](super::suit).
#[inline(always)]
pub(crate) unsafe fn accumulate<S: Simd>(
    format: &PackedFormat,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
) {
    let mut at = 0;
    while at < sums.heads {
        // SAFETY: heads from `at` on are there.
        unsafe {
            let (left, weights) = (sums.heads - at, weights.add(at * TOKENS));
            at += by_heads!(S, left, sum_up::<S>(format, weights, pages, sums, at));
        }
    }
}

/// # Safety
/// As [`accumulate`], for H heads.
#[inline(always)]
unsafe fn sum_up<S: Simd, const H: usize>(
    format: &PackedFormat,
    weights: *const f32,
    pages: Pages,
    sums: &mut Accumulator,
    head: usize,
) -> usize {
    let (to, stride, simd) = (sums.sums[head * sums.stride..].as_mut_ptr(), sums.stride, PhantomData);
    let denominator = &mut sums.denominator[head..head + H];
    // SAFETY: the caller's contract.
    unsafe {
        match format.spans[0].bits {
            4 => S::call(HeadSums::<S, H, 4> { format, weights, pages, to, stride, denominator, simd }),
            _ => S::call(HeadSums::<S, H, 8> { format, weights, pages, to, stride, denominator, simd }),
        }
    }
    H
}

/// The sums of H heads.
struct HeadSums<'a, S, const H: usize, const BITS: u32> {
    format: &'a PackedFormat,
    /// (heads, tokens).
    weights: *const f32,
    pages: Pages,
    /// The first head's sums, the next `stride` on.
    to: *mut f32,
    stride: usize,
    /// Σ w.
    denominator: &'a mut [f32],
    simd: PhantomData<S>,
}

/// Folded weights of a span.
#[derive(Clone, Copy, Default)]
struct Weights {
    /// One unit of the integers.
    steps: [f32; HEADS],
    /// What the centre of the codes adds to every dot product.
    centres: [f32; HEADS],
}

impl<S: Simd, const H: usize, const BITS: u32> Work<S> for HeadSums<'_, S, H, BITS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let mut bytes = Lines::<[MaybeUninit<i8>; SPANS * HEADS * row(8, TOKENS)]>::new();
        // SAFETY: there is room for the rows of every head and span; the rest is the caller's contract.
        unsafe {
            let mut totals = [S::splat(0.0); HEADS];
            for t in (0..TOKENS).step_by(LANES) {
                for h in 0..H {
                    totals[h] = S::add(totals[h], S::load(self.weights.add(h * TOKENS + t)));
                }
            }
            let totals = S::reduce4_add(totals);
            for (denominator, total) in self.denominator.iter_mut().zip(totals) {
                *denominator += total;
            }
            for spans in self.format.spans.chunks(SPANS) {
                let mut folded = [Weights::default(); SPANS];
                for (i, span) in spans.iter().enumerate() {
                    folded[i] = self.fold(span, bytes.at(i * HEADS * row(BITS, TOKENS)));
                }
                for (i, span) in spans.iter().enumerate() {
                    self.span(span, &folded[i], bytes.at(i * HEADS * row(BITS, TOKENS)));
                }
            }
        }
    }
}

impl<S: Simd, const H: usize, const BITS: u32> HeadSums<'_, S, H, BITS> {
    /// w_t·s_t of every head rounded to bytes.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` has room for H rows.
    #[inline(always)]
    unsafe fn fold(&self, span: &Span, bytes: *mut i8) -> Weights {
        let Pages { page, next } = self.pages;
        let mut scales = Lines::<[MaybeUninit<f32>; TOKENS]>::new();
        let at = start(&self.format.token_scale) + 2 * span.group * TOKENS;
        // SAFETY: token arrays have a page's tokens for every group.
        unsafe {
            prefetch_lines::<S>(2 * TOKENS, next.wrapping_add(at));
            for t in (0..TOKENS).step_by(LANES) {
                S::store(scales.at(t), S::load_f16(page.add(at + 2 * t).cast()));
            }
            let weights = |h: usize| self.weights.add(h * TOKENS);
            let Folded { steps, sums } =
                round::fold::<S, H>(weights, scales.at(0), TOKENS, BITS, bytes, row(BITS, TOKENS) / 2);
            let mut centres = S::reduce4_add(sums);
            for centre in &mut centres {
                *centre *= seen_centre::<S>(span) as f32;
            }
            Weights { steps, centres }
        }
    }

    /// Adds Σ w·v of a span's channels.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` are the span's.
    #[inline(always)]
    unsafe fn span(&self, span: &Span, weights: &Weights, bytes: *const i8) {
        let Pages { page, next } = self.pages;
        // SAFETY: a span's rows lie within the page, and rows of sums are padded.
        unsafe {
            for sixteen in 0..span.len / LANES {
                let first = span.codes + sixteen * TOKENS / 8 * unit(BITS);
                let (codes, coming) = (page.add(first), next.wrapping_add(first));
                // The two vectors of a unit have sums of their own: two chains hide more latency than one.
                let (mut low, mut high) = ([[S::izero(); 2]; H], [[S::izero(); 2]; H]);
                for octet in 0..TOKENS / 8 {
                    let (a, b) = unpack::<S, BITS>(codes.add(octet * unit(BITS)));
                    prefetch_lines::<S>(unit(BITS), coming.wrapping_add(octet * unit(BITS)));
                    for h in 0..H {
                        let w = bytes.add(h * row(BITS, TOKENS) + 8 * octet);
                        low[h][0] = dot::<S>(BITS == 8, low[h][0], a, S::quad(w));
                        low[h][1] = dot::<S>(BITS == 8, low[h][1], b, S::quad(w.add(4)));
                        if planes(BITS) == 2 {
                            let w = w.add(TOKENS);
                            high[h][0] = dot::<S>(BITS == 8, high[h][0], a, S::quad(w));
                            high[h][1] = dot::<S>(BITS == 8, high[h][1], b, S::quad(w.add(4)));
                        }
                    }
                }
                for h in 0..H {
                    let to = self.to.add(h * self.stride + span.first + LANES * sixteen);
                    let (low, high) = (S::iadd(low[h][0], low[h][1]), S::iadd(high[h][0], high[h][1]));
                    // Of one plane both are integers that a float holds: nothing is rounded here.
                    let dot = S::sub(combine::<S>(planes(BITS), low, high), S::splat(weights.centres[h]));
                    S::store(to, S::fma(dot, S::splat(weights.steps[h]), S::load(to)));
                }
            }
        }
    }
}
