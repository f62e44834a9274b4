//! The text that fits scales to numbers where a codec's rule does: twice over the numbers for a scale and a zero, once for a scale.

use crate::page_text::sections;
use kvant_codec::format::PackedFormat;
use kvant_codec::{Rounding, Rule};
use std::fmt::Write;

/// What goes into the kernel that encodes; all empty where nothing is fitted.
#[derive(Default)]
pub(crate) struct Fit {
    /// Constants and functions.
    pub functions: String,
    /// After the channels' scales were chosen by their extents.
    pub channel: &'static str,
    /// After one token's scale was.
    pub token: &'static str,
}

/// Numbers of a channel come sixteen tokens at a time.
const CHANNEL: &str = "if !TOKEN_SCALES {
            var fits: array<Fit, CHANNELS>;
            for (var i = 0u; i < CHANNELS; i++) {
                let c = thread + 128u * i;
                if c < CODED {
                    fits[i] = fit_begun(extents[i], vec2<f32>(channel_scale[c], channel_zero[c]), section_of(c));
                }
            }
            for (var first = 0u; first < TOKENS; first += 16u) {
                workgroupBarrier();
                load_tile(thread, first);
                workgroupBarrier();
                for (var i = 0u; i < CHANNELS; i++) {
                    let c = thread + 128u * i;
                    if c < CODED {
                        for (var t = 0u; t < 16u; t++) {
                            fits[i] = fit_joined(fits[i], tile[t * WIDTH + c], section_of(c));
                        }
                    }
                }
            }
            var best: array<Trial, CHANNELS>;
            var lines: array<Line, CHANNELS>;
            for (var i = 0u; i < CHANNELS; i++) {
                let c = thread + 128u * i;
                if c < CODED {
                    best[i] = best_trial(fits[i], extents[i], vec2<f32>(channel_scale[c], channel_zero[c]), section_of(c));
                }
            }
            for (var first = 0u; FIT_RANGE && first < TOKENS; first += 16u) {
                workgroupBarrier();
                load_tile(thread, first);
                workgroupBarrier();
                for (var i = 0u; i < CHANNELS; i++) {
                    let c = thread + 128u * i;
                    if c < CODED {
                        for (var t = 0u; t < 16u; t++) {
                            lines[i] = line_joined(lines[i], best[i], tile[t * WIDTH + c]);
                        }
                    }
                }
            }
            for (var i = 0u; i < CHANNELS; i++) {
                let c = thread + 128u * i;
                if c < CODED && section_fits(section_of(c)) {
                    var s = vec2<f32>(0.0);
                    if FIT_RANGE {
                        s = line_scale(lines[i], best[i], extents[i]);
                    } else {
                        s.x = signed_scale(fits[i], section_of(c));
                    }
                    channel_scale[c] = s.x;
                    channel_zero[c] = s.y;
                }
            }
        }";

/// Numbers of a token's group all lie in the tile.
const TOKEN: &str = "let section = section_of(GROUP * g);
                    if section_fits(section) {
                        var fit = fit_begun(extent, s, section);
                        for (var c = GROUP * g; c < end; c++) {
                            fit = fit_joined(fit, token_number(t, c), section);
                        }
                        if FIT_RANGE {
                            let best = best_trial(fit, extent, s, section);
                            var line: Line;
                            for (var c = GROUP * g; c < end; c++) {
                                line = line_joined(line, best, token_number(t, c));
                            }
                            s = line_scale(line, best, extent);
                        } else {
                            s.x = signed_scale(fit, section);
                        }
                    }";

impl Fit {
    pub fn new(format: &PackedFormat, rounding: Rounding) -> Fit {
        let rule = rounding.rule;
        let sections = sections(format);
        if !sections.iter().any(|section| rule.fits(section.bits)) {
            return Fit::default();
        }
        let mut text = format!("\nconst FIT_RANGE = {};\n", rule == Rule::FittedRange);
        let _ = writeln!(text, "const END_WEIGHT = {};", exactly(Rule::END_WEIGHT));
        text += "struct FitConstants {\n    part: f32,\n    top: f32,\n    low: vec3<f32>,\n    width: vec3<f32>,\n    \
                 square: vec3<f32>,\n}\n\nfn section_fits(section: u32) -> bool {\n";
        for (index, section) in sections.iter().enumerate() {
            let _ = writeln!(text, "    if section == {index}u {{ return {}; }}", rule.fits(section.bits));
        }
        text += "    return false;\n}\n\nfn fit_constants(section: u32) -> FitConstants {\n";
        for (index, section) in sections.iter().enumerate().filter(|(_, section)| rule.fits(section.bits)) {
            let _ =
                writeln!(text, "    if section == {index}u {{ return {}; }}", constants(rule, section.bits));
        }
        text += "    return FitConstants(0.0, 0.0, vec3<f32>(0.0), vec3<f32>(0.0), vec3<f32>(0.0));\n}\n\n";
        text += include_str!("wgsl/fit.wgsl");
        Fit { functions: text, channel: CHANNEL, token: TOKEN }
    }
}

/// Of ranges: a step as part of the whole, the highest level, where ranges begin, how wide steps are. Of signed maxima: the highest
/// level, reciprocals of the parts of the whole, these parts, and their squares.
fn constants(rule: Rule, bits: u8) -> String {
    let (part, top, low, width, square) = if rule == Rule::FittedRange {
        let top = ((1u32 << bits) - 1) as f32;
        let cuts = Rule::RANGE_CUTS;
        (1.0 / top, top, cuts.map(|(low, _)| low), cuts.map(|(low, high)| 1.0 - (low + high) / top), [0.0; 3])
    } else {
        let each = |of: fn(f32) -> f32| Rule::max_parts(bits).map(of);
        (0.0, ((1u32 << (bits - 1)) - 1) as f32, each(f32::recip), each(|x| x), each(|x| x * x))
    };
    let (low, width, square) = (three(low), three(width), three(square));
    format!("FitConstants({}, {}, {low}, {width}, {square})", exactly(part), exactly(top))
}

/// A number to the last bit: the fewest digits that are read as no other.
pub(crate) fn exactly(x: f32) -> String {
    format!("{x:?}f")
}

fn three(x: [f32; 3]) -> String {
    format!("vec3<f32>({}, {}, {})", exactly(x[0]), exactly(x[1]), exactly(x[2]))
}
