//! The text that reads codes of pages as bytes, and the numbers around them, for attention in integers (`wgsl/coded_dots.wgsl`).
//!
//! What a code stands for is (level · s_t + z_t) · s_c + z_c. A byte is the level less a constant of its section: codes of less than eight
//! bits are bytes as they are, those of eight bits less 128.

use crate::page_text::{channel_of, four_scales, group_channels, of_section, one_scale, sections};
use kvant_codec::Side;
use kvant_codec::format::{CodeMeaning, PackedFormat, Span};
use std::fmt::Write;

/// Numbers of x, or positions, that share a scale when they become integers.
const CHUNK: usize = 16;

/// Positions that attention takes at a time.
const POSITIONS: usize = 128;

/// What is added to a byte to be the level.
pub(crate) fn centre(section: &Span) -> i32 {
    match (section.meaning, section.bits) {
        (CodeMeaning::Shifted, 8) => 0,
        (CodeMeaning::Shifted, bits) => -(1 << (bits - 1)),
        (_, 8) => 128,
        _ => 0,
    }
}

/// Whether pages of a format can be met by integers: no levels that are looked up, and whole chunks under each scale.
pub(crate) fn meets_integers(format: &PackedFormat) -> bool {
    format.spans.iter().all(|span| !span.meaning.is_table())
        && group_channels(format).is_multiple_of(CHUNK)
        && format.coded.is_multiple_of(CHUNK)
        && format.tokens.is_multiple_of(CHUNK)
        && POSITIONS.is_multiple_of(format.tokens)
}

/// Rows of the token arrays that attention goes through, of values; one where there are none.
pub(crate) fn groups(format: &PackedFormat) -> usize {
    match format.token_scale.is_some() || format.token_zero.is_some() {
        true => format.coded.div_ceil(group_channels(format)),
        false => 1,
    }
}

/// Workgroup memory of the bytes and scales of so many columns.
pub(crate) fn memory(key: &PackedFormat, value: &PackedFormat, columns: usize) -> usize {
    let pages = if has_channels(key) { POSITIONS / key.tokens } else { 1 };
    48 * columns * (pages * key.coded / CHUNK + groups(value) * POSITIONS / CHUNK)
}

fn has_channels(format: &PackedFormat) -> bool {
    format.channel_scale.is_some() || format.channel_zero.is_some()
}

/// The readers of a side and the constants that say what it has.
pub(crate) fn bytes_reader(format: &PackedFormat) -> String {
    let (side, name) = match format.side {
        Side::Key => ("key", "KEY"),
        Side::Value => ("value", "VALUE"),
    };
    let along = match format.side {
        Side::Key => "token: u32, four: u32",
        Side::Value => "channel: u32, four: u32",
    };
    let mut text = format!("fn {side}_bytes(page: u32, {along}) -> u32 {{\n");
    let all = sections(format);
    text += &of_section(format, |index, place| match all[index].bits {
        8 => format!("return codes{index}({place}) ^ 0x80808080u;"),
        _ => format!("return codes{index}({place});"),
    });
    text += "    return 0u;\n}\n";
    let argument = if format.side == Side::Key { "four" } else { "channel" };
    let _ = writeln!(text, "fn {side}_centre({argument}: u32) -> f32 {{");
    for section in &all {
        let _ = writeln!(
            text,
            "    if {} < {}u {{\n        return {}.0;\n    }}",
            channel_of(format.side),
            section.first + section.len,
            centre(section)
        );
    }
    text += "    return 0.0;\n}\n";
    let (group, tokens, scales) = (group_channels(format), format.tokens, format.scales);
    let four = |start: usize, index: &str| four_scales(scales, &format!("{}u", start / 4), index);
    let one = |start: usize, index: &str| one_scale(scales, &format!("{}u", start / 4), index);
    for (what, range, or) in [("scale", &format.token_scale, "1.0"), ("zero", &format.token_zero, "0.0")] {
        let range = range.as_ref().map(|range| range.start);
        let _ = match format.side {
            Side::Key => {
                let number = range.map_or(or.to_owned(), |at| one(at, &format!("group * {tokens}u + token")));
                writeln!(
                    text,
                    "fn key_token_{what}(page: u32, token: u32, group: u32) -> f32 {{\n    return {number};\n}}"
                )
            }
            Side::Value => {
                let numbers = range.map_or(format!("vec4<f32>({or})"), |at| {
                    four(at, &format!("group * {tokens}u + 4u * four"))
                });
                writeln!(
                    text,
                    "fn value_token_{what}(page: u32, group: u32, four: u32) -> vec4<f32> {{\n    return {numbers};\n}}"
                )
            }
        };
    }
    for (what, range, or) in [("scale", &format.channel_scale, "1.0"), ("zero", &format.channel_zero, "0.0")]
    {
        let range = range.as_ref().map(|range| range.start);
        let _ = match format.side {
            Side::Key => {
                let numbers = range.map_or(format!("vec4<f32>({or})"), |at| four(at, "4u * four"));
                writeln!(
                    text,
                    "fn key_channel_{what}(page: u32, four: u32) -> vec4<f32> {{\n    return {numbers};\n}}"
                )
            }
            Side::Value => {
                let number = range.map_or(or.to_owned(), |at| one(at, "channel"));
                writeln!(
                    text,
                    "fn value_channel_{what}(page: u32, channel: u32) -> f32 {{\n    return {number};\n}}"
                )
            }
        };
    }
    let pages = if has_channels(format) { POSITIONS / tokens } else { 1 };
    let _ = writeln!(
        text,
        "const {name}_GROUP = {group}u;\nconst {name}_GROUPS = {}u;\nconst {name}_CODED = {}u;\nconst {name}_BY_TOKEN = {};\n\
         const {name}_BY_CHANNEL = {};\nconst {name}_KINDS = {pages}u;",
        groups(format),
        format.coded,
        format.token_scale.is_some() || format.token_zero.is_some(),
        has_channels(format),
    );
    text
}
