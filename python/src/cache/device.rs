//! What the device of another library is given to attend on pages of host memory: MLX's and torch's on a Mac.
//!
//! The kernels are kvant-gpu's own (`kvant/metal`), so what they are told is what `task.wgsl` and `merge.wgsl` say: a table of pages,
//! pieces of work, a record for every row of queries. Encoded pages go to the device once and stay there; sinks and exact pages, which the
//! next token changes, come with every pass.
//!
//! The caller keeps the pages of all rows, kv heads and sides in one array, a ring of `room` pages for every row:
//!
//! ```text
//! pool  (page % room, row, kv head, side, bytes of a page)
//! ```
//!
//! **Invariant:** a query's splits depend on its position and the shape alone, as on every other backend.

use super::refused;
use kvant_cache::{CacheLayout, ExactWindow, KvShape, KvSlot, Mode, Sequence, SideStore, SlotKind};
use kvant_codec::format::Linear;
use kvant_codec::{Basis, Element, KvSpec, PageCodec, PageFormat, Side, Tier};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;

/// The codec that there are kernels for, its tokens of a page, and the widths of heads.
const SPEC: &str = "int4";
const PAGE: usize = 64;
const DIMS: [usize; 2] = [64, 128];

/// Queries of a kv head that share a reading of a page: what the kernels were written out for.
const COLUMNS: usize = 4;

/// Positions of the shortest split, and splits of all kv heads together that a long context has before they grow: as in kvant-gpu.
const SPLIT: usize = 128;
const SPLITS: usize = 512;

/// Pages are counted in sixteen bytes from the start of their buffer; above that is which buffer.
const QUAD: usize = 16;
const MOST_QUADS: usize = 1 << 27;
const PASS_BUFFER: u32 = 1 << 27;

/// How a task's pages are held.
const CODED: u32 = 0;
const EXACT: u32 = 1;
const SINKS: u32 = 2;

/// Words of a task, and of a row's record.
const TASK_WORDS: usize = 11;

const SIDES: [Side; 2] = [Side::Key, Side::Value];

/// The kernels that read the pages of a slot.
pub struct Form {
    /// What their names end with.
    pub name: String,
    pub page_bytes: usize,
    /// The matrix that moves a sum over encoded values back into the model's basis, then its mean, as f32.
    pub finish: Vec<u8>,
}

/// The kernels for a slot; refused where there are none, with the reason.
pub fn form(layout: &CacheLayout, slot: KvSlot, shape: &KvShape) -> PyResult<Form> {
    let only = |what: String| {
        refused(format!("{what}: Metal has kernels for int4 with heads of 64 or 128 channels"))
    };
    let rule = layout.exact_window();
    let of_slot = &layout.slots()[slot.index()];
    if matches!(of_slot.kind(), SlotKind::Latent(_)) {
        return Err(only("latents".to_owned()));
    }
    if rule.mode != Mode::Deployed || rule.streaming.is_some() || layout.sparse_v().is_some() {
        return Err(only("a strict cache, a streaming window or sparse values".to_owned()));
    }
    let dim = shape.key_dim;
    if !DIMS.contains(&dim) || shape.value_dim != dim {
        return Err(only(format!("heads of {dim} and {} channels", shape.value_dim)));
    }
    let spec: KvSpec = SPEC.parse().map_err(refused)?;
    let (mut bytes, mut finish) = (0, Vec::new());
    for side in SIDES {
        let known = spec.side(side).build(side, dim).map_err(refused)?;
        for head in of_slot.heads() {
            let codecs = head.side(side).ok_or_else(|| refused("a kv head has no pages"))?;
            let is_half = |codec: &dyn PageCodec| matches!(codec.format(), Some(PageFormat::Exact(format)) if format.element == Element::F16);
            let is_known = codecs.codec().format().is_some_and(|format| Some(format) == known.format())
                && codecs.page_tokens() == PAGE
                && is_half(codecs.exact())
                && is_half(codecs.sinks());
            if !is_known {
                return Err(only(format!("{side:?} pages of another form")));
            }
        }
        if known.page_bytes() % QUAD != 0 || (bytes > 0 && known.page_bytes() != bytes) {
            return Err(only("pages of two sizes".to_owned()));
        }
        bytes = known.page_bytes();
        if let (Side::Value, Some(PageFormat::Packed(format))) = (side, known.format()) {
            let Linear::Rotation { kind, seed } = &format.basis.linear else {
                return Err(only("values in the basis of a plan".to_owned()));
            };
            // Row j becomes T e_j. Of a rotation that is a row of T⁻¹, and column j of what moves a sum back.
            let mut rows: Vec<f32> =
                (0..dim * dim).map(|n| f32::from(u8::from(n % dim == n / dim))).collect();
            Basis::new(*kind, dim, *seed).apply(&mut rows, Tier::Scalar).map_err(refused)?;
            let turned = (0..dim * dim).map(|n| rows[n % dim * dim + n / dim]);
            finish = turned.chain((0..dim).map(|_| 0.0)).flat_map(f32::to_le_bytes).collect();
        }
    }
    Ok(Form { name: format!("{SPEC}_{dim}"), page_bytes: bytes, finish })
}

/// A pass of queries, as it is asked for.
pub struct Asked {
    /// Tokens of every row, and query heads.
    pub tokens: usize,
    pub heads: usize,
    /// Pages of every row that are on the device, all from the first that is seen on.
    pub held: Vec<usize>,
    /// Pages of a row that there is room for.
    pub room: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
}

/// What kernels are given for a pass: the plan, pages of the pass, places of new pages and their bytes, arguments of both kernels, how many
/// tasks there are, and what is held then.
pub type Given<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Vec<usize>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    usize,
    Vec<usize>,
);

/// The pages of a row that the pass reads as bytes, those that it reads exactly, and whether it sees sinks.
struct Seen {
    coded: Range<usize>,
    exact: Range<usize>,
    sinks: bool,
}

/// The layer that is asked.
pub struct Layer<'a> {
    pub layout: &'a CacheLayout,
    pub slot: KvSlot,
    pub shape: &'a KvShape,
    pub sequences: &'a [Sequence],
}

impl Layer<'_> {
    fn rule(&self) -> &ExactWindow {
        self.layout.exact_window()
    }

    /// The first page after the sinks that the query at `position` sees.
    fn first_page(&self, position: usize) -> usize {
        let rule = self.rule();
        rule.first_seen(position, self.shape.window).saturating_sub(rule.sinks) / PAGE
    }

    fn seen(&self, sequence: &Sequence, tokens: usize) -> PyResult<Seen> {
        let (rule, len) = (self.rule(), sequence.slot_len(self.slot));
        let Some(start) = len.checked_sub(tokens).filter(|_| tokens > 0) else {
            return Err(refused(format!("{tokens} queries for a sequence of {len} tokens")));
        };
        let first = self.first_page(start);
        let end = rule.encoded_for(len - 1, PAGE);
        let exact = rule.encoded_for(start, PAGE).max(first);
        Ok(Seen {
            coded: first.min(end)..end,
            exact: exact..len.saturating_sub(rule.sinks).div_ceil(PAGE).max(exact),
            sinks: rule.sinks > 0 && rule.first_seen(start, self.shape.window) < rule.sinks,
        })
    }

    /// Pages of a row that the pass needs on the device at most.
    pub fn room(&self, tokens: usize) -> PyResult<usize> {
        let rows = self.sequences.iter().map(|sequence| Ok(self.seen(sequence, tokens)?.coded.len()));
        rows.collect::<PyResult<Vec<usize>>>().map(|rows| rows.into_iter().max().unwrap_or(0))
    }

    /// What kernels are given for a pass.
    pub fn pass<'py>(&self, py: Python<'py>, asked: Asked, page_bytes: usize) -> PyResult<Given<'py>> {
        let KvShape { kv_heads, key_dim: dim, .. } = *self.shape;
        let Asked { heads, ref held, room, scale, soft_cap, .. } = asked;
        let rows = self.sequences.len();
        if heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(refused(format!("{heads} query heads for {kv_heads} kv heads")));
        }
        if held.len() != rows {
            return Err(refused(format!("pages of {} rows for {rows} sequences", held.len())));
        }
        if room * rows * kv_heads * 2 * page_bytes / QUAD >= MOST_QUADS {
            return Err(refused("a layer's pages are beyond 2 GiB, which no kernel reaches"));
        }
        let mut work = Work::new(self, asked, page_bytes / QUAD);
        for (row, sequence) in self.sequences.iter().enumerate() {
            work.add(row, sequence)?;
        }
        let (tasks, records) = (work.tasks.len() / TASK_WORDS, work.records.len() / 4);
        let tasks_at = work.plan.len();
        let mut plan = work.plan;
        plan.extend(work.tasks);
        let rows_at = plan.len();
        plan.extend(work.records);
        let window = self.shape.window.map_or(u32::MAX, |window| u32::try_from(window).unwrap_or(u32::MAX));
        let (group, stride) = ((heads / kv_heads) as u32, (heads * dim) as u32);
        let (scale, cap) = (scale.to_bits(), soft_cap.unwrap_or(0.0).to_bits());
        let (sinks, dim, heads) = (self.rule().sinks as u32, dim as u32, heads as u32);
        let (tasks_at, rows_at) = (tasks_at as u32, rows_at as u32);
        // `Arguments` of `task.wgsl`, and those of `merge.wgsl`.
        let attend = [
            tasks_at,
            tasks as u32,
            0,
            0,
            group,
            window,
            window,
            scale,
            cap,
            sinks,
            stride,
            dim,
            stride,
            dim,
            0,
            0,
        ];
        let merge = [rows_at, records as u32, tasks_at, heads, group, stride, 0, 0, 0, 0, 0, 0];
        Ok((
            words(py, &plan),
            PyBytes::new(py, &work.pass),
            work.slots,
            PyBytes::new(py, &work.fresh),
            words(py, &attend),
            words(py, &merge),
            tasks,
            work.held,
        ))
    }
}

fn words<'py>(py: Python<'py>, words: &[u32]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>())
}

/// A pass while it is put together.
struct Work<'a> {
    layer: &'a Layer<'a>,
    asked: Asked,
    page_quads: usize,
    /// The table of pages; tasks; records of rows.
    plan: Vec<u32>,
    tasks: Vec<u32>,
    records: Vec<u32>,
    /// Sinks and exact pages.
    pass: Vec<u8>,
    slots: Vec<usize>,
    fresh: Vec<u8>,
    held: Vec<usize>,
}

/// Where the pages of one kv head are listed, by side and form: the entry of page 0, which wraps around where the list begins later.
type Lists = [[u32; 3]; 2];

impl<'a> Work<'a> {
    fn new(layer: &'a Layer<'a>, asked: Asked, page_quads: usize) -> Work<'a> {
        Work {
            layer,
            asked,
            page_quads,
            plan: Vec::new(),
            tasks: Vec::new(),
            records: Vec::new(),
            pass: Vec::new(),
            slots: Vec::new(),
            fresh: Vec::new(),
            held: Vec::new(),
        }
    }

    fn add(&mut self, row: usize, sequence: &'a Sequence) -> PyResult<()> {
        let tokens = self.asked.tokens;
        let seen = self.layer.seen(sequence, tokens)?;
        if seen.coded.len() > self.asked.room {
            return Err(refused(format!(
                "{} pages, and there is room for {}",
                seen.coded.len(),
                self.asked.room
            )));
        }
        let mut lists = Vec::new();
        for page in self.asked.held[row].max(seen.coded.start)..seen.coded.end {
            self.slots.push(page % self.asked.room * self.layer.sequences.len() + row);
            for (side, _) in self.sides(sequence) {
                let bytes = side?.encoded(page).ok_or_else(|| gone(page))?;
                self.fresh.extend_from_slice(bytes);
            }
        }
        self.held.push(seen.coded.end.max(seen.coded.start));
        let sides: Vec<_> = self.sides(sequence).collect();
        for pair in sides.chunks(2) {
            let mut of_head: Lists = [[0; 3]; 2];
            for (index, (side, number)) in pair.iter().enumerate() {
                let side: &SideStore = side.as_ref().map_err(refused)?;
                of_head[index] = self.list(&seen, row, (side, *number))?;
            }
            lists.push(of_head);
        }
        let start = sequence.slot_len(self.layer.slot) - tokens;
        for (token, position) in (start..start + tokens).enumerate() {
            self.query(row * tokens + token, position, &lists);
        }
        Ok(())
    }

    /// Every side of every kv head, with its number.
    fn sides(
        &self,
        sequence: &'a Sequence,
    ) -> impl Iterator<Item = (PyResult<&'a SideStore>, usize)> + use<'a> {
        let (slot, heads) = (self.layer.slot, self.layer.shape.kv_heads);
        (0..2 * heads).map(move |number| {
            let side = sequence.side(slot, number / 2, SIDES[number % 2]);
            (side.ok_or_else(|| refused(format!("there is no kv head {}", number / 2))), number)
        })
    }

    /// Lists the pages of a side, and adds the bytes of those that come with the pass.
    fn list(&mut self, seen: &Seen, row: usize, (side, number): (&SideStore, usize)) -> PyResult<[u32; 3]> {
        let sinks_at = self.plan.len();
        if seen.sinks {
            let bytes = side.sinks().ok_or_else(|| refused("the sinks are not held"))?;
            self.bring(bytes);
        }
        let coded_at = self.plan.len();
        let rows = self.layer.sequences.len();
        for page in seen.coded.clone() {
            let place = (page % self.asked.room * rows + row) * 2 * self.layer.shape.kv_heads + number;
            self.plan.push((place * self.page_quads) as u32);
        }
        let exact_at = self.plan.len();
        for page in seen.exact.clone() {
            self.bring(side.exact(page).ok_or_else(|| gone(page))?);
        }
        let of_page_zero = |at: usize, first: usize| (at as u32).wrapping_sub(first as u32);
        Ok([
            of_page_zero(coded_at, seen.coded.start),
            of_page_zero(exact_at, seen.exact.start),
            sinks_at as u32,
        ])
    }

    /// A page of the pass.
    fn bring(&mut self, bytes: &[u8]) {
        self.plan.push(PASS_BUFFER | (self.pass.len() / QUAD) as u32);
        self.pass.extend_from_slice(bytes);
        self.pass.resize(self.pass.len().next_multiple_of(QUAD), 0);
    }

    /// The tasks of a token: for every kv head and four of its queries the splits of what it sees.
    fn query(&mut self, row: usize, position: usize, lists: &[Lists]) {
        let kv_heads = lists.len();
        let splits = self.splits(position, kv_heads);
        let tiles = (self.asked.heads / kv_heads).div_ceil(COLUMNS);
        let first = self.tasks.len() / TASK_WORDS;
        self.records.extend([first as u32, splits.len() as u32, tiles as u32, 0]);
        for (head, lists) in lists.iter().enumerate() {
            for tile in 0..tiles {
                for (range, form) in &splits {
                    let form_at = *form as usize;
                    self.tasks.extend([
                        row as u32,
                        1,
                        head as u32,
                        (tile * COLUMNS) as u32,
                        position as u32,
                        range.start as u32,
                        range.end as u32,
                        *form,
                        *form,
                        lists[0][form_at],
                        lists[1][form_at],
                    ]);
                }
            }
        }
    }

    /// What a query sees, cut into runs of one form: the sinks, then runs that start at multiples of their length after them.
    fn splits(&self, position: usize, kv_heads: usize) -> Vec<(Range<usize>, u32)> {
        let (layer, rule) = (self.layer, self.layer.rule());
        let sinks = rule.sinks;
        let mut splits = Vec::new();
        if sinks > 0 && rule.first_seen(position, layer.shape.window) < sinks {
            splits.push((0..sinks.min(position + 1), SINKS));
        }
        let length = (position / (SPLITS / kv_heads).max(1)).next_power_of_two().max(SPLIT);
        let coded = rule.encoded_for(position, PAGE) * PAGE;
        let (mut start, end) = (layer.first_page(position) * PAGE, (position + 1).saturating_sub(sinks));
        while start < end {
            let next = (start / length + 1) * length;
            let stop = if start < coded { next.min(coded) } else { next }.min(end);
            splits.push((start + sinks..stop + sinks, if start < coded { CODED } else { EXACT }));
            start = stop;
        }
        splits
    }
}

fn gone(page: usize) -> PyErr {
    refused(format!("page {page} is not held any more"))
}
