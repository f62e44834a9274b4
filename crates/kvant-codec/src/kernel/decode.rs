//! Pages back to vectors: the formula, code by code. The oracle, and the fallback of what has no kernel.

use crate::format::{PackedFormat, Span, unit_bytes};
use crate::pack;
use crate::scratch::Scratch;
use crate::transform::Basis;
use kvant_simd::{LANES, Simd};

/// Decodes a page into rows, (tokens, dim).
///
/// # Safety
/// `page` has the format's bytes, `rows` is valid for tokens · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd>(format: &PackedFormat, basis: &Basis, page: &[u8], rows: *mut f32) {
    let (dim, tokens) = (format.dim, format.tokens);
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for tile in 0..tokens / LANES {
        columns.fill(0.0);
        for span in &format.spans {
            decode_span(format, span, page, tile, columns);
        }
        // SAFETY: both buffers have `dim` columns; rows of this tile lie within the output.
        unsafe {
            basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr());
            for lane in 0..LANES {
                let row = rows.add((tile * LANES + lane) * dim);
                for c in 0..dim {
                    let mean = basis.mean().get(c).copied().unwrap_or(0.0);
                    *row.add(c) = columns[LANES * c + lane] + mean;
                }
            }
        }
    }
}

fn decode_span(format: &PackedFormat, span: &Span, page: &[u8], tile: usize, columns: &mut [f32]) {
    let (row, unit) = (format.row_bytes(span), unit_bytes(span.bits));
    let read = |range: &Option<std::ops::Range<usize>>, index: usize| {
        range.as_ref().map(|range| format.scales.read(&page[range.clone()], index))
    };
    let last = (span.first + span.len).min(format.dim);
    for c in span.first..last {
        let channel_scale = read(&format.channel_scale, c).unwrap_or(1.0);
        let channel_zero = read(&format.channel_zero, c).unwrap_or(0.0);
        let width = format.side.row();
        for lane in 0..LANES {
            let token = tile * LANES + lane;
            let (u, half, index) = format.side.place(token, c % width);
            let at = span.codes + (c - span.first) / width * row + u * unit;
            let level = span.level(pack::code(span.bits, &page[at..at + unit], half, index));
            let at = span.group * format.tokens + token;
            let token_scale = read(&format.token_scale, at).unwrap_or(1.0);
            let token_zero = read(&format.token_zero, at).unwrap_or(0.0);
            columns[LANES * c + lane] = (level * token_scale + token_zero) * channel_scale + channel_zero;
        }
    }
}
