//! Heads in batches: folded first, then multiplied with the codes, sixteen at a time where there is a unit for blocks.

use crate::kernel::block::{BATCH, BlockSums, Room};
use crate::kernel::by_heads;
use kvant_simd::{MatrixUnit, ROWS, Simd};
use std::mem::MaybeUninit;

/// What a head's bytes mean.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// A plane, and another one plane on.
    pub bytes: *const i8,
    pub plane: usize,
    /// score = step · (dot product) + base, before the token's scale.
    pub step: f32,
    pub base: f32,
    /// Multiplies the token's zero: Σ q over the span.
    pub zero: f32,
}

/// How scores of a page come about: span by span, or of all spans under one step.
pub(super) trait Scoring<S: Simd> {
    /// Tokens of the page.
    fn tokens(&self) -> usize;

    /// Octets of channels that a sum runs over.
    fn octets(&self) -> usize;

    /// Bytes of a plane of a folded head.
    fn plane(&self) -> usize;

    /// Folds H heads from `head` on. Returns H.
    ///
    /// # Safety
    /// As the kernel it is part of; `bytes` has room for two planes of H heads, `parts` for H.
    unsafe fn fold<const H: usize>(&self, head: usize, bytes: *mut i8, parts: *mut Part) -> usize;

    /// The scores of H folded heads. Returns H.
    ///
    /// # Safety
    /// As the kernel it is part of, for H parts and H rows of `out`.
    unsafe fn multiply<const H: usize>(&self, parts: *const Part, out: *mut f32) -> usize;

    /// The scores of a multiple of sixteen heads, by the unit for blocks.
    ///
    /// # Safety
    /// As the kernel it is part of, for parts whose bytes are equally far apart; `codes` are those of the page, and the unit
    /// has begun.
    unsafe fn multiply_blocks(&self, parts: &[Part], codes: *const u8, sums: BlockSums, out: *mut f32);
}

/// Scores of `heads` heads, (heads, tokens); `codes` are the page's as bytes, where a block is worth it.
///
/// # Safety
/// As the kernel it is part of: `out` is valid for all heads, and the room holds two planes for every head of a batch, if
/// heads are folded there.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd>(
    way: &impl Scoring<S>,
    heads: usize,
    room: &mut Room,
    codes: Option<*const u8>,
    out: *mut f32,
) {
    let tokens = way.tokens();
    // SAFETY: the caller's contract; every block of heads stays below `heads`.
    unsafe {
        if codes.is_some() {
            S::Matrix::begin(way.octets());
        }
        for first in (0..heads).step_by(BATCH) {
            let count = BATCH.min(heads - first);
            let mut parts = [const { MaybeUninit::<Part>::uninit() }; BATCH];
            let mut at = 0;
            while at < count {
                // Where nothing is folded there is no room for it, and the pointer is not used.
                let bytes = room.bytes().wrapping_add(at * 2 * way.plane());
                let parts = parts.as_mut_ptr().cast::<Part>().add(at);
                at += by_heads!(S, count - at, way.fold(first + at, bytes, parts));
            }
            let (out, parts) = (out.add(first * tokens), parts.as_ptr().cast::<Part>());
            let mut at = 0;
            if let Some(codes) = codes {
                let parts = std::slice::from_raw_parts(parts, count / ROWS * ROWS);
                way.multiply_blocks(parts, codes, room.sums(), out);
                at = parts.len();
            }
            while at < count {
                let (parts, out) = (parts.add(at), out.add(at * tokens));
                at += by_heads!(S, count - at, way.multiply(parts, out));
            }
        }
        if codes.is_some() {
            S::Matrix::end();
        }
    }
}
