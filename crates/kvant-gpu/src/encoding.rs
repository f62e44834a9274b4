//! The text that encodes pages of one format: how vectors get into the basis, which rule chooses scales, how numbers become codes, how
//! codes become words.
//!
//! **Which bytes.** Quotients and roots are made of integers, to the nearest, so that scales do not depend on how a device divides. What a
//! codec keeps in the model's basis, in that of an SRHT or in a plan's gets the codes and scales of the CPU's encoder to the byte where
//! the device rounds a multiply-add once; where it does not (lavapipe), and in an SRFT's basis, whose sums have another order here, a
//! number that lies at the middle between two codes may get the other one, and a scale the next of its format.

use crate::basis::{Bases, Way, radices};
use crate::coding::DeltaPages;
use crate::compound::{delta_loader, sum_loader};
use crate::fitting::{Fit, exactly};
use crate::head_widths;
use crate::page_text::{group_channels, planes, row_words, sections};
use kvant_codec::format::{CodeMeaning, PackedFormat, Span};
use kvant_codec::{Element, Rounding, Rule, ScaleFormat, Side};
use std::f64::consts::TAU;
use std::fmt::Write;

/// The most channels that the tile has room for: 16 tokens of them take half of the workgroup memory.
pub(crate) const MOST_CHANNELS: usize = 256;

/// Why the device does not encode as a codec does.
pub(crate) fn refusal(format: &PackedFormat) -> Option<String> {
    let is_wide = format.coded.max(format.dim) > MOST_CHANNELS;
    is_wide.then(|| {
        format!("{} channels are more than the {MOST_CHANNELS} that are encoded on a GPU", format.dim)
    })
}

/// What codes are of.
#[derive(Clone, Copy)]
pub(crate) enum Part<'a> {
    /// The vectors.
    Whole,
    /// Differences from the token before.
    Delta(&'a DeltaPages),
    /// What other codes of the page leave over, in another basis, the matrix to which is among the bases.
    Rest { coarse: &'a PackedFormat, turn_at: usize },
}

/// What a kernel that encodes is made of.
#[derive(Clone, Copy)]
pub(crate) struct Encoder<'a> {
    /// Of all heads, or their template where widths differ.
    pub format: &'a PackedFormat,
    pub rounding: Rounding,
    /// What exact rows are made of.
    pub element: Element,
    pub bases: Option<&'a Bases>,
    /// Whether widths are those of the head.
    pub is_mixed: bool,
    /// What becomes of tokens in the basis before scales are chosen, of codes that are parts of others.
    pub part: Part<'a>,
}

impl Encoder<'_> {
    /// Workgroups that share a page.
    pub(crate) fn parts(&self) -> usize {
        let is_whole = self.format.channel_scale.is_some() || matches!(self.part, Part::Delta(_));
        if is_whole { 1 } else { self.format.tokens / 16 }
    }

    /// The kernel, without the buffers of maps and pages.
    pub(crate) fn source(&self) -> String {
        let Encoder { format, rounding, bases, .. } = *self;
        let rule = rule_text(format, rounding);
        let fit = Fit::new(format, rounding);
        let (mut loader, loaded) = match self.part {
            Part::Whole => Default::default(),
            Part::Delta(pages) => delta_loader(pages),
            Part::Rest { coarse, turn_at } => sum_loader(coarse, turn_at),
        };
        let (functions, call) = bases.map_or_else(Default::default, |bases| move_text(format.dim, bases));
        let sections = if self.is_mixed {
            head_widths::encoder(format, bases.map_or(0, |bases| bases.forward_step))
        } else {
            section_text(format) + &head_text(format, bases) + &pack_text(format)
        };
        let text = include_str!("wgsl/encode.wgsl")
            .replace("//RULE", &(rule + &fit.functions))
            .replace("//CODE", &code_text(format, rounding))
            .replace("//MOVE", &call)
            .replace("//LOADED", loaded)
            .replace("//REFIT", if rounding.rule == Rule::NonLinear { REFIT } else { "" })
            .replace("//FIT_TOKEN", fit.token)
            .replace("//FIT", fit.channel);
        if let (Rule::NonLinear, [Span { meaning: CodeMeaning::Table(table), .. }, ..]) =
            (rounding.rule, &format.spans[..])
        {
            let levels: Vec<String> = table[..16].iter().map(|level| format!("{level}.0")).collect();
            let levels = levels.join(", ");
            let _ = writeln!(loader, "var<private> refit_levels: array<f32, 16> = array<f32, 16>({levels});");
        }
        let quotient = include_str!("wgsl/quotient.wgsl");
        let number = number_text(self.element);
        [&*self.constants(), &text, &functions, &sections, quotient, &number, &loader].concat()
    }

    fn constants(&self) -> String {
        let Encoder { format, bases, .. } = *self;
        let width = format.coded.max(format.dim);
        let words =
            |range: &Option<std::ops::Range<usize>>| range.as_ref().map_or(0, |range| range.start / 4);
        let numbers = [
            ("DIM", format.dim),
            ("TOKENS", format.tokens),
            ("PARTS", self.parts()),
            ("WIDTH", width),
            ("CODED", format.coded),
            ("CHANNELS", width.div_ceil(128)),
            ("GROUP", group_channels(format)),
            ("GROUPS", format.groups),
            ("CHANNEL_ENTRIES", if format.channel_scale.is_some() { format.coded } else { 1 }),
            ("TOKEN_ENTRIES", if format.token_scale.is_some() { 16 * format.groups } else { 1 }),
            ("CHANNEL_SCALE_AT", words(&format.channel_scale)),
            ("TOKEN_SCALE_AT", words(&format.token_scale)),
            ("TOKEN_ZERO_AT", words(&format.token_zero)),
            ("LINEAR", bases.map_or(0, |bases| bases.linear)),
        ];
        let flags = [
            ("KEYS", format.side == Side::Key),
            ("MEAN", bases.is_some_and(|bases| bases.has_mean)),
            ("SIGNS", bases.is_some_and(|bases| bases.way != Way::Dense)),
            ("LAMBDA", bases.is_some_and(|bases| bases.has_lambda)),
            ("WIDE_SCALES", format.scales.bytes() == 4),
            ("CHANNEL_SCALES", format.channel_scale.is_some()),
            ("CHANNEL_ZEROS", format.channel_zero.is_some()),
            ("TOKEN_SCALES", format.token_scale.is_some()),
            ("TOKEN_ZEROS", format.token_zero.is_some()),
        ];
        let largest = match format.scales {
            ScaleFormat::F16 => "65504.0",
            ScaleFormat::F32 => "1.0e30",
        };
        let mut text = format!("const LARGEST = {largest};\n");
        numbers.iter().for_each(|(name, number)| {
            let _ = writeln!(text, "const {name} = {number}u;");
        });
        flags.iter().for_each(|(name, flag)| {
            let _ = writeln!(text, "const {name} = {flag};");
        });
        text
    }
}

/// The scale of least Σ x²·(x − s·level)² for the codes under the one that made them.
const REFIT: &str = "var along = 0.0;
                var power = 0.0;
                for (var c = GROUP * g; c < end; c++) {
                    let x = token_number(t, c) * token_inverse[i];
                    let code = code_of(token_number(t, c), token_inverse[i], 0.0, section_of(GROUP * g));
                    let level = refit_levels[code];
                    let weighted = (x * x) * level;
                    along = fma(weighted, x, along);
                    power = fma(weighted, level, power);
                }
                if power > 0.0 {
                    s.x = s.x * divided(along, power);
                }
                s.x = stored(s.x);";

/// `begin_head(head)` where all heads have the same widths.
fn head_text(format: &PackedFormat, bases: Option<&Bases>) -> String {
    format!(
        "fn begin_head(head: u32) {{\n    basis_at = head * {}u;\n    coded = CODED;\n    zero_at = {}u;\n}}\n",
        bases.map_or(0, |bases| bases.forward_step),
        format.channel_zero.as_ref().map_or(0, |range| range.start / 4),
    )
}

/// The functions that move a tile into the basis, and how they are called.
fn move_text(dim: usize, bases: &Bases) -> (String, String) {
    match bases.way {
        Way::Walsh => (walsh_text(dim), "walsh_tile(thread);".to_owned()),
        Way::Dense => (include_str!("wgsl/dense.wgsl").to_owned(), "dense_tile(thread);".to_owned()),
        Way::Fourier => {
            let radices = radices(dim / 2).unwrap_or_default();
            let mut stride = 1;
            let mut call = String::new();
            for radix in &radices {
                let _ = write!(call, "stage{radix}(thread, {stride}u); ");
                stride *= radix;
            }
            let mut kinds = radices;
            kinds.dedup();
            let stages: String = kinds.iter().map(|radix| stage_text(*radix)).collect();
            (include_str!("wgsl/fourier.wgsl").replace("//STAGES", &stages), call + "separate(thread);")
        }
    }
}

/// One stage of a complex transform.
fn stage_text(radix: usize) -> String {
    let butterfly = match radix {
        2 => "y[0] = a[0] + a[1];\n            y[1] = a[0] - a[1];".to_owned(),
        4 => "let s = a[0] + a[2];
            let t = a[1] + a[3];
            let u = a[0] - a[2];
            let v = a[1] - a[3];
            y[0] = s + t;
            y[1] = vec2<f32>(u.x + v.y, u.y - v.x);
            y[2] = s - t;
            y[3] = vec2<f32>(u.x - v.y, u.y + v.x);"
            .to_owned(),
        _ => format!(
            "for (var k = 0u; k < {radix}u; k++) {{
                y[k] = a[0];
                for (var j = 1u; j < {radix}u; j++) {{
                    y[k] += times(a[j], root(j * k % {radix}u * (DIM / {radix}u)));
                }}
            }}"
        ),
    };
    include_str!("wgsl/stage.wgsl").replace("{R}", &radix.to_string()).replace("//BUTTERFLY", &butterfly)
}

/// Butterflies of an SRHT.
fn walsh_text(dim: usize) -> String {
    let odd = dim >> dim.trailing_zeros();
    let entry = |n: usize| {
        let (sin, cos) = (TAU * (n / odd * (n % odd) % odd) as f64 / odd as f64).sin_cos();
        exactly((sin + cos) as f32)
    };
    let entries: Vec<String> = (0..odd * odd).map(entry).collect();
    format!(
        "const ODD = {odd}u;\nvar<private> hartley: array<f32, {}> = array<f32, {}>({});\n{}",
        odd * odd,
        odd * odd,
        entries.join(", "),
        include_str!("wgsl/walsh.wgsl")
    )
}

pub(crate) fn number_text(element: Element) -> String {
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
fn divisor(rule: Rule, bits: u8) -> f32 {
    let (half, whole) = ((1u32 << (bits - 1)) as f32, ((1u32 << bits) - 1) as f32);
    match rule {
        Rule::Symmetric => half - 1.0,
        Rule::SignedMax | Rule::FittedMax => -half,
        // The outermost level.
        Rule::NonLinear => -127.0,
        Rule::Asymmetric | Rule::FittedRange => whole,
        Rule::Bins => whole + 1.0,
        Rule::NormalFloat => 127.0,
        Rule::LloydMax | Rule::Sketch => 1.0,
    }
}

/// `scale_of(extent, section)`: scale and zero as they will be stored.
fn rule_text(format: &PackedFormat, rounding: Rounding) -> String {
    let body = match rounding.rule {
        Rule::Symmetric | Rule::NormalFloat => {
            "s = vec2<f32>(stored(divided(max(extent.high, -extent.low), divisor)), 0.0);".to_owned()
        }
        Rule::SignedMax | Rule::FittedMax => {
            "s = vec2<f32>(stored(divided(select(extent.high, extent.low, -extent.low > extent.high), divisor)), 0.0);".to_owned()
        }
        // Not rounded: it is only there to make codes, of which the stored scale comes later.
        Rule::NonLinear => "s = vec2<f32>(divided(select(extent.high, extent.low, -extent.low > extent.high), divisor), 0.0);".to_owned(),
        Rule::Asymmetric | Rule::FittedRange => "let base = outward(extent.low, -1.0);\n    \
             s = vec2<f32>(outward(divided(extent.high - base, divisor), 1.0), base);"
            .to_owned(),
        Rule::Bins => "let scale = stored(divided(extent.high - extent.low, divisor));\n    \
             s = vec2<f32>(scale, stored(fma(scale, 0.5, extent.low)));"
            .to_owned(),
        Rule::LloydMax | Rule::Sketch => format!(
            "s = vec2<f32>(stored(square_root(mean_square(extent)) * bitcast<f32>({:#x}u)), 0.0);",
            rounding.unit.to_bits()
        ),
    };
    let mut text =
        String::from("fn scale_of(extent: Extent, section: u32) -> vec2<f32> {\n    var divisor = 1.0;\n");
    for (index, section) in sections(format).iter().enumerate() {
        let divisor = divisor(rounding.rule, section.bits);
        let _ = writeln!(text, "    if section == {index}u {{ divisor = {divisor:?}; }}");
    }
    // Which of −0 and +0 is the larger depends on the machine; make both +0.
    let _ = write!(text, "    var s = vec2<f32>(0.0);\n    {body}\n    return s + vec2<f32>(0.0);\n}}\n");
    text
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
