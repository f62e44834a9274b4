//! A pass under way: the blocks of a program recorded one after another.

use crate::attend::{HeadRows, PassPlan};
use crate::buffer::Buffer;
use crate::gates::{GateFunction, GateShape, gate, scale_rows, sparse_gates};
use crate::latent::Latent;
use crate::layout::LayoutKernels;
use crate::network::GpuNetwork;
use crate::ops::{Activate, Norm, NormShape, RopeRows, add, rotate};
use crate::pass_buffers::PassBuffers;
use crate::product::{Epilogue, Fused, Target};
use crate::program::{Attention, Branch, Layer, Linear, Mixer, Mlp, Residual};
use crate::recorder::Recorder;
use crate::states::StatePlan;
use crate::weights::Place;
use kvant_device::HeadPlace;
use kvant_model::description::{NormPlace, Pairing};
use std::sync::Arc;

/// A pass of `rows` tokens.
pub(crate) struct Run<'a> {
    pub network: &'a GpuNetwork,
    pub buffers: &'a PassBuffers,
    pub kernels: &'a LayoutKernels,
    pub pages: &'a [Arc<Buffer>],
    pub plan: &'a PassPlan,
    pub states: &'a StatePlan,
    pub rows: usize,
    pub recorder: Recorder<'a>,
}

/// What a block is given: rows, and the norm that its first product has to make of them.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub x: Place<'a>,
    norm: Option<(&'a Norm, f32)>,
}

/// Queries or keys before norm and rotation.
struct Heads<'a> {
    from: Place<'a>,
    place: HeadPlace,
    heads: usize,
    dim: usize,
    scale: f32,
    /// As queries meet the sinks of a streaming window.
    at_sinks: bool,
}

impl<'a> Run<'a> {
    /// Token ids to the first activations.
    pub(crate) fn embed(&mut self, ids_at: usize, positions_at: usize) {
        let of = &self.network.program.embedding;
        let plan = &self.buffers.plan;
        let positions = of.positions.as_ref().map(|table| (table, positions_at));
        let x = self.buffers.place("x");
        of.table.gather(&mut self.recorder, self.rows, (plan, ids_at), of.scale, positions, x);
    }

    pub(crate) fn layer(&mut self, layer: &'a Layer) {
        if let Some(altup) = &layer.altup {
            self.predict(altup);
        }
        layer.residuals.iter().for_each(|residual| self.residual(residual));
        if let Some(scale) = layer.scale {
            let (x, other) = (self.buffers.place("x"), self.buffers.place("branch"));
            self.add(other, x, (scale, 0.0));
        }
        if let Some(altup) = &layer.altup {
            self.correct(altup);
        }
    }

    /// The last norm, of the rows that the plan lists, or of the first.
    pub(crate) fn final_norm(&mut self, rows_at: Option<usize>, rows: usize, to: &'static str) {
        let shape = NormShape { rows_at, ..NormShape::rows(rows) };
        let (x, y) = (self.buffers.place("x"), self.buffers.place(to));
        self.network.program.head.norm.run(&mut self.recorder, &self.buffers.plan, x, y, shape);
    }

    /// Logits of the wanted rows.
    pub(crate) fn logits(&mut self, rows: usize) {
        let head = &self.network.program.head;
        let epilogue = Epilogue { keep: 0.0, scale: head.scale, cap: head.soft_cap };
        let (x, y) = (self.buffers.place("wanted"), self.buffers.place("logits"));
        self.linear(&head.output, rows, x, y, epilogue);
    }

    pub(crate) fn linear(
        &mut self,
        of: &Linear,
        rows: usize,
        x: Place<'_>,
        y: Place<'_>,
        epilogue: Epilogue,
    ) {
        for part in &of.parts {
            let y = Place { at: y.at + part.column, ..y };
            part.matrix.multiply(&mut self.recorder, rows, x, part.bias.as_ref(), y, epilogue);
        }
    }

    fn add(&mut self, x: Place<'_>, y: Place<'_>, factors: (f32, f32)) {
        let shape = (self.rows, self.network.program.widths.hidden);
        add(&mut self.recorder, shape, x, y, factors);
    }

    pub(crate) fn norm(&mut self, norm: &Norm, x: Place<'_>, y: Place<'_>, shape: NormShape) {
        norm.run(&mut self.recorder, &self.buffers.plan, x, y, shape);
    }

    /// `x = keep · x + scale · after(Σ branches)`.
    fn residual(&mut self, of: &'a Residual) {
        let buffers = self.buffers;
        let x = buffers.place("x");
        if let ([branch], None) = (&of.branches[..], &of.after)
            && branch.after.is_none()
            && of.keep != 0.0
        {
            let epilogue = Epilogue { keep: of.keep, scale: of.scale * branch.scale, cap: None };
            return self.branch(branch, x, epilogue);
        }
        let sum = buffers.place("sum");
        for (index, branch) in of.branches.iter().enumerate() {
            let keep = if index == 0 { 0.0 } else { 1.0 };
            match &branch.after {
                None => self.branch(branch, sum, Epilogue { keep, scale: branch.scale, cap: None }),
                Some(after) => {
                    let (raw, normed) = (buffers.place("branch"), buffers.place("after"));
                    self.branch(branch, raw, Epilogue::STORE);
                    self.norm(after, raw, normed, NormShape::rows(self.rows));
                    self.add(normed, sum, (keep, branch.scale));
                }
            }
        }
        match &of.after {
            None => self.add(sum, x, (of.keep, of.scale)),
            Some(after) => {
                let normed = buffers.place("after");
                self.norm(after, sum, normed, NormShape::rows(self.rows));
                self.add(normed, x, (of.keep, of.scale));
            }
        }
    }

    fn branch(&mut self, of: &'a Branch, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        let (x, normed) = (buffers.place("x"), buffers.place("normed"));
        let first = match &of.mixer {
            // MLA reads its input twice.
            Mixer::Attention(of) if matches!(of.latent, Some(Latent::Absorbed(_))) => None,
            Mixer::Attention(of) => Some(&of.projection),
            Mixer::Mlp(of) => Some(&of.first),
            Mixer::ShortConv(of) => Some(&of.input),
            Mixer::DeltaNet(of) => Some(&of.projection),
            Mixer::Mamba2(of) => Some(&of.input),
            Mixer::Moe(_) | Mixer::PerLayerInput(_) | Mixer::Laurel(_) => None,
        };
        let norm = of.norm.as_ref().map(|norm| (norm, of.input_scale));
        let fused = Fused { norm, ..Fused::default() };
        // One dispatch in place of two; several products would norm the same row again and again.
        let fuses = first
            .is_some_and(|first| matches!(&first.parts[..], [part] if part.matrix.fuses(&self.network.gpu, self.rows, fused)));
        let input = match &of.norm {
            Some(norm) if fuses => Input { x, norm: Some((norm, of.input_scale)) },
            Some(norm) => {
                let shape = NormShape { scale: of.input_scale, ..NormShape::rows(self.rows) };
                self.norm(norm, x, normed, shape);
                Input { x: normed, norm: None }
            }
            None if of.input_scale == 1.0 && x.buffer.number() != y.buffer.number() => {
                Input { x, norm: None }
            }
            None => {
                self.add(x, normed, (0.0, of.input_scale));
                Input { x: normed, norm: None }
            }
        };
        match &of.mixer {
            Mixer::Attention(of) => self.attention(of, input, y, epilogue),
            Mixer::Mlp(of) => self.mlp(of, input, y, epilogue),
            Mixer::Moe(of) => self.moe(of, input.x, y, epilogue),
            Mixer::ShortConv(of) => self.short_conv(of, input, y, epilogue),
            Mixer::DeltaNet(of) => self.delta_net(of, input, y, epilogue),
            Mixer::Mamba2(of) => self.mamba2(of, input, y, epilogue),
            Mixer::PerLayerInput(of) => self.layer_input(of, input.x, y, epilogue),
            Mixer::Laurel(of) => self.laurel(of, input.x, y, epilogue),
        }
    }

    /// The first product of a block, with the norm before it where that is left to it.
    pub(crate) fn project(
        &mut self,
        of: &Linear,
        input: Input<'_>,
        y: Place<'_>,
        activate: Option<&Activate>,
    ) {
        let fused = Fused { norm: input.norm, activate, visits: None };
        for part in &of.parts {
            let y = Place { at: y.at + part.column, ..y };
            let target = Target { bias: part.bias.as_ref(), y, epilogue: Epilogue::STORE };
            part.matrix.multiply_fused(&mut self.recorder, self.rows, input.x, target, fused);
        }
    }

    /// An MLP of rows that are ready.
    pub(crate) fn ready_mlp(&mut self, of: &Mlp, x: Place<'_>, y: Place<'_>, epilogue: Epilogue) {
        self.mlp(of, Input { x, norm: None }, y, epilogue);
    }

    fn mlp(&mut self, of: &Mlp, input: Input<'_>, y: Place<'_>, epilogue: Epilogue) {
        let (first, inner) = (self.buffers.place("first"), self.buffers.place("inner"));
        let fused = Fused { activate: Some(&of.activate), ..Fused::default() };
        match &of.first.parts[..] {
            [part]
                if of.activate.gated
                    && of.sparsity.is_none()
                    && part.matrix.fuses(&self.network.gpu, self.rows, fused) =>
            {
                self.project(&of.first, input, inner, Some(&of.activate));
            }
            _ => {
                self.project(&of.first, input, first, None);
                if let Some(deviations) = of.sparsity {
                    sparse_gates(&mut self.recorder, (self.rows, of.inner), first, (deviations, 1.0));
                }
                of.activate.run(&mut self.recorder, (self.rows, of.inner), first, inner);
            }
        }
        let epilogue = Epilogue { scale: epilogue.scale * of.down_scale, ..epilogue };
        self.linear(&of.down, self.rows, inner, y, epilogue);
    }

    fn attention(&mut self, of: &Attention, input: Input<'a>, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        let projected = buffers.place("projected");
        self.project(&of.projection, input, projected, None);
        let (queries, attended) = (buffers.place("queries"), buffers.place("attended"));
        // Sums of latents are rows of heads without gaps.
        let dense = Place { stride: of.heads * of.value_dim, ..attended };
        if !self.attend_own(of, projected, attended) {
            if self.heads(of, projected, queries) {
                self.encode(of.slot);
            } else {
                self.heads_apart(of, projected, queries);
            }
            let queries = match &of.latent {
                Some(Latent::Folded(folded)) => self.folded_queries(of, folded, queries),
                Some(Latent::Absorbed(own)) => self.absorbed_queries(of, own, input.x),
                None => queries,
            };
            let attended = if of.latent.is_some() { dense } else { attended };
            self.attend(of, queries, attended);
        }
        if of.gate.is_some() {
            let (g_segment, y_segment) = (of.q.step, of.value_dim);
            let shape = GateShape {
                segments: of.heads,
                g_segment,
                y_segment,
                ..GateShape::rows(self.rows, of.value_dim)
            };
            let gates = Place { at: projected.at + of.q.at + of.key_dim, ..projected };
            gate(&mut self.recorder, GateFunction::Sigmoid, gates, attended, shape);
        }
        let attended = match &of.latent {
            Some(Latent::Absorbed(own)) => self.absorbed_values(of, own, dense),
            Some(Latent::Folded(_)) => dense,
            None => attended,
        };
        self.linear(&of.output, self.rows, attended, y, epilogue);
    }

    /// Queries ready to attend, and keys and values in their pages, block by block.
    fn heads_apart(&mut self, of: &Attention, projected: Place<'a>, queries: Place<'a>) {
        let buffers = self.buffers;
        let q = Heads {
            from: projected,
            place: of.q,
            heads: of.heads,
            dim: of.key_dim,
            scale: 1.0,
            at_sinks: false,
        };
        let is_absorbed = matches!(of.latent, Some(Latent::Absorbed(_)));
        if !is_absorbed {
            self.turned(of, &q, of.q_norm.as_ref(), queries);
        }
        if self.plan.is_streaming() && !is_absorbed {
            let behind = Place { at: queries.at + self.rows * queries.stride, ..queries };
            self.turned(of, &Heads { at_sinks: true, ..q }, of.q_norm.as_ref(), behind);
        }
        if let Some(&gains_at) = self.plan.gains.get(&of.slot.index()).filter(|_| !is_absorbed) {
            let (plan, shape) = ((&buffers.plan, gains_at), (self.rows, of.heads * of.key_dim));
            scale_rows(&mut self.recorder, plan, shape, queries);
            if self.plan.is_streaming() {
                let behind = Place { at: queries.at + self.rows * queries.stride, ..queries };
                scale_rows(&mut self.recorder, plan, shape, behind);
            }
        }
        if let Some((k, v)) = of.kv {
            let keys = buffers.place("keys");
            let (heads, dim, scale) = (of.kv_heads, of.key_dim, of.key_scale);
            let k = Heads { from: projected, place: k, heads, dim, scale, at_sinks: false };
            self.turned(of, &k, of.k_norm.as_ref(), keys);
            let mut values = HeadRows { place: projected, head: v };
            if let Some(norm) = &of.v_norm {
                let (place, head) = (buffers.place("values"), HeadPlace { at: 0, step: of.value_dim });
                let (heads, dim) = (of.kv_heads, of.value_dim);
                let from = Heads { from: projected, place: v, heads, dim, scale: 1.0, at_sinks: false };
                self.norm_heads(norm, &from, place);
                values = HeadRows { place, head };
            }
            let (keys, step) = match &of.latent {
                Some(Latent::Folded(folded)) => self.folded_keys(of, folded, keys),
                _ => (keys, of.key_dim),
            };
            let keys = HeadRows { place: keys, head: HeadPlace { at: 0, step } };
            self.append(of.slot, keys, values);
        }
    }

    /// Queries or keys, normed and rotated, into rows of heads without gaps.
    fn turned(&mut self, of: &Attention, heads: &Heads<'_>, norm: Option<&Norm>, to: Place<'a>) {
        let buffers = self.buffers;
        let between = buffers.place("between");
        let dense = HeadPlace { at: 0, step: heads.dim };
        match (norm, of.norm_place) {
            (None, _) => self.rotate(of, heads, to),
            (Some(norm), NormPlace::BeforeRope) => {
                self.norm_heads(norm, heads, between);
                self.rotate(of, &Heads { from: between, place: dense, scale: 1.0, ..*heads }, to);
            }
            (Some(norm), NormPlace::AfterRope) => {
                self.rotate(of, heads, between);
                self.norm_heads(norm, &Heads { from: between, place: dense, scale: 1.0, ..*heads }, to);
            }
        }
    }

    /// Norms every head, or all heads at once where the norm is that wide.
    fn norm_heads(&mut self, norm: &Norm, of: &Heads<'_>, to: Place<'_>) {
        let from = Place { at: of.from.at + of.place.at, ..of.from };
        let per_head = norm.width == of.dim;
        let segments = if per_head { of.heads } else { 1 };
        let shape = NormShape {
            segments,
            x_segment: of.place.step,
            y_segment: of.dim,
            factor: of.scale,
            ..NormShape::rows(self.rows)
        };
        self.norm(norm, from, to, shape);
    }

    fn rotate(&mut self, of: &Attention, heads: &Heads<'_>, to: Place<'_>) {
        let rotations = if heads.at_sinks { &self.plan.at_sinks } else { &self.plan.rotations };
        let rope = of.rope.map(|id| (&self.network.ropes[id.0], rotations[&id.0]));
        let turn = RopeRows {
            rows: self.rows,
            heads: heads.heads,
            dim: heads.dim,
            pairs: rope.map_or(0, |(rope, _)| rope.dims() / 2),
            turns_at: rope.map_or(0, |(_, at)| at),
            pairing: rope.map_or(Pairing::Halves, |(rope, _)| rope.pairing()),
            amplitude: rope.map_or(1.0, |(rope, _)| rope.amplitude()),
            scale: heads.scale,
            x_head: heads.place.step,
            y_head: heads.dim,
        };
        let from = Place { at: heads.from.at + heads.place.at, ..heads.from };
        rotate(&mut self.recorder, &self.buffers.plan, from, to, turn);
    }
}
