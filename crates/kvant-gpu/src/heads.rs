//! What lies between projection and attention in passes with one token of each sequence: norms and rotation of queries and keys, and
//! keys and values into their exact pages. Attention does it by itself where it can, else it is one dispatch.
//!
//! Attention can where keys' codec keeps the model's basis and no page is encoded in the pass, and does where contexts are short. The token's
//! own key and value are then seen by the one workgroup that makes them, and written to their pages by the kernel that puts splits together.

use crate::attend::Attending;
use crate::buffer::Buffer;
use crate::layout::SlotKernels;
use crate::ops::{Norm, ROW_SUM, TURNED};
use crate::page_text::buffers;
use crate::pass_buffers::PassBuffers;
use crate::program::Attention;
use crate::recorder::Grid;
use crate::run::Run;
use crate::weights::Place;
use kvant_codec::Element;
use kvant_device::HeadPlace;
use kvant_model::description::{NormKind, NormPlace, Pairing, Rope};
use std::fmt::Write;

/// Buffers of the kernel beside those of pages.
const OTHERS: usize = 6;

/// Those of attention that makes heads.
const OWN_OTHERS: usize = 5;

/// Workgroups of attention that make heads by themselves at most, which 4,096 tokens of eight kv heads have. The loop over pages is slower
/// in that kernel: on an H200 a layer of an 8B shape takes 43 µs at 4,096 tokens either way, but 108 at 32,768 and 313 at 131,072 where it takes
/// 73 and 198 with heads that were made before.
const OWN_TASKS: usize = 256;

/// A norm over each head on its own.
fn is_per_head(norm: &Norm, dim: usize) -> bool {
    norm.kind == NormKind::Rms && norm.width == dim && norm.bias.is_none()
}

/// False where heads have something that the kernel does not do.
fn is_usual(of: &Attention, slot: &SlotKernels) -> bool {
    let odd_values = slot.value.exact.element != Element::F32 && of.value_dim % 2 == 1;
    let mut norms = [&of.q_norm, &of.k_norm].into_iter().flatten();
    of.v_norm.is_none()
        && of.latent.is_none()
        && of.query_gain.is_none()
        && !odd_values
        && norms.all(|norm| is_per_head(norm, of.key_dim))
}

/// The constants of the kernels: `heads` of queries at a time, in rows of `stride` numbers.
fn constants(
    of: &Attention,
    (k, v): (HeadPlace, HeadPlace),
    slot: &SlotKernels,
    rope: Option<&Rope>,
    (heads, projected): (usize, Place<'_>),
) -> String {
    let norms = [&of.q_norm, &of.k_norm];
    let mut text = String::new();
    for (name, place) in [("Q", of.q), ("K", k), ("V", v)] {
        let at = projected.at + place.at;
        let _ = writeln!(text, "const {name}_AT = {at}u;\nconst {name}_STEP = {}u;", place.step);
    }
    let _ = write!(
        text,
        "const HEADS = {heads}u;\nconst X_STRIDE = {}u;\nconst KEY_SCALE = {:#x}u;\nconst DIM = {}u;\n\
         const BEFORE = {};\nconst PAIRS = {}u;\nconst NEIGHBOURS = {};\nconst AMPLITUDE = {:#x}u;\nconst PAGE_TOKENS = {}u;\n",
        projected.stride,
        of.key_scale.to_bits(),
        of.key_dim,
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

/// What kernels that make heads end with.
fn heads_text() -> String {
    [include_str!("wgsl/head_rows.wgsl"), TURNED, ROW_SUM, include_str!("wgsl/half.wgsl")].concat()
}

/// What kernels that write keys and values end with.
fn rows_text() -> String {
    heads_text() + include_str!("wgsl/own_rows.wgsl")
}

/// How the kernel that puts splits together writes keys and values: its bindings after the first five.
const WRITE_ROWS: &str = "
@group(0) @binding(5) var<storage, read> x: array<f32>;
@group(0) @binding(6) var<storage, read_write> status: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read> q_weight: array<f32>;
@group(0) @binding(8) var<storage, read> k_weight: array<f32>;

fn write_rows(thread: u32, number: u32) {
    if number < a.records {
        write_key(thread, a.k_records_at + 6u * number);
    } else if number < 2u * a.records {
        write_value(thread, a.v_records_at + 6u * (number - a.records));
    }
}
";

/// Buffers of that kernel beside those of pages.
const MERGE_OTHERS: usize = 9;

impl<'a> Run<'a> {
    /// The slot of a block whose passes have one token of each sequence and whose heads are usual, and where the records of its keys and
    /// values are.
    fn usual_slot(&self, of: &Attention) -> Option<(&'a SlotKernels, [usize; 2])> {
        let slot = self.kernels.slots.get(of.slot.index()).and_then(Option::as_ref)?;
        let records = self.plan.one_token_rows(of.slot, self.rows * of.kv_heads)?;
        (is_usual(of, slot)
            && !self.plan.is_streaming()
            && OTHERS + self.pages.len() <= self.network.gpu.most_buffers())
        .then_some((slot, records))
    }

    fn norm_weights<'b>(&self, of: &'b Attention) -> [&'b Buffer; 2]
    where
        'a: 'b,
    {
        [&of.q_norm, &of.k_norm]
            .map(|norm| norm.as_ref().and_then(|norm| norm.weight.as_ref()).unwrap_or(&self.buffers.plan))
    }

    fn rope_table(&self, of: &Attention) -> Option<(&'a Rope, usize)> {
        of.rope.map(|id| (&self.network.ropes[id.0], self.plan.rotations[&id.0]))
    }

    /// Does it all in one dispatch, where it can; says whether it did.
    pub(crate) fn heads(&mut self, of: &Attention, projected: Place<'_>, queries: Place<'_>) -> bool {
        let Some(places) = of.kv else { return false };
        let Some((slot, [keys, values])) = self.usual_slot(of) else { return false };
        let (rows, blocks, rope) = (self.rows, self.pages.len(), self.rope_table(of));
        let kernel = slot.heads_kernel(blocks, || {
            let constants = constants(of, places, slot, rope.map(|(rope, _)| rope), (1, projected))
                + &format!("const VALUE_DIM = {}u;\n", of.value_dim);
            let text = constants + include_str!("wgsl/heads.wgsl") + &rows_text();
            self.network.gpu.kernel("heads", text + &buffers(OTHERS, blocks, true))
        });
        let arguments = [
            of.heads as u32,
            slot.layer as u32 + 1,
            rows as u32,
            queries.stride as u32,
            rope.map_or(0, |(_, at)| at as u32),
            keys as u32,
            values as u32,
            (rows * of.kv_heads) as u32,
        ];
        let [q_weight, k_weight] = self.norm_weights(of);
        let (plan, status) = (&self.buffers.plan, &self.buffers.status);
        let mut bound = vec![plan, projected.buffer, status, q_weight, k_weight, queries.buffer];
        bound.extend(self.pages.iter().map(|buffer| &**buffer));
        let grid = Grid::rows(rows * (of.heads + 2 * of.kv_heads), 1);
        self.recorder.dispatch(&kernel, &bound, &arguments, grid);
        true
    }

    /// Attends with the queries of `projected`, and writes its keys and values, in one dispatch and one that puts splits together; says
    /// whether it did.
    pub(crate) fn attend_own(&mut self, of: &Attention, projected: Place<'_>, attended: Place<'_>) -> bool {
        let Some(places) = of.kv else { return false };
        let Some((slot, [keys, values])) = self.usual_slot(of) else { return false };
        let (blocks, rope) = (self.pages.len(), self.rope_table(of));
        let (class, rounds) = self.rounds(of, slot);
        let [round] = *rounds else { return false };
        let (most, rows) = (self.network.gpu.most_buffers(), self.rows);
        let is_own = round.tasks <= OWN_TASKS
            && slot.key.moves.is_none()
            && !self.plan.encodes(of.slot)
            && slot.has_room_for_heads(class.columns, class.group)
            && MERGE_OTHERS + blocks <= most
            && OWN_OTHERS + slot.maps().count() + blocks <= most;
        if !is_own {
            return false;
        }
        let constants = || {
            let rope = rope.map(|(rope, _)| rope);
            constants(of, places, slot, rope, (class.group, projected))
        };
        let gpu = &self.network.gpu;
        let kernel = slot.own_kernel(gpu, class.columns, blocks, || constants() + &heads_text());
        let turns_at = rope.map_or(0, |(_, at)| at as u32);
        let shared = self.attend_arguments(of, slot, class, round);
        let arguments: Vec<u32> = shared.into_iter().chain([0; 5]).chain([turns_at]).collect();
        let [q_weight, k_weight] = self.norm_weights(of);
        let PassBuffers { plan, status, partials, .. } = self.buffers;
        let pages = self.pages.iter().map(|buffer| &**buffer);
        let mut bound = vec![plan, projected.buffer, q_weight, k_weight, partials];
        bound.extend(slot.maps());
        bound.extend(pages.clone());
        self.recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(round.tasks, 1));
        let has_logits = of.sink_logits.is_some();
        let kernel = slot.own_merge_kernel(gpu, (class.columns, has_logits), blocks, || {
            constants() + WRITE_ROWS + &rows_text() + &buffers(MERGE_OTHERS, blocks, true)
        });
        let (mut bound, mut arguments) = self.merge_call(Attending { of, slot, class, round, attended });
        let records = rows * of.kv_heads;
        arguments.extend([slot.layer, turns_at as usize, keys, values, records].map(|n| n as u32));
        arguments[7] += 1;
        bound.extend([projected.buffer, status, q_weight, k_weight]);
        bound.extend(pages);
        let grid = slot.merge_grid(class.columns, round.rows * of.heads + 2 * records);
        self.recorder.dispatch(&kernel, &bound, &arguments, grid);
        true
    }
}
