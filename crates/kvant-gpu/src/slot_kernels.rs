//! The kernels of a slot that attend: how many queries share a reading, and the texts put together.

use crate::buffer::Buffer;
use crate::coding::Coding;
use crate::cut::BY_LANES;
use crate::device::Gpu;
use crate::head_widths;
use crate::kernel::Kernel;
use crate::layout::{SlotKernels, cached};
use crate::ops::SIXTEEN;
use crate::page_bytes::{self, bytes_reader};
use crate::page_text::{SHARED, buffers, exact_reader};
use crate::quads::{self, Queries};
use crate::side_kernels::SideKernels;
use crate::teams;
use crate::trellis;
use crate::unroll::unrolled;
use kvant_codec::format::PackedFormat;
use std::sync::Arc;

/// The most queries of a kv head that share a reading of a page.
const MOST_COLUMNS: usize = 16;

/// The most of them that meet codes as integers: decoding, and a few tokens at once.
const INTEGER_COLUMNS: usize = 8;

/// Numbers that a thread asks for before it waits while splits are put together; a part of 128.
const MERGE_AHEAD: usize = 32;

/// The text of a side with names of its own: both may have tables, codes and levels.
pub(crate) fn value_names(text: &str) -> String {
    let text = text.replace("levels", "value_levels").replace("table", "value_table");
    (0..8).fold(text, |text, n| text.replace(&format!("codes{n}("), &format!("value_codes{n}(")))
}

/// Values that only sums meet.
const NO_LATENTS: &str = "fn begin_latents(thread: u32, task: Task) {}\n";

/// Scores of coded pages that need nothing before them.
const NOTHING_BEFORE_SCORES: &str = "fn ready_scores(thread: u32, task: Task, first: u32) {}\n";

/// Sums that need nothing before them.
const NOTHING_BEFORE_SUMS: &str = "fn ready_sums(thread: u32, task: Task, first: u32, end: u32) {}\n";

/// A kernel that puts splits together and does nothing else.
pub(crate) const NO_ROWS: &str = "fn write_rows(thread: u32, number: u32) {}\n";

impl SlotKernels {
    /// Fours of a query.
    pub(crate) fn query_fours(&self) -> usize {
        self.key.fours.max(self.key.dim().div_ceil(4))
    }

    /// Channels of a query: those that meet keys, and those that meet latents.
    pub(crate) fn query_dim(&self) -> usize {
        self.key.dim() + if self.is_latent { self.value.dim() } else { 0 }
    }

    /// Numbers of a row of prepared queries; none where keys and latents are in the model's basis.
    pub(crate) fn prepared_width(&self, heads: usize) -> usize {
        let latents = self.is_latent && self.value.moves.is_some();
        match self.key.moves.is_some() || latents {
            true => heads * (self.key.dim() + 1 + if latents { self.value.dim() + 1 } else { 0 }),
            false => 0,
        }
    }

    /// Workgroup memory of the kernel that attends.
    fn attend_bytes(&self, columns: usize) -> usize {
        let latents = if self.is_latent { 4 * self.value.dim() } else { 0 };
        columns * (latents + 16 * self.query_fours() + 4 * 128 + 32 + 16)
            + 4 * (128 / self.value.tokens() + 1) * (1 + if self.floor.is_some() { columns } else { 0 })
            + self.along_bytes(columns)
    }

    /// The part of it that codes along tokens take.
    fn along_bytes(&self, columns: usize) -> usize {
        let keys = match &self.key.format {
            Coding::Trellis(format) => 512 * columns + trellis::key_bytes(format),
            Coding::Delta(_) => 512 * columns,
            _ => 0,
        };
        let has_trellis = matches!(self.value.format, Coding::Trellis(_));
        keys + if has_trellis { trellis::VALUE_BYTES } else { 0 }
    }

    /// The constant of a cache that leaves values out: how far below its query's largest score a page's may be.
    pub(crate) fn floor_text(&self) -> String {
        self.floor.map_or_else(String::new, |floor| format!("const FLOOR = {floor:?};\n"))
    }

    /// Columns of the kernel that serves blocks of `wanted` queries of a kv head.
    pub(crate) fn columns(&self, wanted: usize) -> usize {
        let mut columns = MOST_COLUMNS;
        while columns > 1 && (columns / 2 >= wanted || self.attend_bytes(columns) > 31 * 1024) {
            columns /= 2;
        }
        columns
    }

    /// Columns of the kernel that serves passes of so many tokens of a sequence at most, `group` queries each.
    pub(crate) fn class_columns(&self, group: usize, most_tokens: usize) -> usize {
        match self.by_teams && most_tokens <= teams::MOST_TOKENS {
            true => quads::COLUMNS,
            // Where kernels differ by rounding, few tokens go through that of one, each on its own.
            false if self.is_alike && most_tokens <= BY_LANES => self.columns(group),
            false => self.columns(group * most_tokens),
        }
    }

    /// Whether the kernel of so many columns attends by teams.
    pub(crate) fn attends_by_teams(&self, columns: usize) -> bool {
        self.by_teams && columns == quads::COLUMNS
    }

    /// What comes before attention, of the one block whose slot it is.
    pub(crate) fn heads_kernel(&self, blocks: usize, make: impl FnOnce() -> Arc<Kernel>) -> Arc<Kernel> {
        cached(&self.built, ("heads", 0, blocks), make)
    }

    pub(crate) fn attend_kernel(&self, gpu: &Gpu, columns: usize, blocks: usize) -> Arc<Kernel> {
        cached(&self.built, ("attend", columns, blocks), || {
            let queries = Queries { text: include_str!("wgsl/queries.wgsl"), own: false };
            self.build_attend(gpu, columns, (4, blocks), queries)
        })
    }

    /// Workgroup memory of heads that are made beside their attention.
    pub(crate) fn heads_bytes(&self, heads: usize) -> usize {
        4 * (heads * self.key.dim() + 4 * self.query_fours() + self.value.dim() + 128)
    }

    /// Whether heads of queries have room beside the columns of a kernel that serves all of them.
    pub(crate) fn has_room_for_heads(&self, columns: usize, heads: usize) -> bool {
        let bytes = match self.attends_by_teams(columns) {
            true => self.teams_bytes(),
            false => self.attend_bytes(columns),
        };
        heads <= columns && bytes + self.heads_bytes(heads) <= 31 * 1024
    }

    /// The kernel that attends with queries of its own making, of the one block whose slot it is; `rows` is how it makes them.
    pub(crate) fn own_kernel(
        &self,
        gpu: &Gpu,
        columns: usize,
        blocks: usize,
        rows: impl FnOnce() -> String,
    ) -> Arc<Kernel> {
        cached(&self.built, ("own", columns, blocks), || {
            let own = include_str!("wgsl/own.wgsl").to_owned() + &rows();
            self.build_attend(gpu, columns, (5, blocks), Queries { text: &own, own: true })
        })
    }

    /// The formats of both sides, where their codes are met by integers in kernels of so many columns.
    fn in_integers(&self, gpu: &Gpu, columns: usize) -> Option<[&PackedFormat; 2]> {
        let (Coding::Packed(key), Coding::Packed(value)) = (&self.key.format, &self.value.format) else {
            return None;
        };
        let is_uniform = self.key.widths.is_none() && self.value.widths.is_none();
        // Pages of keys begin where the 128 positions of a step may begin.
        let is_aligned = value.tokens.is_multiple_of(key.tokens);
        let room =
            self.attend_bytes(columns) + self.heads_bytes(columns) + page_bytes::memory(key, value, columns);
        let fits = columns <= INTEGER_COLUMNS && room <= 31 * 1024;
        let meets = page_bytes::meets_integers(key) && page_bytes::meets_integers(value);
        (gpu.arithmetic().dots && !self.is_latent && is_uniform && is_aligned && fits && meets)
            .then_some([key, value])
    }

    /// With pages from a binding on, so many buffers.
    fn build_attend(
        &self,
        gpu: &Gpu,
        columns: usize,
        (first, blocks): (usize, usize),
        queries: Queries<'_>,
    ) -> Arc<Kernel> {
        if self.attends_by_teams(columns) {
            return gpu.unchecked_kernel("attend", self.teams_text(gpu, (first, blocks), queries));
        }
        if let Some(text) = self.quads_text(gpu, columns, queries) {
            return gpu.unchecked_kernel("attend", text + &SlotKernels::quads_buffers(first, blocks));
        }
        let formats = self.in_integers(gpu, columns);
        let is_gpu = gpu.report().kind.is_gpu();
        gpu.kernel("attend", self.attend_text((formats, is_gpu), columns, (first, blocks), queries))
    }

    /// The text of the kernel that reads every codec: by integers where their formats are given, for a GPU or for a driver in software.
    pub(crate) fn attend_text(
        &self,
        (formats, is_gpu): (Option<[&PackedFormat; 2]>, bool),
        columns: usize,
        (mut first, blocks): (usize, usize),
        queries: Queries<'_>,
    ) -> String {
        let channels = self.value.dim().div_ceil(128);
        // A driver in software has nothing to wait for, and long texts to translate.
        let most = if is_gpu { 8 } else { 1 };
        let step = |fours: usize| (1..=most).rev().find(|step| fours.is_multiple_of(*step)).unwrap_or(1);
        let (key_step, exact_step) = (step(self.key.fours), step(self.key.dim().div_ceil(4)));
        // Fours of positions at once, all of one page.
        let fits = |step: &usize| [&self.key, &self.value].iter().all(|side| side.tokens() % (4 * step) == 0);
        let value_step = (1..=most).rev().find(fits).unwrap_or(1);
        let chunk_step = if is_gpu { 4 } else { 1 };
        let counts = [
            ("COLS", columns),
            ("CHANNELS", channels),
            ("KEY_STEP", key_step),
            ("EXACT_STEP", exact_step),
            ("VALUE_STEP", value_step),
            ("KEY_CHUNKS", self.key.fours / 4),
            ("CHUNK_STEP", chunk_step),
            ("SPARSE", usize::from(self.floor.is_some())),
        ];
        let constants = format!(
            "const COLS = {columns}u;\nconst Q4 = {}u;\nconst KEY_FOURS = {}u;\nconst KEY_DIM = {}u;\nconst VALUE_DIM = {}u;\n\
             const CHANNELS = {}u;\nconst KEY_TOKENS = {}u;\nconst VALUE_TOKENS = {}u;\nconst PREPARED = {};\n\
             const LATENT = {};\nconst VALUE_PREPARED = {};\nconst KV_HEADS = {}u;\n\
             const ALONG = {};\n\
             const KEY_STEP = {key_step}u;\nconst EXACT_STEP = {exact_step}u;\nconst VALUE_STEP = {value_step}u;\nconst CHUNK_STEP = {chunk_step}u;\n",
            self.query_fours(),
            self.key.fours,
            self.key.dim(),
            self.value.dim(),
            channels,
            self.key.tokens(),
            self.value.tokens(),
            self.key.moves.is_some(),
            self.is_latent,
            self.value.moves.is_some(),
            self.kv_heads,
            self.key.format.is_along_tokens(),
        );
        let value = value_names(&self.value.reader);
        let (mut loops, mut coded) = match formats {
            Some([key, value]) => (
                [include_str!("wgsl/coded_dots_scores.wgsl"), include_str!("wgsl/coded_dots_sums.wgsl")],
                include_str!("wgsl/coded_dots.wgsl").to_owned()
                    + NO_LATENTS
                    + SIXTEEN
                    + &bytes_reader(key)
                    + &value_names(&bytes_reader(value)),
            ),
            None => (
                [include_str!("wgsl/coded_plain_scores.wgsl"), include_str!("wgsl/coded_plain_sums.wgsl")],
                String::new(),
            ),
        };
        if formats.is_none() {
            self.add_coded_texts(&mut loops, &mut coded);
        }
        let floor = self.floor_text();
        let text = floor
            + &include_str!("wgsl/attend.wgsl").replace("//SCORES", loops[0]).replace("//SUMS", loops[1]);
        let (mut maps, mut codes) = (String::new(), "");
        for (side, name) in [(&self.key, "key_map"), (&self.value, "value_map")] {
            if side.map().is_some() {
                maps += &head_widths::binding(first, name);
                first += 1;
            }
            if side.widths.is_some() {
                codes = head_widths::CODES;
            }
        }
        let parts = [
            &constants,
            &unrolled(&(text + include_str!("wgsl/task.wgsl") + &coded + queries.text), &counts),
            &maps,
            SHARED,
            codes,
            &exact_reader(&self.key.exact),
            &exact_reader(&self.value.exact),
            &self.key.reader,
            &value,
            &buffers(first, blocks, false),
        ];
        parts.concat()
    }

    /// What comes before loops over codes that are met as they are, and the loops over codes along tokens in place of the others.
    fn add_coded_texts(&self, loops: &mut [&'static str; 2], coded: &mut String) {
        let scores = match &self.key.format {
            Coding::Trellis(_) => Some(include_str!("wgsl/trellis_scores.wgsl")),
            Coding::Delta(_) => Some(include_str!("wgsl/delta_scores.wgsl")),
            _ => None,
        };
        *coded += match (self.is_latent, scores) {
            (true, _) => include_str!("wgsl/latent_scores.wgsl"),
            (false, None) => NOTHING_BEFORE_SCORES,
            (false, Some(_)) => "",
        };
        if !self.is_latent {
            *coded += NO_LATENTS;
        }
        if let Some(scores) = scores {
            loops[0] = "";
            *coded += &include_str!("wgsl/along.wgsl").replace("//SCORES", scores);
        }
        match &self.value.format {
            Coding::Trellis(_) => loops[1] = include_str!("wgsl/trellis_sums.wgsl"),
            Coding::Delta(_) => loops[1] = include_str!("wgsl/delta_sums.wgsl"),
            _ => {}
        }
        if !matches!(self.value.format, Coding::Trellis(_)) {
            *coded += NOTHING_BEFORE_SUMS;
        }
        let sides = [&self.key.format, &self.value.format];
        if sides.iter().any(|format| matches!(format, Coding::Trellis(_))) {
            *coded += &trellis::shared_text();
        }
    }

    /// What the kernel that attends is bound to between partial sums and pages: maps of heads that have widths of their own.
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Buffer> {
        [&self.key, &self.value].into_iter().filter_map(SideKernels::map)
    }

    pub(crate) fn merge_kernel(&self, gpu: &Gpu, columns: usize, sink_logits: bool) -> Arc<Kernel> {
        let key = ("merge", columns, usize::from(sink_logits));
        let by_teams = self.attends_by_teams(columns);
        cached(&self.built, key, || self.build_merge(gpu, (columns, by_teams), sink_logits, NO_ROWS))
    }

    /// The same after another kernel than the slot's own has attended.
    #[cfg(test)]
    pub(crate) fn merge_of(&self, gpu: &Gpu, columns: usize, by_teams: bool) -> Arc<Kernel> {
        self.build_merge(gpu, (columns, by_teams), false, NO_ROWS)
    }

    /// The same that writes keys and values too, of the one block whose slot it is; `rows` is how.
    pub(crate) fn own_merge_kernel(
        &self,
        gpu: &Gpu,
        (columns, sink_logits): (usize, bool),
        blocks: usize,
        rows: impl FnOnce() -> String,
    ) -> Arc<Kernel> {
        cached(&self.built, ("own merge", columns, blocks), || {
            let by_teams = self.attends_by_teams(columns);
            self.build_merge(gpu, (columns, by_teams), sink_logits, &rows())
        })
    }

    fn build_merge(
        &self,
        gpu: &Gpu,
        (columns, by_teams): (usize, bool),
        sink_logits: bool,
        rows: &str,
    ) -> Arc<Kernel> {
        gpu.kernel(
            "merge",
            match by_teams {
                true => self.teams_merge_text(sink_logits, rows),
                false => self.merge_text(gpu.report().kind.is_gpu(), columns, sink_logits, rows),
            },
        )
    }

    /// The text of the kernel that puts the splits of so many columns together.
    pub(crate) fn merge_text(&self, is_gpu: bool, columns: usize, sink_logits: bool, rows: &str) -> String {
        let dim = self.value.dim();
        // A driver in software has nothing to wait for, and long texts to translate.
        let most = if is_gpu { MERGE_AHEAD } else { 1 };
        let ahead = (1..=most).rev().find(|ahead| dim.is_multiple_of(*ahead)).unwrap_or(1);
        let constants = format!(
            "const COLS = {columns}u;\nconst VALUE_DIM = {dim}u;\nconst MOVED = {};\nconst FINISH_STEP = {}u;\n\
             const FINISH_AHEAD = {ahead}u;\nconst AHEAD = {most}u;\nconst SINK_LOGITS = {sink_logits};\n",
            self.value.moves.is_some(),
            self.value.matrix_step(),
        );
        let counts = [("CHANNELS", dim.div_ceil(128)), ("FINISH_AHEAD", ahead), ("AHEAD", most)];
        constants + &unrolled(include_str!("wgsl/merge.wgsl"), &counts) + rows
    }

    /// Of keys, or of latents.
    pub(crate) fn prepare_kernel(&self, gpu: &Gpu, latents: bool) -> Arc<Kernel> {
        cached(&self.built, ("prepare", usize::from(latents), 0), || {
            let side = if latents { &self.value } else { &self.key };
            let (dim, step) = (side.dim(), side.matrix_step());
            let constants =
                format!("const DIM = {dim}u;\nconst BASIS_STEP = {step}u;\nconst LATENT = {latents};\n");
            gpu.kernel("prepare", constants + include_str!("wgsl/prepare.wgsl"))
        })
    }
}
