//! Pages back to vectors: for engines that want tensors, for what has no kernel, and to be compared with.
//!
//! Sixteen tokens at a time, one per lane, as they were encoded: codes are dealt into columns and scaled, the columns
//! moved back to the model's basis, and turned into rows. The formula, code by code, is in the tests.
//!
//! **Invariant:** only element-wise operations, in the formula's order, so every tier gives the same bits.

use super::{by_width, load_array, load_scales};
use crate::format::{CodeMeaning, PackedFormat, Side, Span};
use crate::pack::unpack;
use crate::scratch::Scratch;
use crate::transform::Basis;
use kvant_simd::{LANES, Simd, Work};
use std::marker::PhantomData;
use std::ops::Range;

/// Decodes a page into rows, (tokens, dim).
///
/// # Safety
/// `page` has the format's bytes, `rows` is valid for tokens · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd>(format: &PackedFormat, basis: &Basis, page: &[u8], rows: *mut f32) {
    let padded = format.coded.max(format.dim).next_multiple_of(LANES);
    let mut buffer = Scratch::take(2 * LANES * padded + 2 * padded);
    let (columns, rest) = buffer.floats().split_at_mut(LANES * padded);
    let (scratch, factors) = rest.split_at_mut(LANES * padded);
    let (scales, zeros) = factors.split_at_mut(padded);
    // SAFETY: both buffers have `padded` columns, at least as many as the basis and the spans; factors have a number for
    // each; rows of a tile lie within the output.
    unsafe {
        channel_factors::<S>(format, page, &format.channel_scale, 1.0, scales);
        channel_factors::<S>(format, page, &format.channel_zero, 0.0, zeros);
        for tile in 0..format.tokens / LANES {
            columns[LANES * format.coded..].fill(0.0);
            for span in &format.spans {
                let (page, columns) = (page.as_ptr(), columns.as_mut_ptr());
                let (scales, zeros) = (scales.as_ptr(), zeros.as_ptr());
                by_width!(S, span, SpanDecoder::<S> { format, span, page, tile, scales, zeros, columns });
            }
            basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr());
            let rows = rows.add(tile * LANES * format.dim);
            to_rows::<S>(columns.as_ptr(), basis.mean(), format.dim, rows);
        }
    }
}

/// The scales or zeros of all coded channels as floats; `absent` where the page has none.
///
/// # Safety
/// `page` has the format's bytes, `factors` a number for every coded channel; the CPU has the tier.
#[inline(always)]
unsafe fn channel_factors<S: Simd>(
    format: &PackedFormat,
    page: &[u8],
    array: &Option<Range<usize>>,
    absent: f32,
    factors: &mut [f32],
) {
    let Some(range) = array else { return factors.fill(absent) };
    let bytes = &page[range.clone()];
    let whole = format.coded / LANES * LANES;
    for first in (0..whole).step_by(LANES) {
        let from = &bytes[first * format.scales.bytes()..];
        // SAFETY: sixteen channels from here on are coded, and have numbers in both.
        unsafe { S::store(factors[first..].as_mut_ptr(), load_scales::<S>(format.scales, from.as_ptr())) };
    }
    for c in whole..format.coded {
        factors[c] = format.scales.read(bytes, c);
    }
}

/// Columns, one per channel, to sixteen rows; the mean is added.
///
/// # Safety
/// `columns` holds columns up to the next multiple of sixteen of `dim`, `rows` is valid for sixteen of them; the CPU has the
/// tier.
#[inline(always)]
unsafe fn to_rows<S: Simd>(columns: *const f32, mean: &[f32], dim: usize, rows: *mut f32) {
    for first in (0..dim).step_by(LANES) {
        let count = LANES.min(dim - first);
        let mut means = [0.0; LANES];
        if let Some(mean) = mean.get(first..first + count) {
            means[..count].copy_from_slice(mean);
        }
        // SAFETY: a block of sixteen columns is there, and `count` channels of every row.
        unsafe {
            let means = S::load(means.as_ptr());
            let block = S::transpose(columns.add(LANES * first), LANES);
            for token in 0..LANES {
                let (x, row) = (S::add(block[token], means), rows.add(token * dim + first));
                if count == LANES {
                    S::store(row, x);
                } else {
                    let mut part = [0.0; LANES];
                    S::store(part.as_mut_ptr(), x);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), row, count);
                }
            }
        }
    }
}

/// One span of one tile: (s_t·level + z_t)·s_c + z_c, in the codec's basis.
struct SpanDecoder<'a, S, const BITS: u32, const TABLE: bool> {
    format: &'a PackedFormat,
    span: &'a Span,
    page: *const u8,
    tile: usize,
    /// One per coded channel.
    scales: *const f32,
    zeros: *const f32,
    /// (channels, 16 tokens).
    columns: *mut f32,
    simd: PhantomData<S>,
}

impl<S: Simd, const BITS: u32, const TABLE: bool> Work<S> for SpanDecoder<'_, S, BITS, TABLE> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        let Self { format, span, page, tile, scales, zeros, columns, .. } = self;
        let at = (span.group * format.tokens + tile * LANES) * format.scales.bytes();
        // Tables and full bytes come as the tier's dot products like them.
        let is_full = TABLE || BITS == 8;
        let centre = match span.meaning {
            CodeMeaning::Shifted if !is_full => 1 << (BITS - 1),
            CodeMeaning::WithZero if !is_full => 0,
            CodeMeaning::WithZero => S::BYTE_CENTRE - 128,
            CodeMeaning::Shifted | CodeMeaning::Table(_) => S::BYTE_CENTRE,
        };
        // SAFETY: token arrays have numbers for every tile, units of the span lie within the page, and every channel of the
        // span has its factors and its column.
        unsafe {
            let centre = S::splat(centre as f32);
            let token_scale = load_array::<S>(format.scales, page, &format.token_scale, at);
            let token_zero = load_array::<S>(format.scales, page, &format.token_zero, at);
            let token_scale = token_scale.unwrap_or(S::splat(1.0));
            let token_zero = token_zero.unwrap_or(S::splat(0.0));
            let table = S::table(span.meaning.table());
            for first in (0..span.len).step_by(LANES) {
                let count = LANES.min(span.len - first);
                let mut codes = self.codes(first, count);
                if TABLE {
                    for i in 0..4 {
                        codes[i] = S::lookup::<BITS>(table, codes[i]);
                    }
                }
                let bytes = dealt::<S>(codes);
                for c in 0..count {
                    let (from, channel) = (bytes.as_ptr().add(LANES * c), span.first + first + c);
                    let byte = if is_full && S::BYTE_CENTRE == 0 {
                        S::load_i8(from.cast())
                    } else {
                        S::load_u8(from)
                    };
                    let x = S::add(S::mul(S::sub(byte, centre), token_scale), token_zero);
                    let (scale, zero) = (S::splat(*scales.add(channel)), S::splat(*zeros.add(channel)));
                    S::store(columns.add(LANES * channel), S::add(S::mul(x, scale), zero));
                }
            }
        }
    }
}

impl<S: Simd, const BITS: u32, const TABLE: bool> SpanDecoder<'_, S, BITS, TABLE> {
    /// The codes of sixteen channels from `first` of the span on, or of the eight that are left of a key: vector i, lane c,
    /// byte k is channel c of token 4·i + k.
    ///
    /// # Safety
    /// `count` channels from `first` on are the span's; the CPU has the tier.
    #[inline(always)]
    unsafe fn codes(&self, first: usize, count: usize) -> [S::B; 4] {
        let (row, tile) = (first / self.format.side.row(), self.tile);
        // SAFETY: the caller's channels have units in these rows.
        unsafe {
            match self.format.side {
                Side::Key => {
                    let (a, b) = self.unit(row, tile);
                    let (c, d) =
                        if count == LANES { self.unit(row + 1, tile) } else { (S::bzero(), S::bzero()) };
                    S::transpose_bytes([a, b, c, d])
                }
                Side::Value => {
                    let ((a, b), (c, d)) = (self.unit(row, 2 * tile), self.unit(row, 2 * tile + 1));
                    [a, b, c, d]
                }
            }
        }
    }

    /// Both vectors of a unit of the span.
    ///
    /// # Safety
    /// The span has such a row, and a row such a unit; the CPU has the tier.
    #[inline(always)]
    unsafe fn unit(&self, row: usize, unit: usize) -> (S::B, S::B) {
        let units = self.format.side.units(self.format.tokens);
        let at = self.span.codes + (row * units + unit) * 16 * BITS as usize;
        // SAFETY: the unit lies within the page.
        unsafe { unpack::<S, BITS>(self.page.add(at)) }
    }
}

/// Sixteen lanes of four words, a vector for each word, as sixteen rows of sixteen bytes.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn dealt<S: Simd>(vectors: [S::B; 4]) -> [u8; LANES * LANES] {
    let mut bytes = [0u8; LANES * LANES];
    // SAFETY: four vectors of 64 bytes.
    unsafe {
        for (i, vector) in vectors.into_iter().enumerate() {
            S::bstore(bytes.as_mut_ptr().add(64 * i).cast(), vector);
        }
        // Dealing takes rows of words to columns; it turns an index of six bits by two of them, so that twice is the way back.
        for _ in 0..2 {
            for (i, words) in S::deal_words(bytes.as_ptr().cast()).into_iter().enumerate() {
                S::istore(bytes.as_mut_ptr().add(64 * i).cast(), words);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests;
