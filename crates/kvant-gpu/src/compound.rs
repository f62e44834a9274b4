//! Pages that are made of others, or of angles, as kernel text.

use crate::coding::{Coding, DeltaPages, POLAR_BLOCK, PolarPages};
use crate::fitting::exactly;
use crate::page_text::{four_scales, one_scale, packed_pages_reader};
use crate::trellis::numbers_text;
use kvant_codec::format::PackedFormat;
use kvant_codec::{ScaleFormat, Side};
use std::fmt::Write;

/// The text that reads differences, and the first token of a page: `key_frame(page, four)` or `value_frame(page, channel)`.
pub(crate) fn delta_reader(pages: &DeltaPages) -> String {
    let frame = match pages.differences.side {
        Side::Key => format!(
            "fn key_frame(page: u32, four: u32) -> vec4<f32> {{\n    return {};\n}}\n",
            four_scales(pages.first, "0u", "4u * four")
        ),
        Side::Value => format!(
            "fn value_frame(page: u32, channel: u32) -> f32 {{\n    return {};\n}}\n",
            one_scale(pages.first, "0u", "channel")
        ),
    };
    packed_pages_reader(&pages.differences) + &frame
}

/// What the encoder of differences does with sixteen tokens in the basis before it chooses scales: its texts before and in `load_tile`.
pub(crate) fn delta_loader(pages: &DeltaPages) -> (String, &'static str) {
    let bits = pages.differences.spans.first().map_or(1, |span| span.bits);
    let constants = format!(
        "const DELTA_CENTRE = {}.0;\nconst WIDE_FIRST = {};\n",
        1u32 << (bits - 1),
        pages.first == ScaleFormat::F32
    );
    (constants + include_str!("wgsl/delta_tile.wgsl"), "delta_tile(thread, first);")
}

/// The names of a reader and of what it is made of, for one of two.
fn named(text: &str, name: &str) -> String {
    let text = text.replace("levels", &format!("{name}_levels")).replace("table", &format!("{name}_table"));
    let text = text.replace("4_coded", &format!("4_{name}"));
    (0..8).fold(text, |text, n| text.replace(&format!("codes{n}("), &format!("{name}_codes{n}(")))
}

/// The text that reads codes and those of what they leave over, whose numbers are turned into the basis of the first by the map of the side.
pub(crate) fn sum_reader(parts: &[PackedFormat; 2]) -> String {
    let readers =
        named(&packed_pages_reader(&parts[0]), "coarse") + &named(&packed_pages_reader(&parts[1]), "rest");
    let (text, prefix) = match parts[0].side {
        Side::Key => (include_str!("wgsl/sum_keys.wgsl"), "KEY"),
        Side::Value => (include_str!("wgsl/sum_values.wgsl"), "VALUE"),
    };
    format!("{readers}const {prefix}_SUM_DIM = {}u;\n{text}", parts[0].dim)
}

/// What the encoder of the rest does with sixteen tokens in the first basis, and how it is called: it takes off what the codes before stand
/// for, and turns what is left by the matrix at `turn_at` of the bases.
pub(crate) fn sum_loader(coarse: &PackedFormat, turn_at: usize) -> (String, &'static str) {
    let number = match coarse.side {
        Side::Key => "key4_coarse(target_page, t, c / 4u)[c % 4u]",
        Side::Value => "value4_coarse(target_page, c, t / 4u)[t % 4u]",
    };
    let turned = include_str!("wgsl/dense.wgsl")
        .replace("dense_tile", "turn_tile")
        .replace("basis_at + j * DIM + c", "TURN_AT + j * DIM + c");
    let text = format!(
        "const TURN_AT = {turn_at}u;\nfn coarse_number(t: u32, c: u32) -> f32 {{\n    return {number};\n}}\n{}{}{turned}",
        named(&packed_pages_reader(coarse), "coarse"),
        include_str!("wgsl/sum_tile.wgsl"),
    );
    (text, "sum_tile(thread, first);")
}

/// What readers and the encoder of angles know of them.
fn angles_text(pages: &PolarPages) -> String {
    let starts = pages.level_starts();
    let mut text = format!("const BLOCK_BITS = {}u;\n", starts[4]);
    let entries: Vec<String> = pages
        .book
        .iter()
        .flatten()
        .map(|[cos, sin]| format!("vec2<f32>({}, {})", exactly(*cos), exactly(*sin)))
        .collect();
    let count = entries.len();
    let _ = writeln!(
        text,
        "var<private> directions: array<vec2<f32>, {count}> = array<vec2<f32>, {count}>({});",
        entries.join(", ")
    );
    let mut first = 0;
    let (mut at, mut widths, mut begins) = (String::new(), String::new(), String::new());
    for (level, (codes, (bits, start))) in pages.book.iter().zip(pages.bits.iter().zip(starts)).enumerate() {
        let _ = writeln!(at, "        case {level}u: {{ return directions[{first}u + code]; }}");
        let _ = writeln!(widths, "        case {level}u: {{ return {bits}u; }}");
        let _ = writeln!(begins, "        case {level}u: {{ return {start}u; }}");
        first += codes.len();
    }
    let _ = write!(
        text,
        "fn direction(level: u32, code: u32) -> vec2<f32> {{\n    switch level {{\n{at}        default: {{ return vec2<f32>(0.0); }}\n    }}\n}}\n\
         fn width_of(level: u32) -> u32 {{\n    switch level {{\n{widths}        default: {{ return 0u; }}\n    }}\n}}\n\
         fn start_of(level: u32) -> u32 {{\n    switch level {{\n{begins}        default: {{ return 0u; }}\n    }}\n}}\n"
    );
    text
}

/// The text that reads radii and angles.
pub(crate) fn polar_reader(pages: &PolarPages) -> String {
    let radius = one_scale(pages.radii, "0u", "number");
    let (blocks, words) = (pages.blocks(), pages.radius_bytes() / 4);
    let side = match pages.side {
        Side::Key => {
            "fn key4_coded(page: u32, token: u32, four: u32) -> vec4<f32> {
    return polar_four(page, token * BLOCKS + four / 4u, four % 4u);
}
"
        }
        Side::Value => {
            "fn value4_coded(page: u32, channel: u32, four: u32) -> vec4<f32> {
    var y = vec4<f32>(0.0);
    for (var j = 0u; j < 4u; j++) {
        let block = (4u * four + j) * BLOCKS + channel / 16u;
        y[j] = polar_four(page, block, channel / 4u % 4u)[channel % 4u];
    }
    return y;
}
"
        }
    };
    let text = format!(
        "{}const BLOCKS = {blocks}u;\nconst ANGLES_AT = {words}u;\n\
         fn polar_radius(page: u32, number: u32) -> f32 {{\n    return {radius};\n}}\n{}{side}",
        angles_text(pages),
        include_str!("wgsl/polar.wgsl")
    );
    match pages.side {
        Side::Key => text,
        // Both sides may have angles.
        Side::Value => [
            "BLOCK_BITS",
            "BLOCKS",
            "ANGLES_AT",
            "directions",
            "direction(",
            "width_of(",
            "start_of(",
            "polar_",
        ]
        .into_iter()
        .fold(text, |text, name| text.replace(name, &format!("value_{name}"))),
    }
}

/// The kernel that makes radii and angles, without the buffers of pages and the reader of exact numbers; `moved` is from one head's basis to the
/// next, and whether there are means.
pub(crate) fn polar_encoder(pages: &PolarPages, moved: Option<(usize, bool)>) -> String {
    let largest = match pages.radii {
        ScaleFormat::F16 => "65504.0",
        ScaleFormat::F32 => "3.4028235e38",
    };
    let constants = format!(
        "const LARGEST = {largest};\nconst WIDE_RADII = {};\nconst RADIUS_WORDS = {}u;\n",
        pages.radii == ScaleFormat::F32,
        pages.radius_bytes() / 4
    );
    [
        &numbers_text(pages.side, pages.tokens, pages.dim, moved),
        &constants,
        include_str!("wgsl/polar_encode.wgsl"),
        &angles_text(pages),
        include_str!("wgsl/quotient.wgsl"),
    ]
    .concat()
}

/// Why the device does not encode such pages.
pub(crate) fn refusal(coding: &Coding) -> Option<String> {
    match coding {
        // Two words and a radius for every sixteen channels lie in workgroup memory.
        Coding::Polar(pages) if 12 * pages.tokens * pages.blocks() > 31 * 1024 => Some(format!(
            "angles of {} tokens of {} channels ({POLAR_BLOCK} at a time) are more than are encoded on a GPU",
            pages.tokens, pages.dim
        )),
        _ => None,
    }
}
