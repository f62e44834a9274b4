//! Heads of a slot whose channels have widths of their own, as a plan shares out bits: where the codes of each head lie becomes data, so
//! that one kernel serves them all.
//!
//! The map of a head is the number of channels that have codes, the word where their zeros begin, and a word for every row of units (8
//! channels of a key, 16 of a value): its first word in the page, its bits from bit 20 on, and from bit 24 on which of the
//! [`template`]'s spans has that width.

use kvant_codec::Side;
use kvant_codec::format::{CodeMeaning, PackedFormat};
use std::fmt::Write;

/// The first bit of a row's width in its word, and of its span.
const BITS: u32 = 20;
const SPAN: u32 = 24;

/// Channels of a row of units.
pub(crate) fn row_channels(side: Side) -> usize {
    match side {
        Side::Key => 8,
        Side::Value => 16,
    }
}

/// Words of a head's map.
pub(crate) fn step(format: &PackedFormat) -> usize {
    2 + format.dim.div_ceil(row_channels(format.side))
}

/// Whether kernels can serve both heads: nothing but bases and widths differ, channels alone have scales, and zeros.
pub(crate) fn agree(a: &PackedFormat, b: &PackedFormat) -> bool {
    let shape = |format: &PackedFormat| (format.side, format.dim, format.tokens, format.scales);
    let is_served = |format: &PackedFormat| {
        format.channel_scale.is_some()
            && format.channel_zero.is_some()
            && format.token_scale.is_none()
            && format.spans.iter().all(|span| span.meaning == CodeMeaning::WithZero)
    };
    shape(a) == shape(b) && is_served(a) && is_served(b)
}

/// A format that is none of the heads' but has what they share: the most coded channels, and one span for every width.
pub(crate) fn template(heads: &[&PackedFormat]) -> PackedFormat {
    let mut format = heads[0].clone();
    format.coded = heads.iter().map(|head| head.coded).max().unwrap_or(0);
    let all = || heads.iter().flat_map(|head| &head.spans);
    let mut widths: Vec<u8> = all().map(|span| span.bits).collect();
    widths.sort_unstable_by(|a, b| b.cmp(a));
    widths.dedup();
    format.spans = widths.iter().filter_map(|bits| all().find(|span| span.bits == *bits)).cloned().collect();
    format
}

/// The maps of all heads.
pub(crate) fn maps(heads: &[&PackedFormat], template: &PackedFormat) -> Vec<u32> {
    let mut words = Vec::new();
    for head in heads {
        let row = row_channels(head.side);
        let zeros = head.channel_zero.as_ref().map_or(0, |range| range.start / 4);
        let end = words.len() + step(head);
        words.extend([head.coded as u32, zeros as u32]);
        for span in &head.spans {
            let index = template.spans.iter().position(|other| other.bits == span.bits).unwrap_or(0);
            let units = head.side.units(head.tokens) * 4 * usize::from(span.bits);
            words.extend((0..span.len / row).map(|r| {
                let at = span.codes / 4 + r * units;
                at as u32 | (u32::from(span.bits) << BITS) | ((index as u32) << SPAN)
            }));
        }
        words.resize(end, 0);
    }
    words
}

/// The declaration of the maps of a side.
pub(crate) fn binding(binding: usize, name: &str) -> String {
    format!("@group(0) @binding({binding}) var<storage, read> {name}: array<u32>;\n")
}

/// `mixed_codes(page, entry, unit, half, lane)`: codes 4 · lane to 4 · lane + 3 of a vector of a unit, as bytes.
pub(crate) const CODES: &str = "
fn mixed_codes(page: u32, entry: u32, unit: u32, half: u32, lane: u32) -> u32 {
    let bits = (entry >> 20u) & 15u;
    var at = (entry & 0xfffffu) + unit * 4u * bits;
    if bits == 8u {
        return page_word(page, at + 16u * half + lane);
    }
    var codes = 0u;
    var shift = 0u;
    if (bits & 4u) != 0u {
        codes = (page_word(page, at + lane) >> (4u * half)) & 0x0f0f0f0fu;
        at += 16u;
        shift = 4u;
    }
    if (bits & 2u) != 0u {
        codes |= ((page_word(page, at + 4u * half + lane % 4u) >> (2u * (lane / 4u))) & 0x03030303u) << shift;
        at += 8u;
        shift += 2u;
    }
    if (bits & 1u) != 0u {
        codes |= spread((page_word(page, at + 2u * half + lane / 8u) >> (4u * (lane % 8u))) & 15u) << shift;
    }
    return codes;
}
";

/// `section_of`, `begin_head` and `pack` of the kernel that encodes.
pub(crate) fn encoder(format: &PackedFormat, basis_step: usize) -> String {
    let (row, units, code, unit) = match format.side {
        Side::Key => (8, 1, "code(first + lane, 8u * r + 4u * half + j, section)", "first / 16u"),
        Side::Value => {
            (16, 2, "code(first + 8u * u + 4u * half + j, 16u * r + lane, section)", "first / 8u + u")
        }
    };
    let mut text = include_str!("wgsl/mixed.wgsl").replace("//UNIT", unit).replace("//CODE", code);
    for (name, number) in [
        ("ROW_CHANNELS", row),
        ("ROWS", format.dim.div_ceil(row)),
        ("UNITS", units),
        ("MAP_STEP", step(format)),
        ("BASIS_STEP", basis_step),
    ] {
        let _ = writeln!(text, "const {name} = {number}u;");
    }
    text
}
