//! The text of attention over int4 pages by teams of 32 threads (`wgsl/teams.wgsl`): few tokens of a sequence, and pages that it knows.
//!
//! The arithmetic is the CPU's: queries and weights are rounded to bytes, a step for every page, and meet codes in integer dot products.
//! A query's numbers do not depend on the other columns of a kernel, nor does the order of its sums
//! on where a window begins, so one token has the same bits alone and beside others of its sequence.

use crate::coding::Coding;
use crate::device::Gpu;
use crate::layout::SlotKernels;
use crate::page_text::{SHARED, by_buffer, declared, exact_reader, group_channels, sections};
use crate::quads::Queries;
use crate::recorder::Grid;
use crate::side_kernels::SideKernels;
use crate::unroll::unrolled;
use kvant_codec::format::{CodeMeaning, PackedFormat};
use kvant_codec::{Element, ScaleFormat};
use std::fmt::Write;

/// Tokens of a page, and channels under a token's scale.
const PAGE: usize = 64;
const GROUP: usize = 32;

/// The most tokens of a sequence that a pass attends with in this way.
pub(crate) const MOST_TOKENS: usize = 16;

/// Workgroups that share the splits of a query head when they are put together.
const MERGE_PARTS: usize = 4;

/// Splits whose sums a thread asks for before it waits.
const MERGE_AHEAD: usize = 32;

/// How the 32 threads of a team exchange numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TeamExchange {
    /// By shuffles, where subgroups have 32 or 64 threads.
    Subgroups {
        /// Whether all subgroups have 32.
        are_teams: bool,
        /// Whether a subgroup's barrier is enough for what its threads write to workgroup memory.
        has_barrier: bool,
    },
    /// Through workgroup memory.
    Memory,
}

impl TeamExchange {
    /// What an adapter allows.
    pub(crate) fn of(adapter: &wgpu::Adapter) -> TeamExchange {
        let (info, features) = (adapter.get_info(), adapter.features());
        let sizes = (info.subgroup_min_size, info.subgroup_max_size);
        if !features.contains(wgpu::Features::SUBGROUP) || sizes.0 < 32 || sizes.1 > 64 {
            return TeamExchange::Memory;
        }
        // naga's barrier of a subgroup orders the subgroup's memory alone by the word of the specification; NVIDIA's driver orders all.
        let is_nvidia = info.vendor == NVIDIA && info.backend == wgpu::Backend::Vulkan;
        TeamExchange::Subgroups {
            are_teams: sizes == (32, 32),
            has_barrier: is_nvidia && features.contains(wgpu::Features::SUBGROUP_BARRIER),
        }
    }

    /// What a device is opened with for it.
    pub(crate) fn features(self) -> wgpu::Features {
        match self {
            TeamExchange::Subgroups { has_barrier: true, .. } => {
                wgpu::Features::SUBGROUP | wgpu::Features::SUBGROUP_BARRIER
            }
            TeamExchange::Subgroups { .. } => wgpu::Features::SUBGROUP,
            TeamExchange::Memory => wgpu::Features::empty(),
        }
    }

    /// The kernel with its exchange in place.
    fn written_into(self, text: &str) -> String {
        let (arguments, values) = match self {
            TeamExchange::Subgroups { .. } => (
                "@builtin(subgroup_id) subgroup: u32,\n    @builtin(subgroup_size) size: u32,\n    \
                 @builtin(subgroup_invocation_id) invocation: u32,",
                "subgroup, size, invocation",
            ),
            TeamExchange::Memory => ("", "0u, 0u, 0u"),
        };
        let text = text.replace("TEAM_ARGUMENTS", arguments).replace("TEAM_VALUES", values);
        text + &match self {
            TeamExchange::Subgroups { are_teams, has_barrier } => {
                let barrier = if has_barrier { "subgroupBarrier" } else { "workgroupBarrier" };
                let first_lane = if are_teams { 0 } else { 32 };
                include_str!("wgsl/teams_subgroup.wgsl").replace("TEAM_BARRIER()", &format!("{barrier}()"))
                    + &format!("const FIRST_LANE = {first_lane}u;\n")
            }
            TeamExchange::Memory => include_str!("wgsl/teams_memory.wgsl").to_owned(),
        }
    }
}

/// NVIDIA's number among vendors.
const NVIDIA: u32 = 0x10de;

/// Whether the kernel reads pages of both sides on a device.
pub(crate) fn reads(gpu: &Gpu, key: &SideKernels, value: &SideKernels) -> bool {
    let is_half = |side: &SideKernels| {
        side.exact.element == Element::F16 && side.tokens() == PAGE && side.exact.tokens == PAGE
    };
    let (Coding::Packed(k), Coding::Packed(v)) = (&key.format, &value.format) else { return false };
    gpu.arithmetic().dots
        && [key, value].into_iter().all(is_half)
        && [64, 128].contains(&k.dim)
        && v.dim == k.dim
        && key.widths.is_none()
        && value.widths.is_none()
        && key.moves.is_none()
        && is_known_key(k)
        && is_known_value(v)
}

/// Codes of four bits for all channels, from a byte on.
fn has_codes(format: &PackedFormat, from: usize, meaning: CodeMeaning) -> bool {
    let [section] = &sections(format)[..] else { return false };
    section.bits == 4
        && section.meaning == meaning
        && section.codes == from
        && format.coded == format.dim
        && format.scales == ScaleFormat::F16
        && format.bytes == from + PAGE * format.dim / 2
}

/// Scales of channels, their zeros, codes.
fn is_known_key(format: &PackedFormat) -> bool {
    let at = |range: &Option<std::ops::Range<usize>>| range.as_ref().map(|range| range.start);
    has_codes(format, 4 * format.dim, CodeMeaning::WithZero)
        && (at(&format.channel_scale), at(&format.channel_zero)) == (Some(0), Some(2 * format.dim))
        && format.token_scale.is_none()
        && format.token_zero.is_none()
}

/// Scales of tokens by groups of channels, codes.
fn is_known_value(format: &PackedFormat) -> bool {
    has_codes(format, 2 * PAGE * format.dim / GROUP, CodeMeaning::Shifted)
        && group_channels(format) == GROUP
        && format.token_scale.as_ref().map(|range| range.start) == Some(0)
        && format.token_zero.is_none()
        && format.channel_scale.is_none()
        && format.channel_zero.is_none()
}

/// The lines of a part of `text` that a head dimension has: those between `//NAME` and the next such line.
fn part(text: &str, name: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != format!("//{name}")).skip(1);
    lines.take_while(|line| !is_part(line)).flat_map(|line| [line, "\n"]).collect()
}

fn is_part(line: &str) -> bool {
    line.strip_prefix("//").is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

/// Lines between `//BLOCK page` and `//END` once for every buffer of pages, chosen by the page.
fn by_block(text: &str, count: usize) -> String {
    let mut lines = text.lines();
    let mut out = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        let Some(page) = line.trim().strip_prefix("//BLOCK ") else {
            out += line;
            out.push('\n');
            continue;
        };
        let body: String =
            lines.by_ref().take_while(|line| line.trim() != "//END").flat_map(|line| [line, "\n"]).collect();
        let of_buffer = |index: usize| body.replace("PAGES[", &format!("pages{index}["));
        if count == 1 {
            out += &of_buffer(0);
            continue;
        }
        let _ = writeln!(out, "switch {page} >> 27u {{");
        for index in 1..count {
            let _ = writeln!(out, "case {index}u: {{\n{}}}", of_buffer(index));
        }
        let _ = writeln!(out, "default: {{\n{}}}\n}}", of_buffer(0));
    }
    out
}

impl SlotKernels {
    /// The kernel's text, with so many buffers of pages from a binding on.
    pub(crate) fn teams_text(
        &self,
        gpu: &Gpu,
        (first, blocks): (usize, usize),
        queries: Queries<'_>,
    ) -> String {
        let dim = self.key.dim();
        let of_dim = match dim {
            64 => include_str!("wgsl/teams_64.wgsl"),
            _ => include_str!("wgsl/teams_128.wgsl"),
        };
        let mut text = [include_str!("wgsl/teams.wgsl"), include_str!("wgsl/teams_codes.wgsl")].concat();
        for name in ["FOLD", "WEIGHTS", "PARTS_TOGETHER"] {
            text = text.replace(&format!("//{name}\n"), &format!("\n{}", part(of_dim, name)));
        }
        let text = by_block(&gpu.team_exchange().written_into(&text), blocks);
        let (constants, mut counts) = self.quads_constants();
        counts.extend([("GROUPS", dim / GROUP), ("KEY_LOADS", dim / 16), ("VALUE_LOADS", dim / 16)]);
        let parts = [
            include_str!("wgsl/task.wgsl"),
            include_str!("wgsl/quads.wgsl"),
            include_str!("wgsl/quads_exact.wgsl"),
            &text,
            queries.text,
            queries.own_text(),
        ];
        let parts = [
            &constants,
            &format!("const D = {dim}u;\n"),
            &unrolled(&parts.concat(), &counts),
            SHARED,
            &exact_reader(&self.key.exact),
            &exact_reader(&self.value.exact),
            &buffers(first, blocks),
        ];
        parts.concat()
    }

    /// The kernel that puts the splits of a slot together; `rows` writes keys and values.
    pub(crate) fn teams_merge_text(&self, sink_logits: bool, rows: &str) -> String {
        let (dim, is_moved) = (self.value.dim(), self.value.moves.is_some());
        let constants = format!(
            "const VALUE_DIM = {dim}u;\nconst PARTS = {MERGE_PARTS}u;\nconst AHEAD = {MERGE_AHEAD}u;\nconst MOVED = {is_moved};\n\
             const FINISH_STEP = {}u;\nconst SINK_LOGITS = {sink_logits};\n",
            self.value.matrix_step(),
        );
        let slices = 128 / (dim / MERGE_PARTS);
        let counts = [("AHEAD", MERGE_AHEAD), ("MOVES", if is_moved { dim / slices } else { 0 })];
        constants + &unrolled(include_str!("wgsl/teams_merge.wgsl"), &counts) + rows
    }

    /// The workgroups that put splits together: of so many query heads of all rows, and of keys and values that are written.
    pub(crate) fn merge_grid(&self, columns: usize, count: usize) -> Grid {
        Grid::rows(count, if self.attends_by_teams(columns) { MERGE_PARTS } else { 1 })
    }

    /// Workgroup memory of the kernel without heads, at most: of exact pages, of teams, and of what threads exchange.
    pub(crate) fn teams_bytes(&self) -> usize {
        self.exact_bytes() + 4 * (128 * 16 + 128 * 8) + 128 + 128 * 16
    }
}

/// The buffers of pages from a binding on, in fours of words, and how they are read.
fn buffers(first: usize, count: usize) -> String {
    let mut text = declared(first, count, "read", "vec4<u32>");
    let _ = writeln!(
        text,
        "fn held(page: u32, quads: u32) -> u32 {{\n    var most = 0u;\n{}    \
         return (page & 0xf8000000u) | min(page & 0x07ffffffu, max(most, quads) - quads);\n}}",
        by_buffer(count, |index| format!("most = arrayLength(&pages{index});"))
    );
    text += "fn quad_of(page: u32) -> u32 {\n    return page & 0x07ffffffu;\n}\n";
    let base = "    let base = (page & 0x07ffffffu)";
    let _ = writeln!(
        text,
        "fn page_word(page: u32, word: u32) -> u32 {{\n{base} * 4u + word;\n{}}}",
        by_buffer(count, |index| format!("return pages{index}[base / 4u][base % 4u];"))
    );
    let _ = writeln!(
        text,
        "fn page_pair(page: u32, pair: u32) -> vec2<u32> {{\n{base} * 2u + pair;\n    var four = vec4<u32>();\n{}    \
         return select(four.xy, four.zw, base % 2u == 1u);\n}}",
        by_buffer(count, |index| format!("four = pages{index}[base / 2u];"))
    );
    text
}

#[cfg(test)]
mod tests {
    use super::{by_block, part};

    #[test]
    fn loads_are_written_once_for_every_buffer() {
        let text = "a\n//BLOCK p.x\nlet x = PAGES[1];\n//END\nb\n";
        assert_eq!(by_block(text, 1), "a\nlet x = pages0[1];\nb\n");
        let two = by_block(text, 2);
        assert!(two.contains("switch p.x >> 27u") && two.contains("pages0[1]") && two.contains("pages1[1]"));
    }

    #[test]
    fn parts_end_where_the_next_begins() {
        assert_eq!(part("//A\nx\n// y\n//B\nz\n", "A"), "x\n// y\n");
        assert_eq!(part("//A\nx\n//B\n", "B"), "");
    }
}
