//! The text that encodes pages of one format: which rule chooses scales, how numbers become codes, how codes become words.
//!
//! Codes and scales are those of the CPU's encoder where the codec keeps the model's basis or has that of an SRHT, and the device divides
//! as IEEE 754 says and rounds a multiply-add once. Where it does not, of two scales that are as good as each other it may store the other
//! one. Other changes of basis sum up in another order, so there a number that lies at the middle between two codes may get the other one.

use crate::fitting::{Fit, exactly};
use crate::page_text::{group_channels, planes, row_words, sections};
use kvant_codec::format::{BasisFormat, CodeMeaning, Linear, PackedFormat, Span};
use kvant_codec::{Element, Rotation, Rounding, Rule, ScaleFormat, Side};
use std::f64::consts::TAU;
use std::fmt::Write;

/// The most channels that the tile has room for: 16 tokens of them take half of the workgroup memory.
pub(crate) const MOST_CHANNELS: usize = 256;

/// Why the device does not encode as a codec does.
pub(crate) fn refusal(format: &PackedFormat, rounding: Rounding) -> Option<String> {
    if format.coded.max(format.dim) > MOST_CHANNELS {
        return Some(format!(
            "{} channels are more than the {MOST_CHANNELS} that are encoded on a GPU",
            format.dim
        ));
    }
    rule_text(format, rounding)
        .is_none()
        .then(|| format!("scales by the rule {:?} are not chosen on a GPU", rounding.rule))
}

/// The kernel that encodes pages of exact rows of `element`, without the buffers of pages.
pub(crate) fn source(
    format: &PackedFormat,
    rounding: Rounding,
    element: Element,
    moved: bool,
) -> Option<String> {
    let rule = rule_text(format, rounding)?;
    let width = format.coded.max(format.dim);
    let (group, bytes) = (group_channels(format), format.scales.bytes());
    let words = |range: &Option<std::ops::Range<usize>>| range.as_ref().map_or(0, |range| range.start / 4);
    let token_entries = if format.token_scale.is_some() { 16 * format.groups } else { 1 };
    let channel_entries = if format.channel_scale.is_some() { format.coded } else { 1 };
    let constants = format!(
        "const DIM = {}u;\nconst TOKENS = {}u;\nconst WIDTH = {width}u;\nconst CODED = {}u;\nconst CHANNELS = {}u;\n\
         const GROUP = {group}u;\nconst GROUPS = {}u;\nconst CHANNEL_ENTRIES = {channel_entries}u;\nconst TOKEN_ENTRIES = {token_entries}u;\n\
         const KEYS = {};\nconst MOVED = {moved};\nconst WIDE_SCALES = {};\nconst CHANNEL_SCALES = {};\nconst CHANNEL_ZEROS = {};\n\
         const TOKEN_SCALES = {};\nconst TOKEN_ZEROS = {};\nconst CHANNEL_SCALE_AT = {}u;\nconst CHANNEL_ZERO_AT = {}u;\n\
         const TOKEN_SCALE_AT = {}u;\nconst TOKEN_ZERO_AT = {}u;\nconst LARGEST = {};\n",
        format.dim,
        format.tokens,
        format.coded,
        width.div_ceil(128),
        format.groups,
        format.side == Side::Key,
        bytes == 4,
        format.channel_scale.is_some(),
        format.channel_zero.is_some(),
        format.token_scale.is_some(),
        format.token_zero.is_some(),
        words(&format.channel_scale),
        words(&format.channel_zero),
        words(&format.token_scale),
        words(&format.token_zero),
        match format.scales {
            ScaleFormat::F16 => "65504.0",
            ScaleFormat::F32 => "1.0e30",
        },
    );
    let fit = Fit::new(format, rounding);
    let walsh = walsh_text(format).filter(|_| moved);
    let constants =
        constants + &format!("const WALSH = {};\n", walsh.is_some()) + walsh.as_deref().unwrap_or("");
    let text = include_str!("wgsl/encode.wgsl")
        .replace("//RULE", &(rule + &section_text(format) + &fit.functions))
        .replace("//CODE", &code_text(format, rounding))
        .replace("//WALSH", if walsh.is_some() { "walsh_tile(thread);" } else { "" })
        .replace("//FIT_TOKEN", fit.token)
        .replace("//FIT", fit.channel);
    Some(constants + &text + &number_text(element) + &pack_text(format))
}

/// The fast way into the basis of a plain SRHT.
fn walsh_text(format: &PackedFormat) -> Option<String> {
    /// A matrix of this size and no larger one is written out; real head dimensions have 1, 3, 5, 7 and 9.
    const MOST: usize = 15;
    let BasisFormat { linear, lambda, mean, dim, .. } = &format.basis;
    let odd = dim >> dim.trailing_zeros();
    let plain = matches!(linear, Linear::Rotation { kind: Rotation::Srht, .. });
    if !plain || !lambda.is_empty() || !mean.is_empty() || odd > MOST {
        return None;
    }
    let entry = |n: usize| {
        let (sin, cos) = (TAU * (n / odd * (n % odd) % odd) as f64 / odd as f64).sin_cos();
        exactly((sin + cos) as f32)
    };
    let entries: Vec<String> = (0..odd * odd).map(entry).collect();
    Some(format!(
        "const ODD = {odd}u;\nvar<private> hartley: array<f32, {}> = array<f32, {}>({});\n{}",
        odd * odd,
        odd * odd,
        entries.join(", "),
        include_str!("wgsl/walsh.wgsl")
    ))
}

fn number_text(element: Element) -> String {
    let number = match element {
        Element::F32 => "bitcast<f32>(page_word(page, index))",
        Element::F16 => "half_of(page_word(page, index / 2u), index % 2u)",
        Element::Bf16 => "bitcast<f32>((page_word(page, index / 2u) >> (16u * (index % 2u))) << 16u)",
    };
    format!("fn number_at(page: u32, index: u32) -> f32 {{\n    return {number};\n}}\n")
}

/// `section_of(channel)`.
fn section_text(format: &PackedFormat) -> String {
    let mut text = String::from("\nfn section_of(c: u32) -> u32 {\n");
    for (index, section) in sections(format).iter().enumerate() {
        let _ = writeln!(text, "    if c < {}u {{ return {index}u; }}", section.first + section.len);
    }
    text + "    return 0u;\n}\n"
}

/// What the extent of evenly spaced levels is divided by, section by section.
fn divisor(rule: Rule, bits: u8) -> Option<f32> {
    let (half, whole) = ((1u32 << (bits - 1)) as f32, ((1u32 << bits) - 1) as f32);
    Some(match rule {
        Rule::Symmetric => half - 1.0,
        Rule::SignedMax | Rule::FittedMax => -half,
        Rule::Asymmetric | Rule::FittedRange => whole,
        Rule::Bins => whole + 1.0,
        Rule::NormalFloat => 127.0,
        Rule::LloydMax | Rule::Sketch => 1.0,
        _ => return None,
    })
}

/// `scale_of(extent, section)`: scale and zero as they will be stored.
fn rule_text(format: &PackedFormat, rounding: Rounding) -> Option<String> {
    let body = match rounding.rule {
        Rule::Symmetric | Rule::NormalFloat => {
            "s = vec2<f32>(stored(divided(max(extent.high, -extent.low), divisor)), 0.0);".to_owned()
        }
        Rule::SignedMax | Rule::FittedMax => {
            "let extreme = select(extent.high, extent.low, -extent.low > extent.high);\n    \
             s = vec2<f32>(stored(divided(extreme, divisor)), 0.0);"
                .to_owned()
        }
        Rule::Asymmetric | Rule::FittedRange => "let base = outward(extent.low, -1.0);\n    \
             s = vec2<f32>(outward(divided(extent.high - base, divisor), 1.0), base);"
            .to_owned(),
        Rule::Bins => "let scale = stored(divided(extent.high - extent.low, divisor));\n    \
             s = vec2<f32>(scale, stored(fma(scale, 0.5, extent.low)));"
            .to_owned(),
        Rule::LloydMax | Rule::Sketch => format!(
            "s = vec2<f32>(stored(sqrt(divided(extent.squares, extent.count)) * bitcast<f32>({:#x}u)), 0.0);",
            rounding.unit.to_bits()
        ),
        _ => return None,
    };
    let mut text =
        String::from("fn scale_of(extent: Extent, section: u32) -> vec2<f32> {\n    var divisor = 1.0;\n");
    for (index, section) in sections(format).iter().enumerate() {
        let divisor = divisor(rounding.rule, section.bits)?;
        let _ = writeln!(text, "    if section == {index}u {{ divisor = {divisor:?}; }}");
    }
    // Which of −0 and +0 is the larger depends on the machine; make both +0.
    let _ = write!(text, "    var s = vec2<f32>(0.0);\n    {body}\n    return s + vec2<f32>(0.0);\n}}\n");
    Some(text)
}

/// The body of `code_of`.
fn code_text(format: &PackedFormat, rounding: Rounding) -> String {
    let mut text = String::new();
    for (index, section) in sections(format).iter().enumerate() {
        let top = (1u32 << section.bits) - 1;
        let bottom = if rounding.rule == Rule::Symmetric { "1.0" } else { "0.0" };
        let level = match section.meaning {
            CodeMeaning::WithZero => "(x - zero) * inverse".to_owned(),
            CodeMeaning::Shifted => format!("fma(x, inverse, {}.0)", 1u32 << (section.bits - 1)),
            CodeMeaning::Table(table) => {
                let levels = &table[..1 << section.bits];
                let boundary = |pair: &[i8]| 0.5 * (f32::from(pair[0]) + f32::from(pair[1]));
                let counts: Vec<String> = levels
                    .windows(2)
                    .map(|pair| format!("select(0u, 1u, x * inverse > {:?})", boundary(pair)))
                    .collect();
                let _ = writeln!(text, "    if section == {index}u {{ return {}; }}", counts.join(" + "));
                continue;
            }
        };
        let _ = writeln!(
            text,
            "    if section == {index}u {{ return u32(round(clamp({level}, {bottom}, {top}.0))); }}"
        );
    }
    text + "    return 0u;\n"
}

/// `pack(thread, first)`: the units of sixteen tokens, word by word.
fn pack_text(format: &PackedFormat) -> String {
    let mut text = String::from("fn pack(thread: u32, first: u32) {\n");
    for (index, section) in sections(format).iter().enumerate() {
        text += &section_words(format, index, section);
    }
    text + "}\n"
}

fn section_words(format: &PackedFormat, index: usize, section: &Span) -> String {
    let bits = usize::from(section.bits);
    let (row, units) = match format.side {
        Side::Key => (8, 1),
        Side::Value => (16, 2),
    };
    let (rows, unit) = (section.len / row, 4 * bits);
    // Code 4 · lane + j of half h of the unit.
    let code = |h: &str, lane: &str, j: usize| match format.side {
        Side::Key => {
            format!("code(first + {lane}, {}u + 8u * r + 4u * ({h}) + {j}u, {index}u)", section.first)
        }
        Side::Value => {
            format!(
                "code(first + 8u * u + 4u * ({h}) + {j}u, {}u + 16u * r + {lane}, {index}u)",
                section.first
            )
        }
    };
    let mut text = format!(
        "    for (var i = thread; i < {}u; i += 128u) {{
        let w = i % {unit}u;
        let u = (i / {unit}u) % {units}u;
        let r = i / {}u;
        var word = 0u;\n",
        rows * units * unit,
        unit * units
    );
    let (mut shift, mut before) = (0u8, 0);
    for (plane, size) in planes(section.bits) {
        let mask = (1u32 << plane) - 1;
        let _ = writeln!(
            text,
            "        if w >= {before}u && w < {}u {{\n            let p = w - {before}u;",
            before + size
        );
        for j in 0..4 {
            let line = |h: &str, lane: &str, to: String| {
                format!("            word |= (({} >> {shift}u) & {mask}u) << ({to});\n", code(h, lane, j))
            };
            text += &match plane {
                8 => line("p / 16u", "p % 16u", format!("{}u", 8 * j)),
                4 => line("0u", "p", format!("{}u", 8 * j)) + &line("1u", "p", format!("{}u", 8 * j + 4)),
                2 => (0..4)
                    .map(|n| line("p / 4u", &format!("(p % 4u + {}u)", 4 * n), format!("{}u", 8 * j + 2 * n)))
                    .collect(),
                _ => (0..8)
                    .map(|n| line("p / 2u", &format!("(8u * (p % 2u) + {n}u)"), format!("{}u", 4 * n + j)))
                    .collect::<String>(),
            };
        }
        text += "        }\n";
        shift += plane;
        before += size;
    }
    let tile_units = match format.side {
        Side::Key => "first / 16u",
        Side::Value => "first / 8u + u",
    };
    let _ = writeln!(
        text,
        "        set_page_word(target_page, {}u + r * {}u + ({tile_units}) * {unit}u + w, word);\n    }}",
        section.codes / 4,
        row_words(format, section.bits)
    );
    text
}
