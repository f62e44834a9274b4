//! Vectors to pages.
//!
//! Sixteen tokens at a time, one per lane: transpose, change the basis, choose scales, code, pack. Nothing here
//! reduces across lanes except the exact minimum and maximum, so all tiers write the same bytes.

use super::MAX_DIM;
use crate::codec::scalar::ScalarCodec;
use crate::pack::{self, Words};
use crate::page::{ScaleFormat, Side, Span};
use crate::quant::{Levels, Rule};
use crate::simd::{LANES, Simd};
use std::cell::Cell;
use std::mem::MaybeUninit;

/// This thread's scratch floats, aligned to a cache line; returned when dropped.
///
/// A guard and not a closure: what runs inside a closure would be compiled without the tier's instructions.
pub(crate) struct Scratch {
    floats: Vec<f32>,
    skip: usize,
    len: usize,
}

thread_local!(static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) });

impl Scratch {
    pub(crate) fn take(len: usize) -> Scratch {
        let mut floats = SCRATCH.take();
        if floats.len() < len + LANES {
            floats.resize(len + LANES, 0.0);
        }
        let skip = floats.as_ptr().align_offset(64).min(LANES);
        Scratch { floats, skip, len }
    }

    pub(crate) fn floats(&mut self) -> &mut [f32] {
        &mut self.floats[self.skip..self.skip + self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        SCRATCH.set(std::mem::take(&mut self.floats));
    }
}

/// A scale, its reciprocal and a zero, per lane.
struct Scale<S: Simd> {
    inverse: S::F,
    zero: S::F,
}

/// Encodes a page of rows, (tokens, dim). False when a scale does not fit the stored format.
///
/// # Safety
/// `rows` is valid for tokens · dim finite floats, `page` for the layout's bytes; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn encode<S: Simd>(codec: &ScalarCodec, rows: *const f32, page: *mut u8) -> bool {
    let layout = &codec.layout;
    let padded = layout.coded.max(layout.dim).next_multiple_of(LANES);
    let tiles = layout.tokens / LANES;
    let held = if layout.channel_scale.is_some() { tiles } else { 1 };
    let mut buffer = Scratch::take((held + 1) * LANES * padded);
    let (columns, scratch) = buffer.floats().split_at_mut(held * LANES * padded);
    let (columns, scratch) = (columns.as_mut_ptr(), scratch.as_mut_ptr());
    let mut top = 0.0f32;
    // SAFETY: every tile has `padded` columns; scales and units are written where the layout has them.
    unsafe {
        if layout.channel_scale.is_some() {
            for tile in 0..tiles {
                let columns = columns.add(tile * LANES * padded);
                gather::<S>(codec, rows.add(tile * LANES * layout.dim), columns, padded);
                codec.basis.forward::<S>(columns, scratch);
            }
            let zeros = layout.token_scale.is_some();
            top = channel_scales::<S>(codec, columns, padded, page);
            for tile in 0..tiles {
                let columns = columns.add(tile * LANES * padded);
                if zeros {
                    top = top.max(token_tile::<S>(codec, columns, tile, page));
                } else {
                    channel_tile::<S>(codec, columns, tile, page);
                }
            }
        } else {
            for tile in 0..tiles {
                gather::<S>(codec, rows.add(tile * LANES * layout.dim), columns, padded);
                codec.basis.forward::<S>(columns, scratch);
                top = top.max(token_tile::<S>(codec, columns, tile, page));
            }
        }
    }
    top <= layout.format.max()
}

/// Sixteen rows into columns; channels past `dim` become zero.
#[inline(always)]
unsafe fn gather<S: Simd>(codec: &ScalarCodec, rows: *const f32, columns: *mut f32, padded: usize) {
    let dim = codec.layout.dim;
    // SAFETY: whole blocks of 16 channels lie within the rows; the rest is copied one by one.
    unsafe {
        let whole = dim / LANES * LANES;
        for first in (0..whole).step_by(LANES) {
            let block = S::transpose(rows.add(first), dim);
            for (c, column) in block.into_iter().enumerate() {
                S::store(columns.add(LANES * (first + c)), column);
            }
        }
        for c in whole..padded {
            for lane in 0..LANES {
                *columns.add(LANES * c + lane) = if c < dim { *rows.add(lane * dim + c) } else { 0.0 };
            }
        }
    }
}

/// Scales of every channel over the whole page; where tokens have scales too, divides the columns by them.
#[inline(always)]
unsafe fn channel_scales<S: Simd>(
    codec: &ScalarCodec,
    columns: *mut f32,
    padded: usize,
    page: *mut u8,
) -> f32 {
    let layout = &codec.layout;
    let tiles = layout.tokens / LANES;
    let size = layout.format.bytes();
    let mut largest = 0.0f32;
    for (span, levels) in layout.spans.iter().zip(&codec.levels) {
        for c in span.first..span.first + span.len {
            // SAFETY: c is a coded channel; all tiles have `padded` columns.
            unsafe {
                let at = |tile: usize| columns.add(LANES * (tile * padded + c));
                let (scale, zero) = if layout.token_scale.is_some() {
                    // Evens out the channels; the token scales take it from there.
                    let mut top = S::splat(0.0);
                    for tile in 0..tiles {
                        top = S::max(top, S::abs(S::load(at(tile))));
                    }
                    let scale = layout.format.round(S::reduce_max(top));
                    let inverse = S::splat(if scale >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 });
                    for tile in 0..tiles {
                        S::store(at(tile), S::mul(S::load(at(tile)), inverse));
                    }
                    (scale, 0.0)
                } else {
                    channel_scale::<S>(layout.format, levels, tiles, at)
                };
                // Tiers pick zeros of either sign; a page has only positive ones.
                let (scale, zero) = (scale + 0.0, zero + 0.0);
                let array =
                    |start: usize| std::slice::from_raw_parts_mut(page.add(start), layout.coded * size);
                if let Some(range) = &layout.channel_scale {
                    layout.format.write(array(range.start), c, scale);
                }
                if let Some(range) = &layout.channel_zero {
                    layout.format.write(array(range.start), c, zero);
                }
                largest = largest.max(scale.abs()).max(zero.abs());
            }
        }
    }
    largest
}

/// The rule's scale and zero for one channel.
#[inline(always)]
unsafe fn channel_scale<S: Simd>(
    format: ScaleFormat,
    levels: &Levels,
    tiles: usize,
    at: impl Fn(usize) -> *mut f32,
) -> (f32, f32) {
    // SAFETY: the caller's columns.
    unsafe {
        let (mut low, mut high) = (S::load(at(0)), S::load(at(0)));
        for tile in 1..tiles {
            let x = S::load(at(tile));
            (low, high) = (S::min(low, x), S::max(high, x));
        }
        let (low, high) = (S::reduce_min(low), S::reduce_max(high));
        match levels.rule {
            Rule::Symmetric => (format.round(high.max(-low) / levels.divisor()), 0.0),
            Rule::SignedMax => {
                let extreme = if high >= -low { high } else { low };
                (format.round(extreme / levels.divisor()), 0.0)
            }
            Rule::Asymmetric => {
                let zero = outward(format, low, -1.0);
                (outward(format, (high - zero) / levels.divisor(), 1.0), zero)
            }
            Rule::LloydMax => {
                // Lane sums in a fixed order, so that every tier gets the same bits.
                let mut squares = [0.0f32; LANES];
                for tile in 0..tiles {
                    for (lane, sum) in squares.iter_mut().enumerate() {
                        let x = *at(tile).add(lane);
                        *sum = x.mul_add(x, *sum);
                    }
                }
                let mean = squares.iter().sum::<f32>() / (tiles * LANES) as f32;
                (format.round(mean.sqrt() * levels.unit), 0.0)
            }
        }
    }
}

/// Rounds to the format towards `direction`·∞, so that a range only grows.
fn outward(format: ScaleFormat, x: f32, direction: f32) -> f32 {
    let near = format.round(x);
    if near * direction >= x * direction {
        return near;
    }
    // Between half and one binary16 step further, in the normal and in the subnormal range: the next number.
    format.round(x + direction * (x.abs() * (1.0 / 2048.0)).max(3.0e-8))
}

/// [`outward`] per lane.
#[inline(always)]
unsafe fn outward_lanes<S: Simd>(format: ScaleFormat, x: S::F, direction: f32) -> S::F {
    // SAFETY: the tier is available.
    unsafe {
        let near = round_lanes::<S>(format, x);
        let nudge = S::max(S::mul(S::abs(x), S::splat(1.0 / 2048.0)), S::splat(3.0e-8));
        let far = round_lanes::<S>(format, S::fma(nudge, S::splat(direction), x));
        if direction > 0.0 { S::select_gt(x, near, far, near) } else { S::select_gt(near, x, far, near) }
    }
}

#[inline(always)]
unsafe fn round_lanes<S: Simd>(format: ScaleFormat, x: S::F) -> S::F {
    if format == ScaleFormat::F32 {
        return x;
    }
    let mut halves = [0u16; LANES];
    // SAFETY: sixteen halves.
    unsafe {
        S::store_f16(halves.as_mut_ptr(), x);
        S::load_f16(halves.as_ptr())
    }
}

/// Codes one tile under channel scales alone.
#[inline(always)]
unsafe fn channel_tile<S: Simd>(codec: &ScalarCodec, columns: *const f32, tile: usize, page: *mut u8) {
    let layout = &codec.layout;
    let size = layout.format.bytes();
    for (span, levels) in layout.spans.iter().zip(&codec.levels) {
        let mut codes = TileCodes::new();
        // SAFETY: scales were written for every coded channel.
        unsafe {
            let array =
                |start: usize| std::slice::from_raw_parts(page.cast_const().add(start), layout.coded * size);
            for c in 0..span.len {
                let read = |r: &std::ops::Range<usize>| layout.format.read(array(r.start), span.first + c);
                let scale = layout.channel_scale.as_ref().map_or(0.0, read);
                let zero = layout.channel_zero.as_ref().map_or(0.0, read);
                let inverse = if scale.abs() >= f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
                let scale = Scale::<S> { inverse: S::splat(inverse), zero: S::splat(zero) };
                codes.set::<S>(
                    layout.side,
                    c,
                    code::<S>(levels, S::load(columns.add(LANES * (span.first + c))), &scale),
                );
            }
            codes.write(codec, span, tile, page);
        }
    }
}

/// Chooses token scales for one tile, stores them, codes under them. Returns the largest scale or zero.
#[inline(always)]
unsafe fn token_tile<S: Simd>(codec: &ScalarCodec, columns: *const f32, tile: usize, page: *mut u8) -> f32 {
    let layout = &codec.layout;
    let mut largest = 0.0f32;
    for (span, levels) in layout.spans.iter().zip(&codec.levels) {
        let real = span.len.min(layout.dim - span.first);
        let mut codes = TileCodes::new();
        // SAFETY: columns span.first .. + len exist (padding is zero); token arrays have room for this tile.
        unsafe {
            let columns = columns.add(LANES * span.first);
            let (scale, zero) = token_scale::<S>(layout.format, levels, columns, real);
            // Tiers pick zeros of either sign; a page has only positive ones.
            let (scale, zero) = (S::add(scale, S::splat(0.0)), S::add(zero, S::splat(0.0)));
            let at = (span.group * layout.tokens + tile * LANES) * layout.format.bytes();
            for (range, x) in [(&layout.token_scale, scale), (&layout.token_zero, zero)] {
                if let Some(range) = range {
                    let p = page.add(range.start + at);
                    match layout.format {
                        ScaleFormat::F16 => S::store_f16(p.cast(), x),
                        ScaleFormat::F32 => S::store(p.cast(), x),
                    }
                    largest = largest.max(S::reduce_max(S::abs(x)));
                }
            }
            let one = S::splat(1.0);
            // A zero or subnormal scale could make an infinite reciprocal; its codes do not matter, so make it zero.
            let least = S::splat(f32::MIN_POSITIVE);
            let inverse = S::select_gt(S::abs(scale), least, S::div(one, scale), S::splat(0.0));
            let scale = Scale::<S> { inverse, zero };
            for c in 0..span.len {
                codes.set::<S>(layout.side, c, code::<S>(levels, S::load(columns.add(LANES * c)), &scale));
            }
            codes.write(codec, span, tile, page);
        }
    }
    largest
}

#[inline(always)]
unsafe fn column<S: Simd>(columns: *const f32, c: usize) -> S::F {
    // SAFETY: the callers' columns.
    unsafe { S::load(columns.add(LANES * c)) }
}

/// The rule's scale and zero for `len` channels of each lane's token, as they will be stored.
#[inline(always)]
unsafe fn token_scale<S: Simd>(
    format: ScaleFormat,
    levels: &Levels,
    columns: *const f32,
    len: usize,
) -> (S::F, S::F) {
    /// Independent chains, so that the latency of one operation does not set the pace.
    const CHAINS: usize = 4;
    // SAFETY: `len` columns, the caller's contract.
    unsafe {
        let zero = S::splat(0.0);
        let divisor = S::splat(levels.divisor());
        match levels.rule {
            Rule::Symmetric => {
                let mut top = [zero; CHAINS];
                for c in 0..len {
                    top[c % CHAINS] = S::max(top[c % CHAINS], S::abs(column::<S>(columns, c)));
                }
                let top = S::max(S::max(top[0], top[1]), S::max(top[2], top[3]));
                (round_lanes::<S>(format, S::div(top, divisor)), zero)
            }
            Rule::SignedMax | Rule::Asymmetric => {
                let (mut low, mut high) =
                    ([column::<S>(columns, 0); CHAINS], [column::<S>(columns, 0); CHAINS]);
                for c in 0..len {
                    low[c % CHAINS] = S::min(low[c % CHAINS], column::<S>(columns, c));
                    high[c % CHAINS] = S::max(high[c % CHAINS], column::<S>(columns, c));
                }
                let low = S::min(S::min(low[0], low[1]), S::min(low[2], low[3]));
                let high = S::max(S::max(high[0], high[1]), S::max(high[2], high[3]));
                if levels.rule == Rule::SignedMax {
                    let extreme = S::select_gt(S::sub(zero, low), high, low, high);
                    (round_lanes::<S>(format, S::div(extreme, divisor)), zero)
                } else {
                    let base = outward_lanes::<S>(format, low, -1.0);
                    (outward_lanes::<S>(format, S::div(S::sub(high, base), divisor), 1.0), base)
                }
            }
            Rule::LloydMax => {
                let mut squares = [zero; CHAINS];
                for c in 0..len {
                    squares[c % CHAINS] =
                        S::fma(column::<S>(columns, c), column::<S>(columns, c), squares[c % CHAINS]);
                }
                let sum = S::add(S::add(squares[0], squares[1]), S::add(squares[2], squares[3]));
                let rms = S::sqrt(S::mul(sum, S::splat(1.0 / len as f32)));
                (round_lanes::<S>(format, S::mul(rms, S::splat(levels.unit))), zero)
            }
        }
    }
}

/// The codes of one channel for sixteen tokens.
#[inline(always)]
unsafe fn code<S: Simd>(levels: &Levels, x: S::F, scale: &Scale<S>) -> S::I {
    // SAFETY: the tier is available.
    unsafe {
        if levels.rule == Rule::LloydMax {
            let x = S::mul(x, scale.inverse);
            let mut code = S::izero();
            for boundary in &levels.boundaries {
                code = S::inc_where_gt(code, x, S::splat(*boundary));
            }
            return code;
        }
        let (bottom, top) = levels.range();
        let level = match levels.rule {
            Rule::Asymmetric => S::mul(S::sub(x, scale.zero), scale.inverse),
            _ => S::fma(x, scale.inverse, S::splat(levels.centre() as f32)),
        };
        S::round(S::min(S::max(level, S::splat(bottom)), S::splat(top)))
    }
}

/// The codes of a span of one tile, on their way into units.
///
/// Keys want four channels of a token in a word: channels are merged by shifts as they come. Values want four tokens
/// of a channel in a word: the low bytes of the lanes, stored side by side, are just that.
struct TileCodes {
    /// Keys: word of (channel quad, token). Values: word of (channel, token quad).
    words: [MaybeUninit<u32>; LANES * MAX_DIM / 4],
}

impl TileCodes {
    #[inline(always)]
    fn new() -> TileCodes {
        TileCodes { words: [const { MaybeUninit::uninit() }; LANES * MAX_DIM / 4] }
    }

    /// Channels must come in order, because a word starts with its first one.
    #[inline(always)]
    unsafe fn set<S: Simd>(&mut self, side: Side, channel: usize, codes: S::I) {
        // SAFETY: channel < MAX_DIM; the words of a quad are written by its first channel before they are read.
        unsafe {
            let words = self.words.as_mut_ptr();
            match side {
                Side::Key => {
                    let p = words.add(LANES * (channel / 4)).cast::<i32>();
                    let merged = match channel % 4 {
                        0 => codes,
                        1 => S::ior_shl::<8>(S::iload(p), codes),
                        2 => S::ior_shl::<16>(S::iload(p), codes),
                        _ => S::ior_shl::<24>(S::iload(p), codes),
                    };
                    S::istore(p, merged);
                }
                Side::Value => S::store_low_bytes(words.add(4 * channel).cast(), codes),
            }
        }
    }

    /// Packs the span's units of this tile. Every channel of the span must have been set.
    #[inline(always)]
    unsafe fn write(&self, codec: &ScalarCodec, span: &Span, tile: usize, page: *mut u8) {
        let layout = &codec.layout;
        let (row, unit) = (layout.row_bytes(span), pack::unit_bytes(span.bits));
        // SAFETY: every word of the span was set; units of this tile lie within the page.
        unsafe {
            let words = self.words.as_ptr().cast::<u32>();
            for r in 0..span.len / layout.side.row() {
                let at = page.add(span.codes + r * row);
                match layout.side {
                    Side::Key => {
                        let v = words.add(LANES * 2 * r).cast::<[Words; 2]>();
                        pack::pack(span.bits, &*v, std::slice::from_raw_parts_mut(at.add(tile * unit), unit));
                    }
                    Side::Value => {
                        // Sixteen tokens of sixteen channels: two units of eight tokens.
                        for octet in 0..2 {
                            let mut v = [[0u32; 16]; 2];
                            for (half, v) in v.iter_mut().enumerate() {
                                for (channel, word) in v.iter_mut().enumerate() {
                                    *word = *words.add(4 * (LANES * r + channel) + 2 * octet + half);
                                }
                            }
                            let at = at.add((2 * tile + octet) * unit);
                            pack::pack(span.bits, &v, std::slice::from_raw_parts_mut(at, unit));
                        }
                    }
                }
            }
        }
    }
}
