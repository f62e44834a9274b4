//! What lies between projection and attention in passes with one token of each sequence, in one dispatch: norms and rotation of queries
//! and keys, and keys and values into their exact pages.

use crate::layout::SlotKernels;
use crate::ops::{Norm, ROW_SUM, TURNED};
use crate::page_text::buffers;
use crate::program::Attention;
use crate::recorder::Grid;
use crate::run::Run;
use crate::weights::Place;
use kvant_codec::Element;
use kvant_model::description::{NormKind, NormPlace, Pairing, Rope};
use std::fmt::Write;

/// Buffers of the kernel beside those of pages.
const OTHERS: usize = 6;

/// A norm over each head on its own.
fn is_per_head(norm: &Norm, dim: usize) -> bool {
    norm.kind == NormKind::Rms && norm.width == dim && norm.bias.is_none()
}

/// False where heads have something that the kernel does not do.
fn is_usual(of: &Attention, slot: &SlotKernels) -> bool {
    let odd_values = slot.value.exact.element != Element::F32 && of.value_dim % 2 == 1;
    let mut norms = [&of.q_norm, &of.k_norm].into_iter().flatten();
    of.v_norm.is_none() && !odd_values && norms.all(|norm| is_per_head(norm, of.key_dim))
}

/// The constants of the kernel.
fn constants(of: &Attention, slot: &SlotKernels, rope: Option<&Rope>) -> String {
    let norms = [&of.q_norm, &of.k_norm];
    let mut text = format!(
        "const DIM = {}u;\nconst VALUE_DIM = {}u;\nconst MOST = {}u;\nconst BEFORE = {};\nconst PAIRS = {}u;\n\
         const NEIGHBOURS = {};\nconst AMPLITUDE = {:#x}u;\nconst KEY_TOKENS = {}u;\n",
        of.key_dim,
        of.value_dim,
        of.key_dim.max(of.value_dim),
        of.norm_place == NormPlace::BeforeRope,
        rope.map_or(0, |rope| rope.dims() / 2),
        rope.is_some_and(|rope| rope.pairing() == Pairing::Neighbours),
        rope.map_or(1.0, Rope::amplitude).to_bits(),
        slot.key.exact.tokens,
    );
    for (name, norm) in ["Q", "K"].into_iter().zip(norms) {
        let _ = writeln!(
            text,
            "const {name}_NORM = {};\nconst {name}_WEIGHT = {};\nconst {name}_EPS = {:#x}u;",
            norm.is_some(),
            norm.as_ref().is_some_and(|norm| norm.weight.is_some()),
            norm.as_ref().map_or(0.0, |norm| norm.eps).to_bits(),
        );
    }
    for (name, side) in [("KEY", &slot.key), ("VALUE", &slot.value)] {
        let element = side.exact.element;
        let _ = writeln!(
            text,
            "const {name}_WIDE = {};\nconst {name}_BRAIN = {};\nconst {name}_LARGEST = {:#x}u;",
            element == Element::F32,
            element == Element::Bf16,
            element.largest().to_bits(),
        );
    }
    text
}

impl Run<'_> {
    /// Does it all where every sequence has one token and heads are usual; says whether it did.
    pub(crate) fn heads(&mut self, of: &Attention, projected: Place<'_>, queries: Place<'_>) -> bool {
        let Some((k, v)) = of.kv else { return false };
        let Some(slot) = self.kernels.slots.get(of.slot.index()).and_then(Option::as_ref) else {
            return false;
        };
        let (rows, blocks) = (self.rows, self.pages.len());
        let gpu = &self.network.gpu;
        let Some([keys, values]) = self.plan.one_token_rows(of.slot, rows * of.kv_heads) else {
            return false;
        };
        let rope = of.rope.map(|id| (&self.network.ropes[id.0], self.plan.rotations[&id.0]));
        if !is_usual(of, slot) || OTHERS + blocks > gpu.most_buffers() {
            return false;
        }
        let kernel = slot.heads_kernel(blocks, || {
            let text = [include_str!("wgsl/heads.wgsl"), TURNED, ROW_SUM, include_str!("wgsl/half.wgsl")];
            let constants = constants(of, slot, rope.map(|(rope, _)| rope));
            gpu.kernel("heads", constants + &text.concat() + &buffers(OTHERS, blocks, true))
        });
        let arguments = [
            projected.stride as u32,
            (projected.at + of.q.at) as u32,
            of.q.step as u32,
            (projected.at + k.at) as u32,
            k.step as u32,
            (projected.at + v.at) as u32,
            v.step as u32,
            of.heads as u32,
            slot.layer as u32 + 1,
            rows as u32,
            queries.stride as u32,
            rope.map_or(0, |(_, at)| at as u32),
            keys as u32,
            values as u32,
            (rows * of.kv_heads) as u32,
            of.key_scale.to_bits(),
        ];
        let plan = &self.buffers.plan;
        let [q_weight, k_weight] = [&of.q_norm, &of.k_norm]
            .map(|norm| norm.as_ref().and_then(|norm| norm.weight.as_ref()).unwrap_or(plan));
        let mut bound =
            vec![plan, projected.buffer, &self.buffers.status, q_weight, k_weight, queries.buffer];
        bound.extend(self.pages.iter().map(|buffer| &**buffer));
        let grid = Grid::rows(rows * (of.heads + 2 * of.kv_heads), 1);
        self.recorder.dispatch(&kernel, &bound, &arguments, grid);
        true
    }
}
