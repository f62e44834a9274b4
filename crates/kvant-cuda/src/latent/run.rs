//! A pass through attention over latents.

use super::{LatentAttention, LatentPages, LatentQuery};
use crate::cache::SlotPages;
use crate::device::Launch;
use crate::params::{
    Address, LatentEncodeParams, LatentParams, LatentQueryParams, LatentRowParams, LatentValueParams,
};
use crate::pass::{SlicePlan, slot_pages};
use crate::program::Reading;
use crate::run::{Run, Target};
use kvant_cache::KvSlot;
use kvant_model::description::{Pairing, QueryGain, RopeId};

impl Run<'_> {
    pub(crate) fn latent_attention(&mut self, of: &LatentAttention, to: Target) {
        let b = self.buffers;
        let (rows, normed) = (self.plan.rows, b.normed.address());
        let Some(slot) = slot_pages(self.layout, self.slots.owner(of.slot)) else { return };
        let (Some(pages), Some(heads)) = (slot.latent, self.plan.by_head.get(&of.heads)) else { return };
        match &of.query {
            LatentQuery::Direct(q) => self.linear(q, rows, normed, Target::over(b.projected.address())),
            LatentQuery::LowRank { down, norm, up } => {
                self.linear(down, rows, normed, Target::over(b.first.address()));
                self.norm_rows(norm, (b.first.address(), b.inner.address()), down.outputs(), rows);
                self.linear(up, rows, b.inner.address(), Target::over(b.projected.address()));
            }
        }
        self.linear(&of.latent, rows, normed, Target::over(b.first.address()));
        self.latent_rows(of, &pages);
        let (groups, sources) = (self.at(heads.groups_at), self.at(heads.sources_at));
        let (plain, absorbed) = (b.attended.address(), b.by_head.address());
        self.grouped(&of.query_to_latent, (heads.form, groups), plain, sources, absorbed);
        self.latent_queries(of, slot.signs);
        if !self.plan.is_step {
            self.encode_latents(of.slot, slot);
        }
        let reading = of.reading();
        for slice in self.plan.slices.get(&self.plan.tiling(&reading)).into_iter().flatten() {
            self.attend_latents(&reading, of.scale, slot, &pages, slice);
        }
        self.grouped(&of.value_up, (heads.form, groups), b.attended.address(), sources, absorbed);
        let values = LatentValueParams { x: absorbed, y: b.queries.address(), width: of.value_dim as i32 };
        self.launch("latent_values", (rows, of.heads), 128, values);
        self.linear(&of.output, rows, b.queries.address(), to);
    }

    /// Address of a rope's rotations, its pairs, and whether they are neighbours.
    pub(crate) fn rope_table(&self, rope: Option<RopeId>) -> (Address, i32, i32) {
        let Some(id) = rope else { return (0, 0, 0) };
        let rope = &self.ropes[id.0];
        let neighbours = rope.pairing() == Pairing::Neighbours;
        (self.at(self.plan.rotations_at[&id.0]), (rope.dims() / 2) as i32, neighbours.into())
    }

    /// Address of what queries are multiplied with by their position; 0 for nothing.
    pub(crate) fn gains(&self, gain: Option<QueryGain>) -> Address {
        gain.and_then(|gain| self.plan.gains_at(gain)).map_or(0, |at| self.at(at))
    }

    /// Latents and rotated parts into exact pages, and what of queries is absorbed to f16.
    fn latent_rows(&mut self, of: &LatentAttention, pages: &LatentPages) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        let (rotations, pairs, neighbours) = self.rope_table(of.rope);
        let params = LatentRowParams {
            q: b.projected.address(),
            both: b.first.address(),
            norm: of.latent_norm.weight.address(),
            rotations,
            gains: self.gains(of.query_gain),
            plain: b.attended.address(),
            pages: self.pages,
            exact: self.at(self.plan.slots[&index].exact_at),
            targets: self.at(self.plan.targets_at),
            refused: self.refused(of.slot, 0),
            heads: of.heads as i32,
            nope: of.nope_dim as i32,
            latent: of.latent_dim as i32,
            rotated: of.rope_dim as i32,
            pairs,
            neighbours,
            exact_stride: self.plan.exact_stride as i32,
            sink_tokens: pages.sink_tokens as i32,
            eps: of.latent_norm.eps,
        };
        self.launch("latent_rows", (self.plan.rows, of.heads + 1), 128, params);
    }

    /// Queries as they meet exact rows and, where closed pages are turned, as they meet those.
    fn latent_queries(&mut self, of: &LatentAttention, signs: Address) {
        let b = self.buffers;
        let (rotations, pairs, neighbours) = self.rope_table(of.rope);
        let params = LatentQueryParams {
            q: b.projected.address(),
            absorbed: b.by_head.address(),
            rotations,
            gains: self.gains(of.query_gain),
            signs,
            to: b.queries.address(),
            to_closed: b.turned.address(),
            refused: self.refused(of.slot, 0),
            heads: of.heads as i32,
            nope: of.nope_dim as i32,
            latent: of.latent_dim as i32,
            rotated: of.rope_dim as i32,
            pairs,
            neighbours,
        };
        self.launch("latent_queries", (self.plan.rows, of.heads), 128, params);
    }

    /// Closes the pages that are full. It waits for all before it.
    pub(crate) fn encode_latents(&mut self, of: KvSlot, slot: &SlotPages) {
        let plan = self.plan.slots[&self.slots.owner(of).index()];
        let Some(pages) = slot.latent.filter(|_| plan.jobs.count > 0) else { return };
        let params = LatentEncodeParams {
            pages: self.pages,
            jobs: self.at(plan.jobs.at),
            signs: slot.signs,
            refused: self.refused(of, 1),
            latent: pages.latent as i32,
            rotated: pages.rotated as i32,
            key_bits: pages.bits[0],
            value_bits: pages.bits[1],
        };
        let launch = Launch { grid: (plan.jobs.count as u32, 1), threads: 256, shared: 0, early: false };
        self.recorder.launch("encode_latent", launch, params);
    }

    /// Attention of the rows of a slice, each head over the latents of its kv head.
    pub(crate) fn attend_latents(
        &mut self,
        of: &Reading,
        scale: f32,
        slot: &SlotPages,
        pages: &LatentPages,
        slice: &SlicePlan,
    ) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        // 16, 32 or 64 columns to a CTA: a query has the same bits in each.
        let columns = self.plan.tiling(of).tile * of.heads / slot.kv_heads;
        let tiles = match columns {
            0..=16 => 1,
            17..=32 => 2,
            _ => 4,
        };
        let row = |address: Address, bytes: usize| address + (slice.row * bytes) as u64;
        let width = pages.latent + pages.rotated;
        let queries = row(b.queries.address(), 2 * of.heads * width);
        let (table, table_stride) = self.tables.table(index);
        let of_item = columns.div_ceil(16 * tiles);
        let params = LatentParams {
            pages: self.pages,
            table,
            exact: row(self.at(self.plan.slots[&index].exact_at), 8 * slot.kv_heads * self.plan.exact_stride),
            items: self.at(slice.items_at),
            slots: self.at(slice.slots_at),
            q: queries,
            q_closed: if slot.signs == 0 { queries } else { row(b.turned.address(), 2 * of.heads * width) },
            part_o: b.part_o.address(),
            part_ml: b.part_ml.address(),
            signs: slot.signs,
            out: row(b.attended.address(), 2 * of.heads * pages.latent),
            n_items: slice.items as i32,
            heads: of.heads as i32,
            latent: pages.latent as i32,
            rotated: pages.rotated as i32,
            table_stride: table_stride as i32,
            exact_stride: self.plan.exact_stride as i32,
            key_bits: pages.bits[0],
            value_bits: pages.bits[1],
            sink_tokens: pages.sink_tokens as i32,
            tiles: of_item as i32,
            kv_heads: slot.kv_heads as i32,
            scale: scale * std::f32::consts::LOG2_E,
            floor: slot.floor,
        };
        self.launch(
            &format!("attend_latent_m{tiles}"),
            (slice.items * slot.kv_heads * of_item, 1),
            256,
            params,
        );
        self.launch("reduce_latent", (slice.rows, of.heads), 512, params);
    }
}
