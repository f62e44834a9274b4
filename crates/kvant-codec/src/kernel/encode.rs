//! Vectors to pages.
//!
//! Sixteen tokens at a time, one per lane: transpose, change the basis, choose scales, code, pack. Nothing here
//! reduces across lanes except the exact minimum and maximum, so all tiers write the same bytes.

use super::code::{CodeSpan, Factors};
use super::fit::{self, LaneNumbers};
use super::scale::{extremes, inverse_of, refit, root_mean_square, round_lanes, scale_of};
use crate::format::{MAX_PAGE, PackedFormat, ScaleFormat, Span};
use crate::quant::{Levels, Rule};
use crate::scratch::Scratch;
use crate::transform::Basis;
use kvant_simd::{LANES, Simd};
use std::mem::MaybeUninit;

/// Encodes a page of rows, (tokens, dim). Returns the largest scale or zero, or NaN when a number was not finite or did
/// not stay so on its way into the basis; then the page holds nothing of use.
///
/// # Safety
/// `levels` are those of the format's spans, `basis` is the format's; `rows` is valid for tokens · dim floats, `page` for the
/// format's bytes; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn encode<S: Simd>(
    format: &PackedFormat,
    levels: &[Levels],
    basis: &Basis,
    rows: *const f32,
    page: *mut u8,
) -> f32 {
    let target = Target { format, levels };
    let padded = format.coded.max(format.dim).next_multiple_of(LANES);
    let (tiles, tile_floats) = (format.tokens / LANES, LANES * padded);
    let mut largest = Largest::default();
    // SAFETY: every tile has `padded` columns; scales and units are written where the format has them.
    unsafe {
        if format.channel_scale.is_none() {
            let mut buffer = Scratch::take(2 * tile_floats);
            let (columns, scratch) = buffer.floats().split_at_mut(tile_floats);
            let columns = columns.as_mut_ptr();
            for tile in 0..tiles {
                gather::<S>(format.dim, rows.add(tile * LANES * format.dim), columns, padded);
                basis.forward::<S>(columns, scratch.as_mut_ptr());
                largest.add(token_tile::<S>(&target, columns, tile, page));
            }
            return largest.value();
        }
        // Channel scales need the whole page first.
        let mut buffer = Scratch::take((tiles + 1) * tile_floats + 4 * (padded + LANES));
        let (columns, rest) = buffer.floats().split_at_mut(tiles * tile_floats);
        let (scratch, factors) = rest.split_at_mut(tile_floats);
        let columns = columns.as_mut_ptr();
        for tile in 0..tiles {
            let columns = columns.add(tile * tile_floats);
            gather::<S>(format.dim, rows.add(tile * LANES * format.dim), columns, padded);
            basis.forward::<S>(columns, scratch.as_mut_ptr());
        }
        let factors = ChannelFactors::split(factors, padded);
        let plain = (basis.is_plain() && basis.mean().is_empty()).then_some(rows);
        largest.add(channel_scales::<S>(&target, plain, columns, padded, factors, page));
        for tile in 0..tiles {
            let columns = columns.add(tile * tile_floats);
            if format.token_scale.is_some() {
                for c in 0..format.coded {
                    let p = columns.add(LANES * c);
                    S::store(p, S::mul(S::load(p), S::splat(*factors.inverse.add(c))));
                }
                largest.add(token_tile::<S>(&target, columns, tile, page));
            } else {
                for (span, levels) in target.spans() {
                    let factors =
                        Factors::Channel(factors.inverse.add(span.first), factors.zero.add(span.first));
                    let columns = columns.add(LANES * span.first);
                    CodeSpan { format, span, levels, columns, factors, tile, page }.run::<S>();
                }
            }
        }
        largest.value()
    }
}

/// What a page is coded as.
#[derive(Clone, Copy)]
struct Target<'a> {
    format: &'a PackedFormat,
    /// One per span.
    levels: &'a [Levels],
}

impl<'a> Target<'a> {
    #[inline(always)]
    fn spans(&self) -> impl Iterator<Item = (&'a Span, &'a Levels)> {
        self.format.spans.iter().zip(self.levels)
    }
}

/// A maximum that NaN and infinity do not get lost in.
#[derive(Default)]
struct Largest {
    top: f32,
    /// 0·x of everything: zero, or NaN.
    poison: f32,
}

impl Largest {
    fn add(&mut self, x: f32) {
        self.top = self.top.max(x);
        self.poison += 0.0 * x;
    }

    fn value(&self) -> f32 {
        self.top + self.poison
    }
}

/// Per-channel numbers of a page, each `padded` floats and one vector more, because a span of keys may end in the middle
/// of a vector.
#[derive(Clone, Copy)]
struct ChannelFactors {
    low: *mut f32,
    high: *mut f32,
    inverse: *mut f32,
    zero: *mut f32,
}

impl ChannelFactors {
    fn split(floats: &mut [f32], padded: usize) -> ChannelFactors {
        let mut parts = floats.chunks_exact_mut(padded + LANES).map(<[f32]>::as_mut_ptr);
        let mut next = || parts.next().unwrap_or(std::ptr::null_mut());
        ChannelFactors { low: next(), high: next(), inverse: next(), zero: next() }
    }
}

/// Sixteen rows into columns; channels past `dim` become zero.
///
/// # Safety
/// `rows` holds 16 rows of `dim` floats, `columns` room for `padded` columns; the CPU has the tier.
#[inline(always)]
unsafe fn gather<S: Simd>(dim: usize, rows: *const f32, columns: *mut f32, padded: usize) {
    // SAFETY: whole blocks of 16 channels lie within the rows; the rest is copied one by one.
    unsafe {
        let whole = dim / LANES * LANES;
        for first in (0..whole).step_by(LANES) {
            let block = S::transpose(rows.add(first), dim);
            for c in 0..LANES {
                S::store(columns.add(LANES * (first + c)), block[c]);
            }
        }
        for c in whole..padded {
            let p = columns.add(LANES * c);
            for lane in 0..LANES {
                *p.add(lane) = if c < dim { *rows.add(lane * dim + c) } else { 0.0 };
            }
        }
    }
}

/// Scales of every coded channel over the whole page: stored, and kept as factors. Returns the largest scale or zero, or
/// NaN when a column is not finite.
///
/// # Safety
/// `columns` holds all tiles of `padded` columns, `rows` the same where they are in the model's basis, the factors a vector
/// more than that each; the CPU has the tier.
#[inline(always)]
unsafe fn channel_scales<S: Simd>(
    target: &Target<'_>,
    rows: Option<*const f32>,
    columns: *const f32,
    padded: usize,
    factors: ChannelFactors,
    page: *mut u8,
) -> f32 {
    let format = target.format;
    let tiles = format.tokens / LANES;
    let mut turned = [MaybeUninit::<f32>::uninit(); MAX_PAGE * LANES];
    // SAFETY: every channel below `coded` has a column in every tile and a place in the page's arrays.
    unsafe {
        let mut largest = S::splat(0.0);
        let mut poison = S::splat(0.0);
        let all_fit = target.levels.iter().all(Levels::fits) && format.token_scale.is_none();
        // Four channels at a time, so that their reductions share the work.
        for first in (0..if all_fit { 0 } else { format.coded }).step_by(4) {
            let (mut low, mut high) = ([S::splat(0.0); 4], [S::splat(0.0); 4]);
            for i in 0..4 {
                let p = columns.add(LANES * (first + i));
                (low[i], high[i]) = (S::load(p), S::load(p));
                poison = S::add(poison, S::sub(low[i], low[i]));
                for tile in 1..tiles {
                    let x = S::load(p.add(LANES * padded * tile));
                    poison = S::add(poison, S::sub(x, x));
                    (low[i], high[i]) = (S::min(low[i], x), S::max(high[i], x));
                }
                low[i] = S::sub(S::splat(0.0), low[i]);
            }
            let (low, high) = (S::reduce4_max(low), S::reduce4_max(high));
            for i in 0..4 {
                *factors.low.add(first + i) = -low[i];
                *factors.high.add(first + i) = high[i];
            }
        }
        // Lanes past the last channel must not bring up what the scratch held before.
        for c in format.coded..padded + LANES {
            *factors.low.add(c) = 0.0;
            *factors.high.add(c) = 0.0;
        }
        for (span, levels) in target.spans() {
            if levels.by_power() && format.token_scale.is_none() {
                for c in span.first..span.first + span.len {
                    *factors.high.add(c) = root_mean_square(columns.add(LANES * c), LANES * padded, tiles);
                }
            }
            let fits = levels.fits() && format.token_scale.is_none();
            for first in (span.first..span.first + span.len).step_by(LANES) {
                // A key span may end in the middle of a vector; the next span rewrites what is too much.
                let numbers = if !fits {
                    None
                } else if let Some(rows) = rows.filter(|_| first + LANES <= format.dim) {
                    Some(LaneNumbers { first: rows.add(first), stride: format.dim, count: format.tokens })
                } else {
                    Some(fit::turned::<S>(columns, tiles, padded, first, turned.as_mut_ptr().cast()))
                };
                let (low, high) = match numbers {
                    Some(numbers) => {
                        let (low, high, odd) = numbers.extremes::<S>();
                        poison = S::add(poison, odd);
                        (low, high)
                    }
                    None => (S::load(factors.low.add(first)), S::load(factors.high.add(first))),
                };
                let (scale, zero) = if format.token_scale.is_some() {
                    // Evens out the channels; the token scales take it from there.
                    (round_lanes::<S>(format.scales, S::max(high, S::sub(S::splat(0.0), low))), S::splat(0.0))
                } else {
                    let plain = scale_of::<S>(format.scales, levels, low, high);
                    match numbers {
                        Some(numbers) => {
                            fit::scale_of::<S>(format.scales, levels, numbers, (low, high), plain)
                        }
                        None => plain,
                    }
                };
                S::store(factors.inverse.add(first), inverse_of::<S>(scale));
                S::store(factors.zero.add(first), zero);
                let left = span.first + span.len - first;
                for (array, x) in [(&format.channel_scale, scale), (&format.channel_zero, zero)] {
                    if let Some(range) = array {
                        let at = page.add(range.start + first * format.scales.bytes());
                        store_scales::<S>(format.scales, at, x, left.min(LANES));
                        largest = S::max(largest, S::abs(x));
                    }
                }
            }
        }
        S::reduce_max(largest) + S::reduce_add(poison)
    }
}

/// Stores the first `count` of 16 scales.
///
/// # Safety
/// `p` is valid for `count` scales of the format; the CPU has the tier.
#[inline(always)]
unsafe fn store_scales<S: Simd>(format: ScaleFormat, p: *mut u8, x: S::F, count: usize) {
    let mut bytes = [0u8; 4 * LANES];
    // SAFETY: `bytes` holds 16 scales of either format, `p` as many as are copied.
    unsafe {
        let target = if count == LANES { p } else { bytes.as_mut_ptr() };
        match format {
            ScaleFormat::F16 => S::store_f16(target.cast(), x),
            ScaleFormat::F32 => S::store(target.cast(), x),
        }
        if count < LANES {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, count * format.bytes());
        }
    }
}

/// Chooses token scales for one tile, stores them, codes under them. Returns the largest scale or zero, or NaN when a
/// column is not finite.
///
/// # Safety
/// `columns` holds the tile, `page` is of the format; the CPU has the tier.
#[inline(always)]
unsafe fn token_tile<S: Simd>(target: &Target<'_>, columns: *const f32, tile: usize, page: *mut u8) -> f32 {
    let format = target.format;
    // SAFETY: columns span.first .. + len exist (padding is zero); token arrays have room for this tile.
    unsafe {
        let mut largest = S::splat(0.0);
        let mut poison = S::splat(0.0);
        for (span, levels) in target.spans() {
            let columns = columns.add(LANES * span.first);
            let len = span.len.min(format.dim - span.first);
            let (low, high, odd) = extremes::<S>(levels, columns, len);
            poison = S::add(poison, odd);
            let (mut scale, mut zero) = scale_of::<S>(format.scales, levels, low, high);
            if levels.fits() {
                let numbers = LaneNumbers { first: columns, stride: LANES, count: len };
                let plain = (scale, zero);
                (scale, zero) = fit::scale_of::<S>(format.scales, levels, numbers, (low, high), plain);
            }
            let factors = Factors::Token(inverse_of::<S>(scale), zero);
            if levels.rule == Rule::NonLinear {
                scale = refit::<S>(format.scales, levels, columns, len, scale);
            }
            let at = (span.group * format.tokens + tile * LANES) * format.scales.bytes();
            for (array, x) in [(&format.token_scale, scale), (&format.token_zero, zero)] {
                if let Some(range) = array {
                    store_scales::<S>(format.scales, page.add(range.start + at), x, LANES);
                    largest = S::max(largest, S::abs(x));
                }
            }
            CodeSpan { format, span, levels, columns, factors, tile, page }.run::<S>();
        }
        S::reduce_max(largest) + S::reduce_add(poison)
    }
}
