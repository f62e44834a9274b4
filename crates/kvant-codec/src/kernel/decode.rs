//! Pages back to vectors: the formula, code by code. The oracle, and the fallback of what has no kernel.

use super::scratch::Scratch;
use crate::codec::scalar::ScalarCodec;
use crate::pack;
use crate::page::Span;
use crate::quant::Levels;
use kvant_simd::{LANES, Simd};

/// Decodes a page into rows, (tokens, dim).
///
/// # Safety
/// `page` has the layout's bytes, `rows` is valid for tokens · dim floats; the CPU has the tier.
#[inline(always)]
pub(crate) unsafe fn decode<S: Simd>(codec: &ScalarCodec, page: &[u8], rows: *mut f32) {
    let layout = &codec.layout;
    let (dim, tokens) = (layout.dim, layout.tokens);
    let mut buffer = Scratch::take(2 * LANES * dim);
    let (columns, scratch) = buffer.floats().split_at_mut(LANES * dim);
    for tile in 0..tokens / LANES {
        columns.fill(0.0);
        for (span, levels) in layout.spans.iter().zip(&codec.levels) {
            decode_span(codec, span, levels, page, tile, columns);
        }
        // SAFETY: both buffers have `dim` columns; rows of this tile lie within the output.
        unsafe {
            codec.basis.inverse::<S>(columns.as_mut_ptr(), scratch.as_mut_ptr());
            for lane in 0..LANES {
                let row = rows.add((tile * LANES + lane) * dim);
                for c in 0..dim {
                    let mean = codec.basis.mean().get(c).copied().unwrap_or(0.0);
                    *row.add(c) = columns[LANES * c + lane] + mean;
                }
            }
        }
    }
}

fn decode_span(
    codec: &ScalarCodec,
    span: &Span,
    levels: &Levels,
    page: &[u8],
    tile: usize,
    columns: &mut [f32],
) {
    let layout = &codec.layout;
    let (row, unit) = (layout.row_bytes(span), pack::unit_bytes(span.bits));
    let read = |range: &Option<std::ops::Range<usize>>, index: usize| {
        range.as_ref().map(|range| layout.format.read(&page[range.clone()], index))
    };
    let last = (span.first + span.len).min(layout.dim);
    for c in span.first..last {
        let channel_scale = read(&layout.channel_scale, c).unwrap_or(1.0);
        let channel_zero = read(&layout.channel_zero, c).unwrap_or(0.0);
        let width = layout.side.row();
        for lane in 0..LANES {
            let token = tile * LANES + lane;
            let (u, half, index) = layout.side.place(token, c % width);
            let at = span.codes + (c - span.first) / width * row + u * unit;
            let level = levels.level(pack::code(span.bits, &page[at..at + unit], half, index));
            let at = span.group * layout.tokens + token;
            let token_scale = read(&layout.token_scale, at).unwrap_or(1.0);
            let token_zero = read(&layout.token_zero, at).unwrap_or(0.0);
            columns[LANES * c + lane] = (level * token_scale + token_zero) * channel_scale + channel_zero;
        }
    }
}
