//! A few heads over pages of 64 tokens whose codes all have four bits, or all eight: decoding with `int4`, `int8` and `k8v4`.
//!
//! The steps are those of `scores` and `accumulate` in their order, so the bits are the same. But sizes are known when this is compiled,
//! nothing is asked of the format inside a page, and what is folded stays in registers and in one small frame: around so few
//! products the rest had been most of the time.

mod scores;
mod sums;

pub(super) use scores::scores;
pub(super) use sums::accumulate;

use super::round::planes;
use crate::format::{PackedFormat, ScaleFormat, Side, Span};
use kvant_simd::LANES;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Tokens of a page.
const TOKENS: usize = 4 * LANES;

/// Heads that are worked on at once at most.
const HEADS: usize = 4;

/// Bytes of a unit: sixteen tokens or channels of eight codes each.
const fn unit(bits: u32) -> usize {
    16 * bits as usize
}

/// Bytes of a folded row of `len` numbers, with all its planes. Half of them are what rounding calls a plane: it leaves room for two.
const fn row(bits: u32, len: usize) -> usize {
    planes(bits) * len
}

/// Whether these kernels read pages of the format.
pub(crate) fn suit(format: &PackedFormat) -> bool {
    let PackedFormat { spans, channel_scale, channel_zero, token_scale, token_zero, .. } = format;
    let arrays = [channel_scale, channel_zero, token_scale, token_zero].map(Option::is_some);
    let shape = match format.side {
        Side::Key => {
            arrays == [true, true, false, false]
                && matches!(spans[..], [Span { first: 0, len: 64 | 128, .. }])
        }
        Side::Value => arrays == [false, false, true, false],
    };
    let width = spans.first().map(|span| span.bits);
    let even = spans.iter().all(|span| Some(span.bits) == width && !span.meaning.is_table());
    shape
        && even
        && matches!(width, Some(4 | 8))
        && format.tokens == TOKENS
        && format.scales == ScaleFormat::F16
}

/// Numbers on lines of their own.
#[repr(align(64))]
struct Lines<T>(T);

impl<T: Copy, const N: usize> Lines<[MaybeUninit<T>; N]> {
    #[inline(always)]
    fn new() -> Self {
        Lines([MaybeUninit::uninit(); N])
    }

    #[inline(always)]
    fn at(&mut self, i: usize) -> *mut T {
        self.0.as_mut_ptr().cast::<T>().wrapping_add(i)
    }
}

/// Where an array of the page begins.
#[inline(always)]
fn start(array: &Option<Range<usize>>) -> usize {
    array.as_ref().map_or(0, |range| range.start)
}
