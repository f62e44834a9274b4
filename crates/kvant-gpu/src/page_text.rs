//! The text that reads, and writes, pages of one format in a kernel: plain data becomes constants.
//!
//! Keys are read four channels of a token at a time, values four tokens of a channel: that is how codes lie in a unit, for every
//! width and on both sides, and what comes out is ŷ = (level · s_t + z_t) · s_c + z_c with the parts that the format has.

use crate::head_widths;
use kvant_codec::format::{CodeMeaning, ExactFormat, PackedFormat, Span};
use kvant_codec::{Element, ScaleFormat, Side};
use std::fmt::Write;

/// Planes of a unit: bits, and words of 128 codes.
pub(crate) fn planes(bits: u8) -> Vec<(u8, usize)> {
    if bits == 8 {
        return vec![(8, 32)];
    }
    [4, 2, 1]
        .into_iter()
        .filter(|plane| bits & plane != 0)
        .map(|plane| (plane, usize::from(plane) * 4))
        .collect()
}

/// Neighbouring spans of one width and meaning: their rows of units follow each other.
pub(crate) fn sections(format: &PackedFormat) -> Vec<Span> {
    let mut sections: Vec<Span> = Vec::new();
    for span in &format.spans {
        match sections.last_mut() {
            Some(last) if last.bits == span.bits && last.meaning == span.meaning => last.len += span.len,
            _ => sections.push(span.clone()),
        }
    }
    sections
}

/// Channels under one token scale.
pub(crate) fn group_channels(format: &PackedFormat) -> usize {
    format.spans.iter().find(|span| span.group == 1).map_or(format.coded.max(format.dim), |span| span.first)
}

/// Words of a row of units.
pub(crate) fn row_words(format: &PackedFormat, bits: u8) -> usize {
    format.side.units(format.tokens) * 4 * usize::from(bits)
}

/// The declarations of `count` buffers of pages, arrays of `element`, from a binding on.
pub(crate) fn declared(first_binding: usize, count: usize, access: &str, element: &str) -> String {
    let mut text = String::new();
    for index in 0..count {
        let binding = first_binding + index;
        let _ = writeln!(
            text,
            "@group(0) @binding({binding}) var<storage, {access}> pages{index}: array<{element}>;"
        );
    }
    text
}

/// What `body` says of each of `count` buffers, for the one that `page` lies in.
pub(crate) fn by_buffer(count: usize, body: impl Fn(usize) -> String) -> String {
    let mut text = String::from("    switch page >> 27u {\n");
    for index in 1..count {
        let _ = writeln!(text, "        case {index}u: {{ {} }}", body(index));
    }
    let _ = writeln!(text, "        default: {{ {} }}\n    }}", body(0));
    text
}

/// The declarations of `count` buffers of pages from a binding on, and how their words are reached.
pub(crate) fn buffers(first_binding: usize, count: usize, writes: bool) -> String {
    let access = if writes { "read_write" } else { "read" };
    let mut text = declared(first_binding, count, access, "u32");
    let at = "    let at = ((page & 0x07ffffffu) << 2u) + word;\n";
    let read = by_buffer(count, |index| format!("return pages{index}[at];"));
    let _ = writeln!(text, "fn page_word(page: u32, word: u32) -> u32 {{\n{at}{read}}}");
    if writes {
        let write = by_buffer(count, |index| format!("pages{index}[at] = value;"));
        let _ = writeln!(text, "fn set_page_word(page: u32, word: u32, value: u32) {{\n{at}{write}}}");
    }
    text
}

/// The line that a reader of pages begins with: `key4_coded(page, token, fours)` or `value4_coded(page, channel, fours)`.
fn reader_head(side: Side) -> String {
    let (name, along) = match side {
        Side::Key => ("key4_coded", "token: u32, four: u32"),
        Side::Value => ("value4_coded", "channel: u32, four: u32"),
    };
    format!("fn {name}(page: u32, {along}) -> vec4<f32> {{\n")
}

/// Reads pages of a side that are plain numbers.
pub(crate) fn exact_pages_reader(format: &ExactFormat) -> String {
    let tokens = format.tokens;
    let call = match format.side {
        Side::Key => format!("key4_exact(page, token, four, {tokens}u)"),
        Side::Value => format!("value4_exact(page, channel, 4u * four, {tokens}u)"),
    };
    format!("{}    return {call};\n}}\n", reader_head(format.side))
}

/// The channel, or the first of four, that a reader is asked for.
pub(crate) fn channel_of(side: Side) -> &'static str {
    match side {
        Side::Key => "4u * four",
        Side::Value => "channel",
    }
}

/// What is done to the codes of the section of a channel: `what` of its number, and of page, word, half and lane.
pub(crate) fn of_section(format: &PackedFormat, what: impl Fn(usize, &str) -> String) -> String {
    // Which row of units, which half of them and which lane.
    let (row, unit, lane) = match format.side {
        Side::Key => ("(4u * four - FIRST) / 8u", "token / 16u", "token % 16u"),
        Side::Value => ("(channel - FIRST) / 16u", "four / 2u", "(channel - FIRST) % 16u"),
    };
    let channel = channel_of(format.side);
    let mut text = String::new();
    for (index, section) in sections(format).iter().enumerate() {
        let first = format!("{}u", section.first);
        let place = format!("page, at, four % 2u, {}", lane.replace("FIRST", &first));
        let _ = writeln!(
            text,
            "    {}if {channel} < {}u {{\n        let at = {}u + ({}) * {}u + ({unit}) * {}u;\n        {}\n    }}",
            if index == 0 { "" } else { "else " },
            section.first + section.len,
            section.codes / 4,
            row.replace("FIRST", &first),
            row_words(format, section.bits),
            4 * usize::from(section.bits),
            what(index, &place),
        );
    }
    text
}

/// Reads pages of a side that are codes under scales.
pub(crate) fn packed_pages_reader(format: &PackedFormat) -> String {
    let mut text = String::new();
    let sections = sections(format);
    for (index, section) in sections.iter().enumerate() {
        text += &levels_text(index, section);
    }
    text += &reader_head(format.side);
    text += "    var y = vec4<f32>(0.0);\n";
    if format.coded < format.dim {
        // Channels without bits are zero, and have no scales.
        let channel = channel_of(format.side);
        let _ = writeln!(text, "    if {channel} >= {}u {{\n        return y;\n    }}", format.coded);
    }
    text += &of_section(format, |index, place| format!("y = levels{index}({place});"));
    let group = group_channels(format);
    let (tokens, scales) = (format.tokens, format.scales);
    let word = |start: usize| format!("{}u", start / 4);
    let token_at = |start: usize| match format.side {
        Side::Key => format!(
            "vec4<f32>({})",
            one_scale(scales, &word(start), &format!("(4u * four / {group}u) * {tokens}u + token"))
        ),
        Side::Value => {
            four_scales(scales, &word(start), &format!("(channel / {group}u) * {tokens}u + 4u * four"))
        }
    };
    let channel_at = |start: usize| match format.side {
        Side::Key => four_scales(scales, &word(start), "4u * four"),
        Side::Value => format!("vec4<f32>({})", one_scale(scales, &word(start), "channel")),
    };
    for (scale, zero, at) in [
        (&format.token_scale, &format.token_zero, &token_at as &dyn Fn(usize) -> String),
        (&format.channel_scale, &format.channel_zero, &channel_at),
    ] {
        match (scale, zero) {
            (Some(scale), Some(zero)) => {
                let _ = writeln!(text, "    y = fma(y, {}, {});", at(scale.start), at(zero.start));
            }
            (Some(scale), None) => {
                let _ = writeln!(text, "    y = y * {};", at(scale.start));
            }
            (None, Some(zero)) => {
                let _ = writeln!(text, "    y = y + {};", at(zero.start));
            }
            (None, None) => {}
        }
    }
    text + "    return y;\n}\n"
}

/// Reads pages of a side whose heads have widths of their own.
pub(crate) fn mixed_pages_reader(template: &PackedFormat) -> String {
    let (scales, side) = (template.scales, template.side);
    let (map, channel, row, place) = match side {
        Side::Key => ("key_map", "4u * four", "four / 2u", "token / 16u, four % 2u, token % 16u"),
        Side::Value => ("value_map", "channel", "channel / 16u", "four / 2u, four % 2u, channel % 16u"),
    };
    let numbers = |word: &str| match side {
        Side::Key => four_scales(scales, word, channel),
        Side::Value => format!("vec4<f32>({})", one_scale(scales, word, channel)),
    };
    let scale_at = template.channel_scale.as_ref().map_or(0, |range| range.start / 4);
    format!(
        "{}    let map_at = kv_head * {}u;
    if {channel} >= {map}[map_at] {{
        return vec4<f32>(0.0);
    }}
    let codes = mixed_codes(page, {map}[map_at + 2u + {row}], {place});
    let zero_at = {map}[map_at + 1u];
    return fma(vec4<f32>(unpack4xU8(codes)), {}, {});
}}\n",
        reader_head(template.side),
        head_widths::step(template),
        numbers(&format!("{scale_at}u")),
        numbers("zero_at"),
    )
}

/// One scale of an array of a page, from a word on.
pub(crate) fn one_scale(format: ScaleFormat, start: &str, index: &str) -> String {
    match format {
        ScaleFormat::F16 => {
            format!("half_of(page_word(page, {start} + ({index}) / 2u), ({index}) % 2u)")
        }
        ScaleFormat::F32 => format!("bitcast<f32>(page_word(page, {start} + {index}))"),
    }
}

/// Four neighbouring scales, from an even index on.
pub(crate) fn four_scales(format: ScaleFormat, start: &str, index: &str) -> String {
    match format {
        ScaleFormat::F16 => format!(
            "vec4<f32>(unpack2x16float(page_word(page, {start} + ({index}) / 2u)), unpack2x16float(page_word(page, {start} + ({index}) / 2u + 1u)))"
        ),
        ScaleFormat::F32 => {
            let one = |i: usize| format!("page_word(page, {start} + {index} + {i}u)");
            format!("bitcast<vec4<f32>>(vec4<u32>({}, {}, {}, {}))", one(0), one(1), one(2), one(3))
        }
    }
}

/// `levelsN(page, at, half, lane)`: the levels of codes 4 · lane to 4 · lane + 3 of a vector of the unit at word `at`; `codesN` are the
/// codes themselves, as bytes.
fn levels_text(index: usize, section: &Span) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "fn codes{index}(page: u32, at: u32, half: u32, lane: u32) -> u32 {{\n    var codes = 0u;"
    );
    let (mut shift, mut words) = (0, 0);
    for (plane, size) in planes(section.bits) {
        let bits = match plane {
            8 => format!("page_word(page, at + {words}u + 16u * half + lane)"),
            4 => format!("((page_word(page, at + {words}u + lane) >> (4u * half)) & 0x0f0f0f0fu)"),
            2 => format!(
                "((page_word(page, at + {words}u + 4u * half + lane % 4u) >> (2u * (lane / 4u))) & 0x03030303u)"
            ),
            _ => format!(
                "spread((page_word(page, at + {words}u + 2u * half + lane / 8u) >> (4u * (lane % 8u))) & 15u)"
            ),
        };
        let _ = writeln!(text, "    codes |= {bits} << {shift}u;");
        shift += plane;
        words += size;
    }
    text += "    return codes;\n}\n";
    if let CodeMeaning::Table(table) = section.meaning {
        let entries: Vec<String> = table.iter().map(|level| format!("{level}.0")).collect();
        let _ = writeln!(
            text,
            "var<private> table{index}: array<f32, 32> = array<f32, 32>({});",
            entries.join(", ")
        );
    }
    let _ = writeln!(
        text,
        "fn levels{index}(page: u32, at: u32, half: u32, lane: u32) -> vec4<f32> {{\n    \
         let c = unpack4xU8(codes{index}(page, at, half, lane));"
    );
    text += &match section.meaning {
        CodeMeaning::Shifted => format!("    return vec4<f32>(c) - {}.0;\n}}\n", 1u32 << (section.bits - 1)),
        CodeMeaning::WithZero => "    return vec4<f32>(c);\n}\n".to_owned(),
        CodeMeaning::Table(_) => format!(
            "    return vec4<f32>(table{index}[c.x], table{index}[c.y], table{index}[c.z], table{index}[c.w]);\n}}\n"
        ),
    };
    text
}

/// What the readers of coded pages share.
pub(crate) const SHARED: &str = "
// Whose pages are read.
var<private> kv_head: u32;

fn half_of(word: u32, index: u32) -> f32 {
    let pair = unpack2x16float(word);
    return select(pair.x, pair.y, index == 1u);
}

// A bit each into four bytes.
fn spread(bits: u32) -> u32 {
    return (bits & 1u) | ((bits & 2u) << 7u) | ((bits & 4u) << 14u) | ((bits & 8u) << 21u);
}
";

/// `key4_exact(page, token, four, tokens)` or `value4_exact(page, channel, token, tokens)`, and `exact_at` below them.
pub(crate) fn exact_reader(format: &ExactFormat) -> String {
    let side = match format.side {
        Side::Key => "key",
        Side::Value => "value",
    };
    let number = match format.element {
        Element::F32 => "    return bitcast<f32>(page_word(page, index));\n".to_owned(),
        Element::F16 => "    return half_of(page_word(page, index / 2u), index % 2u);\n".to_owned(),
        Element::Bf16 => {
            "    return bitcast<f32>((page_word(page, index / 2u) >> (16u * (index % 2u))) << 16u);\n"
                .to_owned()
        }
    };
    let mut text = format!("fn {side}_number(page: u32, index: u32) -> f32 {{\n{number}}}\n");
    let dim = format.dim;
    // Written out and without conditions where there can be: all four are asked for before one is waited for. Places of values are
    // multiples of four, and so are tokens of a page.
    let four = |index: &dyn Fn(usize) -> String| -> String {
        let has_all = format.side == Side::Value || dim.is_multiple_of(4);
        let line = |j: usize| match has_all {
            true => format!("    y[{j}] = {side}_number(page, {});\n", index(j)),
            false => format!(
                "    if 4u * four + {j}u < {dim}u {{\n        y[{j}] = {side}_number(page, {});\n    }}\n",
                index(j)
            ),
        };
        (0..4).map(line).collect()
    };
    text += &match format.side {
        Side::Key => format!(
            "fn key4_exact(page: u32, token: u32, four: u32, tokens: u32) -> vec4<f32> {{\n    var y = vec4<f32>(0.0);\n{}    return y;\n}}\n",
            four(&|j| format!("(4u * four + {j}u) * tokens + token"))
        ),
        Side::Value => format!(
            "fn value4_exact(page: u32, channel: u32, token: u32, tokens: u32) -> vec4<f32> {{\n    var y = vec4<f32>(0.0);\n{}    return y;\n}}\n",
            four(&|j| format!("min(token + {j}u, tokens - 1u) * {dim}u + channel"))
        ),
    };
    text
}
