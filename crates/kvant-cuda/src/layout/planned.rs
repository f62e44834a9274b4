//! Pages of `klt` keys (`PlannedKeyPage` of `kernels/pages.cuh`): rows of 8 channels with a width each, whose codes are bit planes.

use super::{PAGE_TOKENS, PAIRED_TOKENS, PageSwizzle, Unsupported};
use kvant_codec::Side;
use kvant_codec::format::{CodeMeaning, Linear, PackedFormat, ScaleFormat};
use std::ops::RangeInclusive;

/// Head dimensions that there are kernels for.
const DIMS: [usize; 2] = [64, 128];

/// Channels of one width.
const ROW: usize = 8;

/// Whether these are keys in the basis of a plan.
pub fn is_planned(format: &PackedFormat) -> bool {
    format.side == Side::Key && matches!(format.basis.linear, Linear::Dense(_))
}

/// Bits of the codes of every row of 8 channels that has some, where kernels read such pages.
///
/// # Errors
/// Says what about the pages no kernel reads.
pub fn widths(format: &PackedFormat) -> Result<Vec<u8>, Unsupported> {
    let refuse = |what: String| Err(Unsupported { what });
    let PackedFormat { channel_scale, channel_zero, token_scale, token_zero, .. } = format;
    let by_channel = channel_scale.is_some() && channel_zero.is_some();
    let by_token = token_scale.is_some() || token_zero.is_some();
    let plain = format.spans.iter().all(|span| span.meaning == CodeMeaning::WithZero);
    if ![PAGE_TOKENS, PAIRED_TOKENS].contains(&format.tokens) {
        return refuse(format!("klt keys in pages of {} tokens; it has them for 64 and 128", format.tokens));
    }
    if !DIMS.contains(&format.dim) {
        return refuse(format!("klt keys of {} channels; it has them for 64 and 128", format.dim));
    }
    if !by_channel || by_token || !plain || format.scales != ScaleFormat::F16 {
        return refuse("keys in a plan's basis without an f16 scale and zero per channel".into());
    }
    if !format.basis.lambda.is_empty() {
        return refuse("keys in a plan's basis with λ".into());
    }
    if 4 * format.coded + code_bytes(format) > 46 * format.dim {
        return refuse("klt keys of more than 5.25 bits".into());
    }
    Ok(format.spans.iter().flat_map(|span| std::iter::repeat_n(span.bits, span.len / ROW)).collect())
}

/// Bytes of the codes of 64 tokens.
pub fn code_bytes(format: &PackedFormat) -> usize {
    let bits = format.spans.iter().map(|span| span.len * usize::from(span.bits));
    PAGE_TOKENS * bits.sum::<usize>() / 8
}

/// Planes of bits in the device's order: the widths that have it, its bits, and the first of them.
const PLANES: [(RangeInclusive<u8>, usize, usize); 7] =
    [(4..=8, 4, 0), (8..=8, 4, 4), (6..=6, 2, 4), (2..=3, 2, 0), (5..=5, 1, 4), (3..=3, 1, 2), (1..=1, 1, 0)];

/// The bit of a code in a canonical unit of 128 codes: code `i` of vector `h`, in bits from the unit's start.
fn canonical_bit(bits: u8, bit: usize, h: usize, i: usize) -> usize {
    let byte = bits == 8;
    let nibble = if bits >= 4 { 4 } else { 0 };
    let crumb = usize::from(bits & 2);
    match bit {
        _ if byte => 8 * (64 * h + i) + bit,
        _ if bit < nibble => 8 * i + 4 * h + bit,
        _ if bit < nibble + crumb => 128 * nibble + 8 * (16 * h + i % 16) + 2 * (i / 16) + bit - nibble,
        _ => 128 * (nibble + crumb) + 8 * (8 * h + i / 8) + i % 8,
    }
}

/// The first bit of a code in its row's plane on the device: token 16·mt + 8r + g, channel 2t + e of the row.
fn device_bit(plane: usize, token: usize, channel: usize) -> usize {
    let (mt, r, lane) = (token / 16, token / 8 % 2, 4 * (token % 8) + channel / 2);
    let e = channel % 2;
    match plane {
        4 => 32 * (2 * lane + mt / 2) + 16 * e + 8 * (mt % 2) + 4 * r,
        2 => 32 * lane + 16 * e + 8 * (mt / 2) + 4 * r + 2 * (mt % 2),
        _ => 16 * lane + 8 * e + 4 * r + mt,
    }
}

pub(super) fn swizzle(format: &PackedFormat) -> Result<PageSwizzle, Unsupported> {
    widths(format)?;
    // Where the codes of every row begin, and its width.
    let rows: Vec<(usize, u8)> = format
        .spans
        .iter()
        .flat_map(|span| {
            let row_bytes = format.tokens * usize::from(span.bits);
            (0..span.len / ROW).map(move |row| (span.codes + row * row_bytes, span.bits))
        })
        .collect();
    let mut pairs = Vec::new();
    let mut device = 8 * 4 * format.coded; // in bits: after scales and zeros, which lie as they do
    let halves = (0..format.tokens).step_by(PAGE_TOKENS);
    for (start, (have, plane, first)) in halves.flat_map(|start| PLANES.map(|planes| (start, planes))) {
        for (codes, bits) in rows.iter().filter(|(_, bits)| have.contains(bits)) {
            for (token, channel) in (0..PAGE_TOKENS).flat_map(|token| (0..ROW).map(move |c| (token, c))) {
                let unit = codes + (start + token) / 16 * 16 * usize::from(*bits);
                let (h, i) = (channel / 4, 4 * (token % 16) + channel % 4);
                for bit in 0..plane {
                    let from = 8 * unit + canonical_bit(*bits, first + bit, h, i);
                    pairs.push((from as u32, (device + device_bit(plane, token, channel) + bit) as u32));
                }
            }
            device += PAGE_TOKENS * ROW * plane;
        }
    }
    let halves = (0..2 * format.coded as u32).map(|i| (i, i)).collect();
    Ok(PageSwizzle { bytes: format.bytes, halves, nibbles: Vec::new(), bits: pairs })
}
