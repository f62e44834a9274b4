//! A pass through attention over pages of any codec.

use super::params::{GeneralEncodeParams, GeneralParams, GeneralQueryParams, GeneralTileParams};
use super::{Encoders, GeneralPages, JOBS, kernel_tiles};
use crate::cache::SlotPages;
use crate::device::Launch;
use crate::params::{Address, AttentionParams};
use crate::pass::SlicePlan;
use crate::program::{Attention, Reading};
use crate::run::Run;
use kvant_cache::KvSlot;

/// Tiles of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeTiles {
    /// Where its first unit would lie.
    before: Address,
    /// Units of a kv head.
    units: usize,
}

impl Run<'_> {
    /// None of these begins before the kernel before it has ended: they read pages that it may have written.
    fn wait_and_launch<P: Copy>(
        &mut self,
        name: &str,
        grid: (usize, usize),
        threads: u32,
        shared: usize,
        params: P,
    ) {
        let grid = (grid.0 as u32, grid.1 as u32);
        self.recorder.launch(name, Launch { grid, threads, shared: shared as u32, early: false }, params);
    }

    /// Queries as they meet codes.
    pub(crate) fn general_queries(&mut self, of: &Attention, slot: &SlotPages, general: &GeneralPages) {
        let b = self.buffers;
        let params = GeneralQueryParams {
            q: b.queries.address(),
            to: b.general.queries.address(),
            bias: b.general.bias.address(),
            forms: general.forms.address(),
            refused: self.refused(of.slot, 0),
            heads: of.heads as i32,
            kv_heads: slot.kv_heads as i32,
            dim: slot.dim as i32,
            width: general.widths[0] as i32,
        };
        self.wait_and_launch("general_queries", (self.plan.rows, of.heads), 256, 0, params);
    }

    /// Makes the tiles that a pass of many tokens of one sequence reads, where they are worth it and have room.
    pub(crate) fn make_tiles(
        &mut self,
        of: &Attention,
        reading: &Reading,
        slot: &SlotPages,
        general: &GeneralPages,
    ) -> Option<MadeTiles> {
        let needed = general.tiles(self.plan, reading, slot)?;
        let (table, table_stride) = self.tables.table(self.slots.owner(of.slot).index());
        let seat = table + 8 * (needed.seat * slot.kv_heads * table_stride + needed.first) as u64;
        let to = self.buffers.general.tiles.address();
        let params = GeneralTileParams {
            pages: self.pages,
            table: seat,
            forms: general.forms.address(),
            tables: general.tables,
            to,
            table_stride: table_stride as i32,
            unit: slot.units.tokens as i32,
            key_pages: slot.units.pages[0] as i32,
            value_pages: slot.units.pages[1] as i32,
            key_width: general.widths[0] as i32,
            value_width: general.widths[1] as i32,
            first: needed.first as i32,
        };
        self.wait_and_launch("general_tiles", (needed.units, slot.kv_heads), 256, 0, params);
        // Kernels count units from the sequence's first on.
        let before = to.wrapping_sub((needed.first * general.tile_bytes(slot)) as u64);
        Some(MadeTiles { before, units: needed.units })
    }

    /// Attention of the rows of a slice.
    pub(crate) fn attend_general(
        &mut self,
        of: &Attention,
        reading: &Reading,
        slot: &SlotPages,
        general: &GeneralPages,
        slice: &SlicePlan,
        tiles_of: Option<MadeTiles>,
    ) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        let columns = self.plan.tiling(reading).tile * of.heads / slot.kv_heads;
        let Some((tiles, shared)) =
            kernel_tiles(columns, general.widths, self.recorder.card().limits().shared)
        else {
            return;
        };
        let row = |address: Address, bytes: usize| address + (slice.row * bytes) as u64;
        let (table, table_stride) = self.tables.table(index);
        let of_item = columns.div_ceil(16 * tiles);
        // The same scale and cap as other kernels of attention have.
        let mut scoring = AttentionParams::default();
        scoring.set_scoring(of.scale, of.soft_cap);
        let params = GeneralParams {
            pages: self.pages,
            table,
            exact: row(self.at(self.plan.slots[&index].exact_at), 8 * slot.kv_heads * self.plan.exact_stride),
            items: self.at(slice.items_at),
            slots: self.at(slice.slots_at),
            q: row(b.queries.address(), 2 * of.heads * slot.dim),
            q_closed: row(b.general.queries.address(), 2 * of.heads * general.widths[0]),
            q_bias: row(b.general.bias.address(), 4 * of.heads),
            part_o: b.part_o.address(),
            part_ml: b.part_ml.address(),
            forms: general.forms.address(),
            exact_forms: general.exact_forms.address(),
            tables: general.tables,
            sink_logits: of.sink_logits.as_ref().map_or(0, |logits| logits.address()),
            out: row(b.attended.address(), 2 * of.heads * slot.dim),
            tiles_of: tiles_of.map_or(0, |made| made.before),
            heads: of.heads as i32,
            kv_heads: slot.kv_heads as i32,
            dim: slot.dim as i32,
            key_width: general.widths[0] as i32,
            value_width: general.widths[1] as i32,
            table_stride: table_stride as i32,
            exact_stride: self.plan.exact_stride as i32,
            tiles: of_item as i32,
            unit: slot.units.tokens as i32,
            key_pages: slot.units.pages[0] as i32,
            value_pages: slot.units.pages[1] as i32,
            tile_units: tiles_of.map_or(0, |made| made.units) as i32,
            scale: scoring.scale,
            cap: scoring.cap,
            floor: slot.floor,
        };
        let grid = (slice.items * slot.kv_heads * of_item, 1);
        self.wait_and_launch(&format!("attend_general_m{tiles}"), grid, 256, shared, params);
        self.wait_and_launch("reduce_general", (slice.rows, of.heads), 256, 0, params);
    }

    /// Closes the pages that are full.
    pub(crate) fn encode_general(&mut self, of: KvSlot, slot: &SlotPages, general: &GeneralPages) {
        let jobs = self.plan.slots[&self.slots.owner(of).index()].jobs;
        let all = jobs.count.max(jobs.values);
        let [keys, values] = general.encoders;
        let any = |which: fn(Encoders) -> bool| which(keys) || which(values);
        for first in (0..all).step_by(JOBS) {
            let count = (all - first).min(JOBS);
            let params = |part: i32| GeneralEncodeParams {
                pages: self.pages,
                jobs: [self.at(jobs.at), self.at(jobs.values_at)],
                forms: general.forms.address(),
                exact_forms: general.exact_forms.address(),
                tables: general.tables,
                refused: self.refused(of, 1),
                room: self.buffers.general.encode.address(),
                room_floats: general.room as u64,
                counts: [jobs.count as i32, jobs.values as i32],
                first: first as i32,
                part,
            };
            let [plain, second] = [params(0), params(1)];
            let (grid, threads) = ((count, 2), 256);
            self.wait_and_launch("general_rows", grid, threads, 0, plain);
            if any(|side| side.differences) {
                self.wait_and_launch("general_differences", grid, threads, 0, plain);
            }
            if any(|side| side.packed) {
                self.wait_and_launch("general_codes", grid, threads, 0, plain);
            }
            if any(|side| side.sum) {
                self.wait_and_launch("general_rows", grid, threads, 0, second);
                self.wait_and_launch("general_codes", grid, threads, 0, second);
            }
            if any(|side| side.polar) {
                self.wait_and_launch("general_angles", grid, threads, 0, plain);
            }
            if keys.trellis {
                self.wait_and_launch("trellis_keys", (count, 1), threads, 0, plain);
            }
            if values.trellis {
                self.wait_and_launch("trellis_values", (count, 1), threads, 0, plain);
            }
            if any(|side| side.trellis) {
                let fours = slot.dim.div_ceil(4);
                self.wait_and_launch("trellis_search", (count * fours, 2), 128, 0, plain);
            }
        }
    }
}
