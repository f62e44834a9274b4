//! The launches of one attention: encode, attend and reduce, for rows of a model on this card or of one that runs elsewhere.
//!
//! # What `kernels/attention.cuh` does
//!
//! (The essay stands here, because the compiled kernels are held to the text of their sources by a digest.)
//!
//! **Work is a list.** The host writes *items* once a pass, for all layers of one window: a run of closed pages of one sequence, or the exact
//! rows of a query (sinks, recent pages, open page). A CTA of four warps takes an item for one kv head and writes a partial for every query of it:
//! the weighted sum, the maximum m and the sum l of weights relative to 2^m. A second kernel merges the partials of a query in the
//! order of their slots. So one launch serves any number of sequences of any lengths, and a long context fills the card although there is one
//! query: its pages are split into up to 32 runs.
//!
//! **Queries are columns.** Tensor cores multiply a tile of 16 rows with 8 columns. Rows are tokens of a page, columns the query heads of a kv
//! head, and with grouped-query attention eight of them share one reading of the page. Several query tokens (a prompt, speculation) become further columns of
//! the same tile, as far as they see the same pages. A column's arithmetic does not look at its neighbours.
//!
//! **The maximum is lazy.** Online softmax rescales sums whenever a larger score turns up. Here a running maximum moves only where the
//! weights that a lane has of one page would sum to more than 64: until then weights may be larger than one, which their formats hold, and
//! nothing is rescaled. Exact rows, which are few, keep the maximum exact.
//!
//! **Bits depend on positions alone.** Which pages an item has follows from its queries' positions, which warp takes which page from the number of warps,
//! and the order of every sum from both. Neither the batch nor the grid comes in, nor whether the launch is part of a graph.
//!
//! A worked example: a step at 10,000 tokens, 32 query heads on 8 kv heads, pages of 64 tokens. There are about 156 closed pages. In
//! runs of about five they are 32 items, and the exact rows one more: 33 items by 8 kv heads are 264 CTAs, two for each of 132 multiprocessors. Each has
//! four warps with a page or two each, of four columns that are real and four that are padding. Then every query head merges 33 partials.
//!
//! The trade-off: four of eight columns idle with four query heads to a kv head. It costs little, because a step waits for memory and not for
//! products. A prompt is another matter: there an item has as many tokens as fill its tiles, and on Hopper whole tiles of 128 rows go another way
//! (`attention_tile.cu`).
//!
//! **Invariant:** there is no other place that launches these kernels, so a query has the same bits whoever asks.

use crate::cache::SlotPages;
use crate::device::Launch;
use crate::jobs::JobsPlan;
use crate::params::{
    Address, AttentionParams, EncodeParams, HEAD_TILE, PlannedEncodeParams, ReduceParams, many_columns,
    tile_kernel,
};
use crate::pass::SlicePlan;
use crate::plan::Item;
use crate::recorder::Recorder;

/// Rows from which on a warp, not a CTA, merges the partials of a row and head, and appends a head of a row.
pub(crate) const MANY_ROWS: usize = 16;

/// Threads of a CTA of `kernels/attention_tile.cu`: two warpgroups that multiply and one that unpacks pages for them.
const TILE_THREADS: u32 = 384;

/// Threads of a CTA of `kernels/encode.cu`.
const ENCODE_THREADS: u32 = 256;

/// What the queries of a layer are, and where everything lies that they read and write.
pub(crate) struct Attend<'a> {
    pub slot: &'a SlotPages,
    pub heads: usize,
    pub scale: f32,
    pub soft_cap: Option<f32>,
    /// (heads) f32, or 0.
    pub sink_logits: Address,
    /// The page memory.
    pub pages: Address,
    /// The slot's table of closed pages, and its stride.
    pub table: (Address, usize),
    /// The slot's table of exact pages (rows, kv_heads, stride), and its stride.
    pub exact: (Address, usize),
    /// The words of the plan that items and slots lie in.
    pub plan: Address,
    /// (rows, heads, dim) f16.
    pub queries: Address,
    /// The same, of what attention gives.
    pub out: Address,
    /// Whether that is bf16 in place of f16.
    pub bf16: bool,
    pub part_o: Address,
    pub part_ml: Address,
    /// Queries in the basis of a plan's keys, (rows, heads, dim) f16, and what is added to their scores, (rows, heads) f32; read where keys
    /// are of a plan.
    pub turned: (Address, Address),
    /// Whether neighbouring query tokens share items.
    pub tiles: bool,
    /// Whether kernels may begin before those before them have ended.
    pub early: bool,
}

impl Attend<'_> {
    /// Notes attention of the rows of a slice.
    pub(crate) fn slice(&self, recorder: &mut Recorder<'_>, slice: &SlicePlan) {
        let SlotPages { kv_heads, dim, codec, signs, .. } = *self.slot;
        let group = self.heads / kv_heads;
        // Items of one query token have kernels of their own, which ask for pages early; not for wide heads.
        let (many, columns) = match !self.tiles && dim <= 128 {
            true => ("", HEAD_TILE),
            false => ("many_", many_columns(dim)),
        };
        let card = recorder.card();
        let kernel = |cap: &str| format!("attend_{many}{codec}{cap}_d{dim}");
        // Where there is no kernel for soft caps alone, one has both.
        let capped =
            Some(kernel("_cap")).filter(|name| self.soft_cap.is_some() && card.kernel(name).is_some());
        let name = capped.unwrap_or_else(|| kernel(""));
        let wide = tile_kernel(codec, dim);
        let has_wide = slice.tiles > 0 && card.kernel(&wide).is_some();
        let tile_bits = usize::from(group > columns);
        let columns = kv_heads << tile_bits;
        // Tiles of a prompt leave the exact rows, which are the last items.
        let first = if has_wide { slice.closed } else { 0 };
        let items = slice.items - first;
        let grid = (card.resident(&name) * card.processors() as usize).min(items * columns);
        let row = |address: Address, bytes: usize| address + (slice.row * bytes) as u64;
        let mut params = AttentionParams {
            pages: self.pages,
            table: self.table.0,
            exact: row(self.exact.0, 8 * kv_heads * self.exact.1),
            items: self.plan + slice.items_at + (first * size_of::<Item>()) as u64,
            slots: self.plan + slice.slots_at,
            q: row(self.queries, 2 * self.heads * dim),
            q_sinks: 0,
            part_o: self.part_o,
            part_ml: self.part_ml,
            signs,
            sink_logits: self.sink_logits,
            out: row(self.out, 2 * self.heads * dim),
            n_items: items as i32,
            rows: slice.rows as i32,
            kv_heads: kv_heads as i32,
            group: group as i32,
            tile_bits: tile_bits as i32,
            table_stride: self.table.1 as i32,
            exact_stride: self.exact.1 as i32,
            step_items: (grid / columns) as i32,
            step_columns: (grid % columns) as i32,
            floor: self.slot.floor,
            ..AttentionParams::default()
        };
        if let Some(planned) = &self.slot.planned {
            params.q_closed = row(self.turned.0, 2 * self.heads * dim);
            params.q_bias = row(self.turned.1, 4 * self.heads);
            params.widths = planned.widths.address();
        }
        params.set_scoring(self.scale, self.soft_cap);
        let launch =
            |grid: usize, threads| Launch { grid: (grid as u32, 1), threads, shared: 0, early: self.early };
        if has_wide {
            let grid = (card.processors() as usize).min(slice.tiles * kv_heads);
            let tiles = AttentionParams {
                items: self.plan + slice.tiles_at,
                n_items: slice.tiles as i32,
                tile_bits: 0,
                step_items: (grid / kv_heads) as i32,
                step_columns: (grid % kv_heads) as i32,
                ..params
            };
            recorder.launch(&wide, launch(grid, TILE_THREADS), tiles);
        }
        recorder.launch(&name, launch(grid, 128), params);
        // A CTA for every row and head, or, where rows are many, a warp.
        let params = ReduceParams { attention: params, bf16: self.bf16.into(), unused: 0 };
        let (many, all) = (format!("reduce_many_d{dim}"), slice.rows * self.heads);
        match slice.rows >= MANY_ROWS && card.kernel(&many).is_some() {
            true => recorder.launch(&many, launch(all.div_ceil(8), 256), params),
            false => recorder.launch(&format!("reduce_d{dim}"), launch(all, 256), params),
        }
    }
}

/// Notes the encoding of full pages of a slot, listed in words at `words`. It waits for all before it.
pub(crate) fn encode(
    recorder: &mut Recorder<'_>,
    slot: &SlotPages,
    jobs: &JobsPlan,
    words: Address,
    (pages, refused): (Address, Address),
) {
    let planned = slot.planned.is_some();
    let mut launch = |name: String, jobs: usize, params: Encoding| {
        let launch = |sides, threads| Launch { grid: (jobs as u32, sides), threads, shared: 0, early: false };
        match params {
            _ if jobs == 0 => {}
            Encoding::Plain(params) => {
                recorder.launch(&name, launch(if planned { 1 } else { 2 }, ENCODE_THREADS), params);
            }
            Encoding::Planned(params) => recorder.launch(&name, launch(1, 128), params),
        }
    };
    let (dim, at) = (slot.dim, words + jobs.at);
    let plain = |jobs| Encoding::Plain(EncodeParams { pages, jobs, signs: slot.signs, refused });
    let Some(planned) = &slot.planned else {
        return launch(format!("encode_{}_d{dim}", slot.codec), jobs.count, plain(at));
    };
    let keys = PlannedEncodeParams {
        pages,
        jobs: at,
        heads: at + 16 * jobs.count as u64,
        bases: planned.forward.address(),
        widths: planned.widths.address(),
        refused,
    };
    let paired = if slot.units.most() > 1 { "_p128" } else { "" };
    launch(format!("encode_klt{paired}_d{dim}"), jobs.count, Encoding::Planned(keys));
    launch(format!("encode_v4_d{dim}"), jobs.values, plain(words + jobs.values_at));
}

enum Encoding {
    Plain(EncodeParams),
    Planned(PlannedEncodeParams),
}
