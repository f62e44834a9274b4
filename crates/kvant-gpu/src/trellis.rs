//! Pages of trellis codes as kernel text: readers for attention, and the encoder with its search.
//!
//! **Keys.** What a token adds by itself, its levels times the query, is there for all positions at once; what the leak carries over is a
//! scan of these sums, one for each leak that a page has (`wgsl/along.wgsl`).
//!
//! **Values.** A thread has a channel and goes through its tokens one after the other, so that the leak is a multiplication.
//!
//! **Bytes.** Pages are the CPU's where no sum is rounded otherwise: keys of `trellis` lie in the model's basis, but products may be contracted,
//! and values pass a matrix here where the CPU has butterflies. A scale of another eighth, or other codes of the same cost, is what that
//! makes; a test holds the error of pages to the CPU's.

use crate::fitting::exactly;
use kvant_codec::Side;
use kvant_codec::format::{Linear, TRELLIS_TABLES, TrellisFormat};
use std::fmt::Write;

/// The most channels that the encoder has workgroup memory for.
const MOST_CHANNELS: usize = 256;

/// Turns that all loops of a kernel may take together where a driver in software counts them: lavapipe leaves every loop after 65,535.
const SOFTWARE_TURNS: usize = 60_000;

/// Why the device does not encode such pages.
pub(crate) fn refusal(format: &TrellisFormat, is_software: bool) -> Option<String> {
    let dim = format.dim;
    if dim > MOST_CHANNELS {
        return Some(format!(
            "trellis codes of {dim} channels are more than the {MOST_CHANNELS} that are encoded on a GPU"
        ));
    }
    (is_software && turns(format) > SOFTWARE_TURNS).then(|| {
        format!("trellis codes of {dim} channels take longer than a driver in software lets a kernel run")
    })
}

/// About the turns that a thread takes to encode a page.
fn turns(format: &TrellisFormat) -> usize {
    let TrellisFormat { dim, .. } = *format;
    let search = |bits: usize| {
        let states = (4 * (256usize >> bits)).div_ceil(128);
        128 * (1 + states * (2 + (1 << bits))) + 400
    };
    let number = 1 + dim.div_ceil(4);
    match format.side {
        Side::Key => {
            let quads = format.padded() / 4;
            let bits = (format.quad_bits.div_ceil(quads) + 1).min(6);
            quads * (search(bits) + 4 * number + format.quad_bits) + 384 * dim.div_ceil(128) * number
        }
        Side::Value => {
            let rows: usize =
                format.widths.iter().map(|bits| 4 * (search((*bits).into()) + 4 * number)).sum();
            rows + number * (768 * dim.div_ceil(128) + 8 * dim)
        }
    }
}

/// What readers of both sides and encoders share.
pub(crate) fn shared_text() -> String {
    let words = |levels: &[i8; 16]| -> Vec<String> {
        levels
            .as_chunks::<4>()
            .0
            .iter()
            .map(|four| format!("{:#x}u", u32::from_le_bytes(four.map(i8::cast_unsigned))))
            .collect()
    };
    let levels: Vec<String> =
        TRELLIS_TABLES.iter().flat_map(|table| [words(&table.low), words(&table.high)]).flatten().collect();
    let by_table = |name: &str, kind: &str, of: &dyn Fn(usize) -> String| {
        let cases: String = (0..TRELLIS_TABLES.len())
            .map(|n| format!("        case {n}u: {{ return {}; }}\n", of(n)))
            .collect();
        format!(
            "fn {name}(table: u32) -> {kind} {{\n    switch table {{\n{cases}        default: {{ return {kind}(0); }}\n    }}\n}}\n"
        )
    };
    let eighths: String = (1..8)
        .map(|k| {
            format!("case {k}: {{ part = {}; }}\n        ", exactly(2f64.powf(f64::from(k) / 8.0) as f32))
        })
        .collect();
    format!("var<private> LEVEL_WORDS: array<u32, 56> = array<u32, 56>({});\n", levels.join(", "))
        + &by_table("unit_of", "f32", &|n| exactly(TRELLIS_TABLES[n].unit))
        + &by_table("start_of", "u32", &|n| format!("{}u", TRELLIS_TABLES[n].start))
        + &include_str!("wgsl/trellis.wgsl").replace("//EIGHTHS", &eighths)
}

/// The text that reads keys.
pub(crate) fn keys_reader(format: &TrellisFormat) -> String {
    let runs = (format.bytes() - format.codes()) / 64;
    format!(
        "const KEY_PADDED = {}u;\nconst KEY_SCALES = {}u;\nconst KEY_CODES = {}u;\nconst KEY_RUNS = {runs}u;\n{}",
        format.padded(),
        format.scales(),
        format.codes(),
        include_str!("wgsl/trellis_keys.wgsl")
    )
}

/// The text that reads values.
pub(crate) fn values_reader(format: &TrellisFormat) -> String {
    format!(
        "const VALUE_SCALES = {}u;\n{}{}",
        format.scales(),
        value_widths(format),
        include_str!("wgsl/trellis_values.wgsl")
    )
}

/// `trellis_value_bits(row)` and `value_codes_at(row)`: widths of sixteen channels, of which a format has two at most, and where their codes begin.
fn value_widths(format: &TrellisFormat) -> String {
    let first = format.widths.first().copied().unwrap_or(0);
    let last = format.widths.last().copied().unwrap_or(0);
    let wide = format.widths.iter().filter(|bits| **bits == first).count();
    format!(
        "fn trellis_value_bits(row: u32) -> u32 {{\n    return select({last}u, {first}u, row < {wide}u);\n}}\n\
         fn value_codes_at(row: u32) -> u32 {{\n    \
         return {}u + 256u * (min(row, {wide}u) * {first}u + (max(row, {wide}u) - {wide}u) * {last}u);\n}}\n",
        format.codes()
    )
}

/// Workgroup memory that attention takes for keys, beside what it carries over.
pub(crate) fn key_bytes(format: &TrellisFormat) -> usize {
    36 * format.padded() / 4 + 4 * 56 + 4
}

/// The same for values.
pub(crate) const VALUE_BYTES: usize = 4 * (128 + 56 + 2);

/// Mean squared errors of Gaussians of variance one, by width from 0 to 6 and 8, and how far levels reach on both sides.
const DISTORTIONS: [f32; 8] = [1.0, 0.302, 0.0848, 0.0228, 0.0064, 0.0019, 0.0007, 0.000_084];
const REACH: [f32; 8] = [0.0, 121.0, 122.0, 123.0, 125.0, 126.0, 124.0, 127.0];
const LEAKS: [u32; 5] = [0, 64, 128, 192, 224];

/// 2^(k/16) for k from 1 on.
fn sixteenths() -> Vec<String> {
    (1..16).map(|k| exactly(2f64.powf(f64::from(k) / 16.0) as f32)).collect()
}

/// A table that kernels look up.
fn table(name: &str, kind: &str, entries: &[String]) -> String {
    let count = entries.len();
    format!("var<private> {name}: array<{kind}, {count}> = array<{kind}, {count}>({});\n", entries.join(", "))
}

/// The constants by which `wgsl/exact_numbers.wgsl` brings exact rows into a basis.
pub(crate) fn numbers_text(side: Side, tokens: usize, dim: usize, moved: Option<(usize, bool)>) -> String {
    let (step, mean) = moved.unwrap_or((0, false));
    format!(
        "const KEYS = {};\nconst TOKENS = {tokens}u;\nconst DIM = {dim}u;\nconst MOVED = {};\nconst MEAN = {mean};\n\
         const BASIS_STEP = {step}u;\n{}",
        side == Side::Key,
        moved.is_some(),
        include_str!("wgsl/exact_numbers.wgsl")
    )
}

/// The kernel that encodes pages, without the buffers of pages and the reader of exact numbers; `moved` as in [`numbers_text`].
pub(crate) fn encoder(format: &TrellisFormat, moved: Option<(usize, bool)>) -> String {
    let is_key = format.side == Side::Key;
    let units = if is_key { 128 } else { 512 };
    let mut text = numbers_text(format.side, format.tokens, format.dim, moved);
    let _ = write!(
        text,
        "const CODES_AT = {}u;\nconst SCALES_AT = {}u;\nconst PADDED = {}u;\nconst PAGE_BYTES = {}u;\n\
         const UNIT_WORDS = {units}u;\nconst TOKEN_FACTORS = {}u;\nconst QUAD_BITS = {}u;\nconst PLANNED = {};\n",
        format.codes(),
        format.scales(),
        format.padded(),
        format.bytes(),
        if is_key { 1 } else { 128 },
        format.quad_bits,
        matches!(format.basis.linear, Linear::Dense(_)),
    );
    let floats = |numbers: &[f32]| -> Vec<String> { numbers.iter().map(|x| exactly(*x)).collect() };
    text += &table("SIXTEENTHS", "f32", &sixteenths());
    if is_key {
        text += &table("DISTORTIONS", "f32", &floats(&DISTORTIONS));
        text += &table("REACH", "f32", &floats(&REACH));
        text += &table("LEAKS", "u32", &LEAKS.map(|leak| format!("{leak}u")));
    } else {
        text += &value_widths(format);
    }
    let own = match format.side {
        Side::Key => include_str!("wgsl/trellis_encode_keys.wgsl"),
        Side::Value => include_str!("wgsl/trellis_encode_values.wgsl"),
    };
    [&text, include_str!("wgsl/trellis_encode.wgsl"), own, &shared_text(), include_str!("wgsl/quotient.wgsl")]
        .concat()
}
