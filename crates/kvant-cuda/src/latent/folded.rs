//! Keys that are made of values (Gemma 4's global layers): k = RoPE(w ⊙ v), of which a quarter of the channels turns.
//!
//! A slot keeps v as the latent of a kv head and the channels of k that turn as its rotated part. A query takes w over where it meets v, and has
//! zeros there in place of the channels that turn, so scores and sums are those of latents, one for every kv head (`kernels/latent.cuh`).

use super::{LatentPages, check_widths};
use crate::buffer::Buffer;
use crate::cache::SlotPages;
use crate::compile::{Compiler, check_norm};
use crate::matrix::on_card;
use crate::params::FoldedRowParams;
use crate::pass::slot_pages;
use crate::program::Attention;
use crate::run::{Run, Target};
use kvant_cache::{KvSlot, LatentShape, SlotKind, Slots};
use kvant_device::norm_weights;
use kvant_model::description::{self, NormPlace, Projection, Rope};
use kvant_model::error::{LoadError, Result};

/// How queries meet values in place of keys.
pub(crate) struct Folded {
    /// (value channels): the weights of the keys' norm, and 0 where a channel turns.
    by: Buffer,
    /// The channels that turn, (rotated) i32.
    turning: Buffer,
    pub rotated: usize,
}

/// The latents that keys and values of attention are kept as, where they are.
pub(crate) fn latents_of(slots: &Slots, slot: KvSlot) -> Option<LatentShape> {
    match slots.get(slots.owner(slot).index())?.kind {
        SlotKind::Latent(shape) => Some(shape),
        SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Recurrent(_) => None,
    }
}

/// What of attention over values as keys does not run.
pub(crate) fn check_folded(
    of: &description::Attention,
    slots: &Slots,
    shape: LatentShape,
    ropes: &[Rope],
) -> std::result::Result<(), String> {
    let refuse = |what: &str| Err(format!("keys that are made of values, {what}"));
    let dim = of.key_dim;
    check_widths(shape.latent_dim, shape.rope_dim)?;
    if of.kv_heads == 0 || !of.heads.is_multiple_of(of.kv_heads) {
        return Err(format!("{} query heads on {} kv heads", of.heads, of.kv_heads));
    }
    if slots.owner(of.slot) != of.slot || !matches!(of.projection, Projection::Equal { .. }) {
        return refuse("of another layer or of a projection of their own");
    }
    let (Some(k_norm), Some(rope)) = (&of.k_norm, of.rope.and_then(|rope| ropes.get(rope.0))) else {
        return refuse("without a norm or a rotation");
    };
    if of.norm_place == NormPlace::AfterRope || of.key_scale != 1.0 || of.gate.is_some() {
        return refuse("with norms after the rotation, a multiplier or an output gate");
    }
    if of.soft_cap.is_some() || of.sink_logits.is_some() {
        return refuse("with a soft cap or sink logits");
    }
    let is_of_slot = (shape.kv_heads, shape.latent_dim) == (of.kv_heads, dim) && of.value_dim == dim;
    if !is_of_slot || shape.rope_dim != rope.turning_channels().len() || rope.dims() > dim {
        return refuse("of other widths than their slot");
    }
    let norms = [&of.q_norm, &of.v_norm].into_iter().flatten().chain([k_norm]);
    norms.into_iter().try_for_each(|norm| check_norm(norm, dim))
}

impl Compiler<'_> {
    /// How queries meet values, where keys are made of them.
    pub(crate) fn folded(&self, of: &description::Attention) -> Result<Option<Folded>> {
        if latents_of(self.slots(), of.slot).is_none() {
            return Ok(None);
        }
        let rope = of.rope.and_then(|rope| self.ropes().get(rope.0));
        let (Some(norm), Some(rope)) = (&of.k_norm, rope) else {
            return Err(LoadError::mismatch("keys that are made of values without a norm or a rotation"));
        };
        let turning = rope.turning_channels();
        let [weight, _] = norm_weights(norm, |vector| self.numbers(vector, 1.0))?;
        let mut by = weight.unwrap_or_else(|| vec![1.0; norm.width]);
        turning.iter().for_each(|channel| by[*channel] = 0.0);
        let words: Vec<u8> = turning.iter().flat_map(|channel| (*channel as i32).to_le_bytes()).collect();
        Ok(Some(Folded {
            by: Buffer::of_floats(self.card(), &by).map_err(on_card)?,
            turning: Buffer::of(self.card(), &words).map_err(on_card)?,
            rotated: turning.len(),
        }))
    }
}

impl Run<'_> {
    pub(crate) fn folded_attention(&mut self, of: &Attention, folded: &Folded, to: Target) {
        let b = self.buffers;
        let rows = self.plan.rows;
        let Some(slot) = slot_pages(self.layout, self.slots.owner(of.slot)) else { return };
        let Some(pages) = slot.latent else { return };
        self.linear(&of.projection, rows, b.normed.address(), Target::over(b.projected.address()));
        self.folded_rows(of, folded, slot, &pages);
        if !self.plan.is_step {
            self.encode_latents(of.slot, slot);
        }
        let reading = of.reading();
        for slice in self.plan.slices.get(&self.plan.tiling(&reading)).into_iter().flatten() {
            self.attend_latents(&reading, of.scale, slot, &pages, slice);
        }
        self.linear(&of.output, rows, b.attended.address(), to);
    }

    /// Values and the channels of keys that turn into exact pages, and queries as they meet these.
    fn folded_rows(&mut self, of: &Attention, folded: &Folded, slot: &SlotPages, pages: &LatentPages) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        let (rotations, pairs, neighbours) = self.rope_table(of.rope);
        let params = FoldedRowParams {
            qkv: b.projected.address(),
            rotations,
            q_norm: Attention::norm_address(&of.q_norm),
            k_norm: Attention::norm_address(&of.k_norm),
            v_norm: Attention::norm_address(&of.v_norm),
            gains: self.gains(of.query_gain),
            by: folded.by.address(),
            turning: folded.turning.address(),
            signs: slot.signs,
            to: b.queries.address(),
            to_closed: b.turned.address(),
            pages: self.pages,
            exact: self.at(self.plan.slots[&index].exact_at),
            targets: self.at(self.plan.targets_at),
            refused: self.refused(of.slot, 0),
            heads: of.heads as i32,
            kv_heads: of.kv_heads as i32,
            latent: pages.latent as i32,
            rotated: pages.rotated as i32,
            pairs,
            neighbours,
            stride: of.projection.outputs() as i32,
            exact_stride: self.plan.exact_stride as i32,
            sink_tokens: pages.sink_tokens as i32,
            q_eps: Attention::norm_eps(&of.q_norm),
            k_eps: Attention::norm_eps(&of.k_norm),
            v_eps: Attention::norm_eps(&of.v_norm),
        };
        self.launch("folded_rows", (self.plan.rows, of.heads + of.kv_heads), 128, params);
    }
}
