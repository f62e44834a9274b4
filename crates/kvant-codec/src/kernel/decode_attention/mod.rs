//! A few heads over pages of 64 tokens whose codes all have four bits, or all eight: decoding with `int4`, `int8` and `k8v4`. And over keys
//! of several widths, which plans have ([`mixed`]).
//!
//! A decode step brings one token: with grouped-query attention four or eight query heads meet a page, and that is all the work a page gets.
//! The general kernels spend most of it around the products. These have the same steps in the same order, so the bits are the same, and
//! leave out what a known shape makes needless.
//!
//! # What is left out
//!
//! | the general kernel | here |
//! |---|---|
//! | asks the format for tokens, channels, width, tables | constants of the compiled kernel: `D` of 64 or 128, `BITS` of 4 or 8, 64 tokens |
//! | optional arrays of scales and zeros, four combinations | keys have both by channel, values a scale by token ([`suit`] sees to it) |
//! | takes scratch memory for up to 96 folded heads | at most four heads in one small frame on the stack, on lines of its own |
//! | expands codes for the unit for blocks | never: fewer than sixteen heads do not fill it |
//! | scores wait in memory between spans | one span: a score is stored once, final |
//!
//! # An example
//!
//! `int4`, 128 channels, four heads. A page of keys has 64 · 128 codes of four bits, 4,096 bytes, beside 512 bytes of scales and zeros.
//!
//! ```text
//! fold    4 heads · 128 products, rounded to 4 · 128 bytes            8 vectors each
//! loop    16 octets of channels · 4 tiles of 16 tokens = 64 units     1 load, 2 unpacked vectors a unit,
//!         each unit meets 4 heads                                     2 dot products a head: 512 in all
//! end     4 heads · 4 tiles: one multiply-add and one store
//! ```
//!
//! With registers for it (AVX-512: `S::TILES` of 4) all four tiles of four heads are held at once, sixteen sums, so that a query's four bytes
//! are broadcast once for 64 tokens. AVX2 and NEON take one tile of four heads at a time.
//!
//! # The trade-off
//!
//! Sixteen compiled bodies of scores (two dimensions, two widths, one to four heads on tiers that hold four) and eight of sums, for the three
//! caches that people run; every other format, and a batch that brings sixteen heads to a page, takes the general kernels. Whatever
//! changes in `scores` or `accumulate` changes here too: the test `a_few_heads_have_the_bits_that_many_have` compares them on every tier.

mod mixed;
mod scores;
mod sums;

pub(super) use mixed::scores as mixed_scores;
pub(super) use scores::scores;
pub(super) use sums::accumulate;

use super::round::planes;
use crate::format::{PackedFormat, ScaleFormat, Side, Span};
use kvant_simd::LANES;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Tokens of a page.
const TOKENS: usize = 4 * LANES;

/// Vectors of a page's tokens.
const TILES: usize = TOKENS / LANES;

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

/// Whether the kernel for channels of several widths reads pages of the format.
pub(crate) fn suits_mixed(format: &PackedFormat) -> bool {
    let PackedFormat { channel_scale, channel_zero, token_scale, token_zero, .. } = format;
    let arrays = [channel_scale, channel_zero, token_scale, token_zero].map(Option::is_some);
    arrays == [true, true, false, false]
        && format.coded <= mixed::CHANNELS
        && format.tokens.is_multiple_of(TOKENS)
        && format.scales == ScaleFormat::F16
}

/// Folded queries, one row after the other.
struct Queries {
    bytes: *const i8,
    /// score = step · (dot product) + base.
    steps: [f32; HEADS],
    bases: [f32; HEADS],
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
