//! Mixtures of experts: a router, the experts that each row visits, and their sum.
//!
//! The experts of a layer lie in one matrix, one after another. A row of a product is a visit, of one token to one expert, and
//! finds its expert in what the router wrote; so nothing is gathered and nothing comes back to the host.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::ops::{Activate, NormShape, ROW_SUM};
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
        let visits = Visits {
            routes: buffers.place("routes").buffer,
            of_input: of.router.chosen,
            experts: of.experts,
        };
        let rows = self.rows * of.router.chosen;
        let (first, inner) = (buffers.place("expert first"), buffers.place("expert inner"));
        let fused = Fused { norm: None, activate: None, visits: Some(visits) };
        if of.activate.gated {
            self.visit(&of.first, rows, x, inner, Fused { activate: Some(&of.activate), ..fused });
        } else {
            self.visit(&of.first, rows, x, first, fused);
            of.activate.run(&mut self.recorder, (rows, of.inner), first, inner);
        }
        let out = buffers.place("expert out");
        let own = Visits { of_input: 1, ..visits };
        self.visit(&of.down, rows, inner, out, Fused { visits: Some(own), ..fused });
        let (shared, gate) = (buffers.place("shared"), buffers.place("shared gate"));
        if let Some((mlp, linear)) = &of.shared {
            self.ready_mlp(mlp, x, shared, Epilogue::STORE);
            if let Some(linear) = linear {
                self.linear(linear, self.rows, x, gate, Epilogue::STORE);
            }
        }
        self.combine(of, (out, shared, gate), y, epilogue);
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

    fn combine(
        &mut self,
        of: &Moe,
        (out, shared, gate): (Place<'_>, Place<'_>, Place<'_>),
        y: Place<'_>,
        epilogue: Epilogue,
    ) {
        let width = self.network.program.widths.hidden;
        let (has_shared, has_gate) =
            (of.shared.is_some(), of.shared.as_ref().is_some_and(|(_, gate)| gate.is_some()));
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
