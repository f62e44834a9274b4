//! Mixtures of experts: a router, the experts that each row visits, and their sum.
//!
//! The experts of a layer lie in one matrix, one after another. A row of a product is a visit, of one token to one expert. Of up to eight
//! tokens every visit finds its expert in what the router wrote; those of more are sorted first ([`crate::visits`]), and a tile of them shares
//! a matrix. Nothing is gathered, and nothing comes back to the host.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::gates::{GateFunction, GateShape, gate as apply_gate};
use crate::kernel::Kernel;
use crate::ops::{Activate, NormShape, ROW_SUM, add};
use crate::product::{Epilogue, Fused, Target, Visits};
use crate::program::{Linear, Mlp};
use crate::recorder::Grid;
use crate::run::Run;
use crate::weights::Place;
use kvant_model::description::{self, ExpertGroups, Renormalise, RouterScore};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A mixture of experts.
pub(crate) struct Moe {
    pub router: Router,
    pub experts: usize,
    /// Gates and ups, or ups, of every expert; and the way back.
    pub first: Linear,
    pub inner: usize,
    pub activate: Activate,
    pub down: Linear,
    pub down_scale: f32,
    /// An expert that every token visits, and the layer whose sigmoid weighs it.
    pub shared: Option<(Mlp, Option<Linear>)>,
    /// Into the narrower space that experts work in, and out of it after their sum.
    pub narrow: Option<(Linear, Linear)>,
}

/// Chooses experts: numbers as described, weights on the device.
pub(crate) struct Router {
    pub described: description::Router,
    /// Of its own input, the residual stream where it reads that.
    pub norm: Option<crate::ops::Norm>,
    pub linear: Linear,
    pub bias: Option<Buffer>,
    pub expert_scale: Option<Buffer>,
    pub kernel: OnceLock<Arc<Kernel>>,
}

impl Deref for Router {
    type Target = description::Router;

    fn deref(&self) -> &description::Router {
        &self.described
    }
}

impl Router {
    fn kernel(&self, gpu: &Gpu, experts: usize) -> Arc<Kernel> {
        let build = || {
            let ExpertGroups { count, kept, best } =
                self.groups.unwrap_or(ExpertGroups { count: 1, kept: 1, best: 1 });
            let constants = format!(
                "const EXPERTS = {experts}u;\nconst CHOSEN = {}u;\nconst SIGMOID = {};\nconst SOFTMAX = {};\n\
                 const SOFTMAX_OF_CHOSEN = {};\nconst BIAS = {};\nconst GROUPED = {};\nconst GROUP_COUNT = {count}u;\n\
                 const GROUPS_KEPT = {kept}u;\nconst GROUP_BEST = {best}u;\nconst EXPERT_SCALE = {};\nconst RENORMALISED = {};\n",
                self.chosen,
                self.score == RouterScore::Sigmoid,
                self.score == RouterScore::Softmax,
                self.score == RouterScore::SoftmaxOfChosen,
                self.bias.is_some(),
                self.groups.is_some(),
                self.expert_scale.is_some(),
                self.renormalise.is_some(),
            );
            gpu.kernel("route", constants + include_str!("wgsl/route.wgsl") + ROW_SUM)
        };
        Arc::clone(self.kernel.get_or_init(build))
    }
}

impl Run<'_> {
    /// `x` are the rows that experts read; `y` is what they are added to.
    pub(crate) fn moe(&mut self, of: &Moe, x: Place<'_>, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        self.route(of, x);
        let (shared, gate) = (buffers.place("shared"), buffers.place("shared gate"));
        if let Some((mlp, linear)) = &of.shared {
            self.ready_mlp(mlp, x, shared, Epilogue::STORE);
            if let Some(linear) = linear {
                self.linear(linear, self.rows, x, gate, Epilogue::STORE);
            }
        }
        let hidden = self.network.program.widths.hidden;
        let Some((into, back)) = &of.narrow else {
            self.experts(of, x);
            let has_gate = of.shared.as_ref().map(|(_, gate)| gate.is_some());
            return self.combine(of, (has_gate, hidden), y, epilogue);
        };
        let (narrow, sum) = (buffers.place("expert narrow"), buffers.place("expert sum"));
        self.linear(into, self.rows, x, narrow, Epilogue::STORE);
        self.experts(of, narrow);
        self.combine(of, (None, into.outputs()), sum, Epilogue::STORE);
        let Some((_, linear)) = &of.shared else {
            return self.linear(back, self.rows, sum, y, epilogue);
        };
        if linear.is_some() {
            // One gate for all channels of a row.
            let shape = GateShape { segments: hidden, y_segment: 1, ..GateShape::rows(self.rows, 1) };
            apply_gate(&mut self.recorder, GateFunction::Sigmoid, gate, shared, shape);
        }
        self.linear(back, self.rows, sum, shared, Epilogue { keep: 1.0, ..Epilogue::STORE });
        add(&mut self.recorder, (self.rows, hidden), shared, y, (epilogue.keep, epilogue.scale));
    }

    /// What every visit gives, in "expert out".
    fn experts(&mut self, of: &Moe, x: Place<'_>) {
        let (buffers, chosen) = (self.buffers, of.router.chosen);
        let tiles = self.tiles_visits().then(|| self.sorted_visits(chosen, of.experts));
        let routes = buffers.place("routes").buffer;
        let visits = Visits { routes, of_input: chosen, experts: of.experts, tiles };
        let rows = self.rows * chosen;
        let (first, inner) = (buffers.place("expert first"), buffers.place("expert inner"));
        let fused = Fused { norm: None, activate: None, visits: Some(visits) };
        if of.activate.gated && tiles.is_none() {
            self.visit(&of.first, rows, x, inner, Fused { activate: Some(&of.activate), ..fused });
        } else {
            self.visit(&of.first, rows, x, first, fused);
            of.activate.run(&mut self.recorder, (rows, of.inner), first, inner);
        }
        let own = Visits { of_input: 1, ..visits };
        self.visit(&of.down, rows, inner, buffers.place("expert out"), Fused { visits: Some(own), ..fused });
    }

    fn route(&mut self, of: &Moe, x: Place<'_>) {
        let (router, buffers) = (&of.router, self.buffers);
        let mut input = if router.reads_residual { buffers.place("x") } else { x };
        if let Some(norm) = &router.norm {
            let normed = buffers.place("routed");
            self.norm(norm, input, normed, NormShape::rows(self.rows));
            input = normed;
        }
        let logits = buffers.place("router");
        self.linear(&router.linear, self.rows, input, logits, Epilogue::STORE);
        let Renormalise { epsilon, least } = router.renormalise.unwrap_or_default();
        let arguments = [
            self.rows as u32,
            logits.stride as u32,
            router.logit_scale.to_bits(),
            epsilon.to_bits(),
            least.to_bits(),
            router.scale.to_bits(),
        ];
        let nothing = &buffers.plan;
        let bound = [
            logits.buffer,
            router.bias.as_ref().unwrap_or(nothing),
            router.expert_scale.as_ref().unwrap_or(nothing),
            buffers.place("routes").buffer,
        ];
        let kernel = router.kernel(&self.network.gpu, of.experts);
        self.recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(self.rows, 1));
    }

    fn visit(&mut self, of: &Linear, rows: usize, x: Place<'_>, y: Place<'_>, fused: Fused<'_>) {
        for part in &of.parts {
            let target = Target { bias: part.bias.as_ref(), y, epilogue: Epilogue::STORE };
            part.matrix.multiply_fused(&mut self.recorder, rows, x, target, fused);
        }
    }

    /// Sums what the experts of a row gave under their weights; with `gate` what every token's expert gave too, under its gate where it
    /// has one.
    fn combine(&mut self, of: &Moe, (gate, width): (Option<bool>, usize), y: Place<'_>, epilogue: Epilogue) {
        let (has_shared, has_gate) = (gate.is_some(), gate == Some(true));
        let [out, shared, gate] =
            ["expert out", "shared", "shared gate"].map(|name| self.buffers.place(name));
        let constants = format!(
            "const CHOSEN = {}u;\nconst SHARED = {has_shared};\nconst GATE = {has_gate};\n",
            of.router.chosen
        );
        let kernel = self.network.gpu.kernel_of("combine", format!("combine {constants}"), || {
            constants + include_str!("wgsl/combine.wgsl")
        });
        let arguments = [
            width as u32,
            self.rows as u32,
            out.stride as u32,
            shared.stride as u32,
            gate.stride as u32,
            y.stride as u32,
            of.down_scale.to_bits(),
            epilogue.keep.to_bits(),
            epilogue.scale.to_bits(),
        ];
        let bound = [self.buffers.place("routes").buffer, out.buffer, shared.buffer, gate.buffer, y.buffer];
        let grid = Grid::rows((self.rows * width).div_ceil(64), 1);
        self.recorder.dispatch(&kernel, &bound, &arguments, grid);
    }
}
