//! A page's channel scales, folded into the queries and rounded to bytes.

use super::{Part, seen_centre};
use crate::format::{MAX_DIM, PackedFormat, Span};
use crate::kernel::round::{self, Folded};
use crate::kernel::{Pages, Query, load_scales};
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// A span's channel scales as floats, and what they add to every channel, zero + centre · scale.
pub(super) struct SpanScales {
    scales: [MaybeUninit<f32>; MAX_DIM + LANES],
    offsets: [MaybeUninit<f32>; MAX_DIM + LANES],
}

impl SpanScales {
    pub(super) fn new() -> SpanScales {
        SpanScales {
            scales: [MaybeUninit::uninit(); MAX_DIM + LANES],
            offsets: [MaybeUninit::uninit(); MAX_DIM + LANES],
        }
    }

    /// Reads the channel scales and zeros of a span, to the places from `to` on.
    ///
    /// # Safety
    /// As the kernel it is part of: pages and buffers have the sizes of the format; the CPU has the tier.
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd>(
        &mut self,
        format: &PackedFormat,
        span: &Span,
        to: usize,
        pages: Pages,
    ) {
        let Pages { page, next } = pages;
        let len = span.len.next_multiple_of(LANES);
        let size = format.scales.bytes();
        let scales = self.scales[to..].as_mut_ptr().cast::<f32>();
        let offsets = self.offsets[to..].as_mut_ptr().cast::<f32>();
        // SAFETY: a span's channel arrays lie within the page, and after them at least one unit of codes (32 bytes), so a
        // load of 16 that starts at the last 8 channels stays inside. The surplus lanes are zeroed before use.
        unsafe {
            let scale_at = page.add(format.channel_scale.as_ref().map_or(0, |r| r.start) + span.first * size);
            for c in (0..len).step_by(LANES) {
                S::prefetch(next.wrapping_add(span.first * size + c * 2 * size));
                S::store(scales.add(c), load_scales::<S>(format.scales, scale_at.add(c * size)));
            }
            for c in span.len..len {
                *scales.add(c) = 0.0;
            }
            if let Some(zeros) = &format.channel_zero {
                let zero_at = page.add(zeros.start + span.first * size);
                let centre = S::splat(span.centre() as f32);
                for c in (0..len).step_by(LANES) {
                    let zero = load_scales::<S>(format.scales, zero_at.add(c * size));
                    S::store(offsets.add(c), S::fma(S::load(scales.add(c)), centre, zero));
                }
                for c in span.len..len {
                    *offsets.add(c) = 0.0;
                }
            }
        }
    }
}

/// What folding a block of heads needs to know.
pub(super) struct QueryFold<'a> {
    pub format: &'a PackedFormat,
    pub query: &'a Query,
    pub span: &'a Span,
    pub channels: &'a SpanScales,
    /// Where the span's channels were read to.
    pub at: usize,
    /// The span's channels, padded.
    pub len: usize,
    /// Bytes of a plane.
    pub plane: usize,
}

/// Folds the page's channel scales into H queries: q_c·s_c rounded to bytes, the rest exact.
///
/// # Safety
/// As the kernel it is part of; `bytes` has room for two planes of H heads, `parts` for H.
#[inline(always)]
pub(super) unsafe fn fold_block<S: Simd, const H: usize>(
    fold: &QueryFold<'_>,
    head: usize,
    bytes: *mut i8,
    parts: *mut Part,
) -> usize {
    let QueryFold { format, query, span, channels, at, len, plane } = *fold;
    let scales = channels.scales[at..].as_ptr().cast::<f32>();
    let offsets = channels.offsets[at..].as_ptr().cast::<f32>();
    // SAFETY: the channels were read for this span; the query has zeros up to a multiple of 16.
    unsafe {
        let row = |h: usize| query.floats_of(head + h).add(span.first);
        let Folded { steps, sums } =
            round::fold::<S, H>(row, scales, len, u32::from(span.bits), bytes, plane);
        let centre = seen_centre::<S>(span) as f32;
        let mut bases = [S::splat(0.0); 4];
        for h in 0..H {
            let q = row(h);
            bases[h] = S::mul(sums[h], S::splat(-steps[h] * centre));
            if format.channel_zero.is_some() {
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
