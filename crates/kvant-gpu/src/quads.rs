//! The text of attention by fours of positions and channels (`wgsl/quads.wgsl`): few queries, and pages that it knows.
//!
//! A decode step reads every page once and does little with it. On a GPU the time goes into waiting for words from memory, and into
//! reading workgroup memory, which all threads share. This kernel is a shape that makes both rare.
//!
//! # The tricks
//!
//! **Everything is a four.** Up to four query heads of one kv head are worked on together, and their numbers lie beside each other as one
//! `vec4`. A thread has four positions (scores) or four channels (sums). What it loads from a page meets all four queries, and one `vec4` from
//! workgroup memory serves sixteen products.
//!
//! **Two ways through 256 positions.** For scores the 128 threads are two halves of 64: a thread has four of the 256 positions and one half of the
//! channels. The halves exchange what they have: each ends up with the whole scores of two of its four positions. For sums a thread has
//! four channels, and sets of threads (`SETS`: 512 by the head's width) share the positions. They are added up once, after the last position.
//!
//! **Codes become numbers without a conversion.** Four bits are put into the top of an f16's fraction under the exponent of 16, which makes
//! 16 + code: `((word << 6) & 0x03c003c0) | 0x4c004c00` has two of a word's eight codes, and `unpack2x16float` gives both. The constant
//! that is too much is known: it goes into what zeros and centres add, once for a page.
//!
//! **Ask early.** A thread asks for the first codes of a step before a barrier and for the next ones while it multiplies these. The list of pages of the
//! next 256 positions is fetched during these, in the other half of `pages`.
//!
//! # An example
//!
//! The code 9 in the lowest bits of a word: shifted left by six it lies in bits 6 to 9, the top of the fraction. With 0x4c00, the exponent of 16,
//! the f16 is 0x4e40 = 16 · (1 + 9/16) = 25 = 16 + 9. A page's scale s and zero z of the channel make the key s·9 + z = s·25 + (z − 16·s), and
//! Σ q·(z − 16·s) is one number for the page, made while the codes are on their way.
//!
//! # The trade-off
//!
//! Queries stay f32 and are not rounded to bytes as on the CPU: products are floating-point, and nobody waits for the largest number to round
//! by. The text is long, because loops over registers are written out before the shader is compiled
//! ([`unrolled`]), and it knows pages of 64 tokens alone: f16 on both sides, or four-bit codes with key scales by channel and value scales
//! by token. Everything else, and another number of columns than four, is `attend.wgsl`'s, by the same tasks and partials.

use crate::coding::Coding;
use crate::device::{Gpu, WORKGROUP_BYTES};
use crate::layout::SlotKernels;
use crate::page_bytes::{self, bytes_reader, centre};
use crate::page_text::{SHARED, by_buffer, declared, exact_reader, sections};
use crate::slot_kernels::value_names;
use crate::unroll::unrolled;
use kvant_codec::format::PackedFormat;
use kvant_codec::{Element, ScaleFormat};
use std::fmt::Write;

/// Queries that share a reading of a page.
pub(crate) const COLUMNS: usize = 4;

/// Tokens of a page, and of one that holds sinks.
const PAGE: usize = 64;
const SINKS: usize = 32;

/// Pairs of words that a thread asks for at once of exact keys and values, and eights of channels of coded keys. More of them wait
/// less and are more text, which a card fetches for every layer anew.
const WORDS: [usize; 2] = [16, 8];
const EIGHTS: usize = 4;

/// How much more than the code a code's number is.
const CODE_OFFSET: i32 = 16;

/// Queries that were ready, which have no key or value of their own.
const NO_OWN: &str = "
fn has_own(task: Task) -> bool {
    return false;
}

fn own_score(begin_at: u32) -> vec4<f32> {
    return vec4<f32>();
}

fn own_four(four: u32) -> vec4<f32> {
    return vec4<f32>();
}
";

/// Where queries come from.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    pub text: &'a str,
    /// Whether they come with the token's own key and value.
    pub own: bool,
}

impl Queries<'_> {
    /// How the token's own key and value are met.
    pub(crate) fn own_text(&self) -> &'static str {
        if self.own { include_str!("wgsl/quads_own.wgsl") } else { NO_OWN }
    }
}

/// The largest number up to `most` that divides.
fn divisor(of: usize, most: usize) -> usize {
    (1..=most).rev().find(|n| of.is_multiple_of(*n)).unwrap_or(1)
}

/// What pages of both sides hold.
#[derive(Clone, Copy)]
enum Kind<'a> {
    Plain,
    Codes([&'a PackedFormat; 2]),
}

impl SlotKernels {
    /// What pages hold, where this kernel reads them with so many columns.
    fn quads_kind(&self, gpu: &Gpu, columns: usize) -> Option<Kind<'_>> {
        let sides = [&self.key, &self.value];
        let is_half = |side: &&crate::side_kernels::SideKernels| {
            side.exact.element == Element::F16 && side.tokens() == PAGE && side.exact.tokens == PAGE
        };
        let (key_dim, value_dim) = (self.key.dim(), self.value.dim());
        let fits = key_dim.is_multiple_of(4) && value_dim.is_multiple_of(4) && value_dim <= 512;
        if self.is_latent
            || !gpu.arithmetic().dots
            || columns != COLUMNS
            || !sides.iter().all(is_half)
            || !fits
        {
            return None;
        }
        let kind = match (&self.key.format, &self.value.format) {
            (Coding::Exact(key), Coding::Exact(value)) => {
                let are_half = [key, value].iter().all(|format| format.element == Element::F16);
                are_half.then_some(Kind::Plain)
            }
            (Coding::Packed(key), Coding::Packed(value)) => {
                let is_uniform = sides.iter().all(|side| side.widths.is_none());
                let is_known = |format: &PackedFormat| {
                    let [section] = &sections(format)[..] else { return false };
                    page_bytes::meets_integers(format)
                        && section.bits == 4
                        && section.codes.is_multiple_of(8)
                        && format.coded == format.dim
                        && format.scales == ScaleFormat::F16
                };
                let by_channel = key.token_scale.is_none() && key.token_zero.is_none();
                let by_token = value.token_zero.is_none()
                    && value.channel_scale.is_none()
                    && value.channel_zero.is_none();
                (is_uniform && is_known(key) && is_known(value) && by_channel && by_token)
                    .then_some(Kind::Codes([&**key, &**value]))
            }
            _ => None,
        };
        kind.filter(|kind| self.quads_bytes(*kind) + self.heads_bytes(columns) <= WORKGROUP_BYTES as usize)
    }

    /// Workgroup memory of the kernel without heads.
    fn quads_bytes(&self, kind: Kind<'_>) -> usize {
        let codes = match kind {
            Kind::Plain => 0,
            Kind::Codes([key, value]) => 72 * key.coded + 16 * 64 * page_bytes::groups(value),
        };
        self.exact_bytes() + codes
    }

    /// The same of exact pages alone.
    pub(crate) fn exact_bytes(&self) -> usize {
        // Beside what every kernel has, scores of four pages where values are left out.
        let tops = if self.floor.is_some() { 4 } else { 0 };
        16 * (COLUMNS * self.query_fours() + self.key.dim() + 256 + 128 + 16 + 5 + tops)
    }

    /// The constants of the kernel over exact pages, and how often its loops run.
    pub(crate) fn quads_constants(&self) -> (String, Vec<(&'static str, usize)>) {
        let (key_dim, value_dim) = (self.key.dim(), self.value.dim());
        let sets = self.quads_sets();
        // Positions at once are those of one page.
        let (key_words, value_words) = (divisor(key_dim / 2, WORDS[0]), WORDS[1].min(PAGE / sets));
        let mut constants = format!(
            "const COLS = {COLUMNS}u;\nconst Q4 = {}u;\nconst KEY_DIM = {key_dim}u;\nconst VALUE_DIM = {value_dim}u;\n\
             const KEY_TOKENS = {PAGE}u;\nconst VALUE_TOKENS = {PAGE}u;\nconst PREPARED = {};\nconst SETS = {sets}u;\n\
             const KEY_WORDS = {key_words}u;\nconst VALUE_WORDS = {value_words}u;\n",
            self.query_fours(),
            self.key.moves.is_some(),
        );
        for (name, dim) in [("KEY", key_dim), ("VALUE", value_dim)] {
            let quads = |tokens: usize| (2 * tokens * dim).div_ceil(16);
            let _ = writeln!(
                constants,
                "const {name}_QUADS = {}u;\nconst {name}_SINK_QUADS = {}u;",
                quads(PAGE),
                quads(SINKS)
            );
        }
        constants += &self.floor_text();
        let is_sparse = usize::from(self.floor.is_some());
        let counts = vec![
            ("COLS", COLUMNS),
            ("KEY_WORDS", key_words),
            ("VALUE_WORDS", value_words),
            ("SPARSE", is_sparse),
            ("DENSE", 1 - is_sparse),
        ];
        (constants, counts)
    }

    /// Sets of threads that share the positions of values.
    fn quads_sets(&self) -> usize {
        1 << (512 / self.value.dim()).ilog2()
    }

    /// The kernel's text but for the buffers of pages, and how those are read; `None` where another kernel attends.
    pub(crate) fn quads_text(&self, gpu: &Gpu, columns: usize, queries: Queries<'_>) -> Option<String> {
        let kind = self.quads_kind(gpu, columns)?;
        let (mut constants, mut counts) = self.quads_constants();
        let (codes, readers) = match kind {
            Kind::Plain => (include_str!("wgsl/quads_exact.wgsl").to_owned(), String::new()),
            Kind::Codes(formats) => {
                let step = divisor(formats[0].coded / 16, EIGHTS);
                let octets = (PAGE / 8 / self.quads_sets()).max(1);
                for (name, format) in ["KEY", "VALUE"].into_iter().zip(formats) {
                    let section = &sections(format)[0];
                    let _ = writeln!(
                        constants,
                        "const {name}_CODES = {}u;\nconst {name}_CENTRE = {}.0;\nconst {name}_CODED_QUADS = {}u;",
                        section.codes / 8,
                        centre(section) - CODE_OFFSET,
                        format.bytes.div_ceil(16),
                    );
                }
                let _ = writeln!(constants, "const KEY_STEP = {step}u;\nconst OCTETS = {octets}u;");
                counts.extend([("KEY_STEP", step), ("OCTETS", octets)]);
                let text = include_str!("wgsl/quads_codes.wgsl").to_owned();
                let [key, value] = formats.map(bytes_reader);
                let readers =
                    [&self.key.reader, &value_names(&self.value.reader), &key, &value_names(&value)]
                        .map(String::as_str)
                        .concat();
                (text, readers)
            }
        };
        let text = [
            include_str!("wgsl/quads_main.wgsl"),
            include_str!("wgsl/task.wgsl"),
            include_str!("wgsl/quads.wgsl"),
            &codes,
            queries.text,
            queries.own_text(),
        ];
        let parts = [
            &constants,
            &unrolled(&text.concat(), &counts),
            SHARED,
            &exact_reader(&self.key.exact),
            &exact_reader(&self.value.exact),
            &readers,
        ];
        Some(parts.concat())
    }

    /// The buffers of pages from a binding on, and the readers of this kernel: words, pairs of them and how far pages reach.
    pub(crate) fn quads_buffers(first: usize, count: usize) -> String {
        let mut text = declared(first, count, "read", "vec2<u32>");
        let _ = writeln!(
            text,
            "fn held(page: u32, quads: u32) -> u32 {{\n    var most = 0u;\n{}    \
             return (page & 0xf8000000u) | min(page & 0x07ffffffu, max(most, quads) - quads);\n}}",
            by_buffer(count, |index| format!("most = arrayLength(&pages{index}) / 2u;"))
        );
        let base = "    let base = (page & 0x07ffffffu)";
        let _ = writeln!(
            text,
            "fn page_word(page: u32, word: u32) -> u32 {{\n{base} * 4u + word;\n{}}}",
            by_buffer(count, |index| format!("return pages{index}[base / 2u][base % 2u];"))
        );
        let _ = writeln!(
            text,
            "fn page_pair(page: u32, pair: u32) -> vec2<u32> {{\n{base} * 2u + pair;\n{}}}",
            by_buffer(count, |index| format!("return pages{index}[base];"))
        );
        text
    }
}
