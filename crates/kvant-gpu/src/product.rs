//! Products with packed matrices: which kernel serves how many tokens, and what is done around a product in the same dispatch.
//!
//! Two kernels share one order of sums (`wgsl/product.wgsl`), so a token has the same bits in both. Up to eight tokens go through
//! `matmul.wgsl`, which reads weights as fast as memory gives them; more of them through `tile.wgsl`, which multiplies as fast as it
//! can.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::ops::{ACT, Activate, Norm, ROW_SUM};
use crate::recorder::{Grid, Recorder};
use crate::unroll::unrolled;
use crate::weights::{GROUP, Matrix, Place};
use kvant_model::description::NormKind;
use std::sync::{Arc, PoisonError};

/// Lanes that share the rows of a team, and teams of a workgroup.
const LANES: usize = 32;
const TEAMS: usize = 8;

/// Workgroups that a product should have at least before a team takes two rows: some for every processor of a large card.
const MANY_GROUPS: usize = 256;

/// Workgroups of a product that run at once on a large card: four for each of 132 processors.
const GROUPS_AT_ONCE: usize = 528;

/// Words of weights that a thread asks for before it waits.
const WORDS_AHEAD: usize = 24;

/// The most tokens that are multiplied by lanes, and how many of them at once.
const BY_LANES: usize = 8;
const LANE_TOKENS: usize = 4;

/// Outputs of a tile.
const TILE_OUTPUTS: usize = 64;

/// Groups of inputs, of all tokens together, that lie in workgroup memory at once.
const STAGE: usize = 128;

/// Threads that a norm is dealt to (`wgsl/row_sum.wgsl`).
const NORM_THREADS: usize = 128;

/// What becomes of a product before it is stored: `keep · y + cap(scale · (W x + bias))`.
#[derive(Clone, Copy)]
pub(crate) struct Epilogue {
    /// What was there counts this much; 0 for not at all.
    pub keep: f32,
    pub scale: f32,
    pub cap: Option<f32>,
}

impl Epilogue {
    pub(crate) const STORE: Epilogue = Epilogue { keep: 0.0, scale: 1.0, cap: None };
}

/// What is added to a product, and where it goes.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub bias: Option<&'a Buffer>,
    pub y: Place<'a>,
    pub epilogue: Epilogue,
}

/// What a product has around it in one kernel.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fused<'a> {
    /// The norm of its rows, and a multiplier of that.
    pub norm: Option<(&'a Norm, f32)>,
    /// Gates and ups become inner values.
    pub activate: Option<&'a Activate>,
    /// Every row has a matrix of its own among those of experts.
    pub visits: Option<Visits<'a>>,
}

/// The experts that rows visit.
#[derive(Clone, Copy)]
pub(crate) struct Visits<'a> {
    /// Expert and weight of every row.
    pub routes: &'a Buffer,
    /// Rows for each row of the input.
    pub of_input: usize,
    /// Experts whose matrices lie one after another.
    pub experts: usize,
}

/// What tells the kernels of a matrix apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductShape {
    cut: Cut,
    bias: bool,
    add: bool,
    norm: Option<NormShape>,
    /// Which function, and whether it is clamped.
    activate: Option<(usize, bool)>,
    visits: bool,
}

/// How a product is dealt to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Cut {
    /// So many tokens, and rows of a team.
    Lanes { tokens: usize, rows: usize },
    /// So many tokens to a thread.
    Tile { tokens: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct NormShape {
    layer: bool,
    weight: bool,
    bias: bool,
}

impl NormShape {
    fn of(norm: &Norm) -> NormShape {
        NormShape {
            layer: norm.kind == NormKind::Layer,
            weight: norm.weight.is_some(),
            bias: norm.bias.is_some(),
        }
    }
}

impl Cut {
    fn new(tokens: usize, outputs: usize, gated: bool, visits: bool) -> Cut {
        if tokens > BY_LANES && !visits {
            return Cut::Tile { tokens: if tokens > 32 { 8 } else { 4 } };
        }
        // Gates come with their ups.
        let many = outputs >= 2 * TEAMS * MANY_GROUPS;
        let rows = if gated || ((tokens == 1 || visits) && many) { 2 } else { 1 };
        let at_once = [1, 2].into_iter().find(|at_once| *at_once >= tokens || visits);
        Cut::Lanes { tokens: at_once.unwrap_or(LANE_TOKENS), rows }
    }

    /// Outputs and tokens of a workgroup.
    fn per_group(self, gated: bool) -> (usize, usize) {
        match self {
            Cut::Lanes { tokens, rows } => (TEAMS * if gated { rows / 2 } else { rows }, tokens),
            Cut::Tile { tokens } => (TILE_OUTPUTS, 8 * tokens),
        }
    }
}

impl Matrix {
    fn product(&self, gpu: &Gpu, shape: ProductShape) -> Arc<Kernel> {
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(products.entry(shape).or_insert_with(|| self.build_product(gpu, shape)))
    }

    fn build_product(&self, gpu: &Gpu, shape: ProductShape) -> Arc<Kernel> {
        let (inputs, groups) = (self.inputs(), self.groups());
        let gated = shape.activate.is_some();
        let ragged = !inputs.is_multiple_of(GROUP);
        // Widths of whole groups are arguments where nothing else depends on them: fewer kernels to build.
        let known = if ragged || shape.norm.is_some() { inputs } else { 0 };
        let mut constants = format!(
            "const INPUTS = {known}u;\nconst RAGGED = {ragged};\nconst BIAS = {};\nconst ADD = {};\n",
            shape.bias, shape.add,
        );
        let body = match shape.cut {
            Cut::Tile { tokens } => {
                constants += &format!("const P = {tokens}u;\nconst FOURS = {}u;\n", tokens / 4);
                unrolled(include_str!("wgsl/tile.wgsl"), &[("P", tokens), ("FOURS", tokens / 4)])
            }
            Cut::Lanes { tokens, rows } => {
                let stage = self.stage(tokens);
                let ahead = self.ahead(gpu, rows, stage / LANES);
                let norm = shape.norm.unwrap_or(NormShape { layer: false, weight: false, bias: false });
                let (activation, clamped) = shape.activate.unwrap_or((0, false));
                constants += &format!(
                    "const TOKENS = {tokens}u;\nconst R = {rows}u;\nconst STAGE = {stage}u;\nconst OUTPUTS = {}u;\nconst NORMED = {};\n\
                     const LAYER = {};\nconst NORM_WEIGHT = {};\nconst NORM_BIAS = {};\nconst GATED = {gated};\n\
                     const ACTIVATION = {activation}u;\nconst CLAMPED = {clamped};\n\
                     const VISITS = {};\nconst AHEAD = {ahead}u;\nconst SINGLE = {};\n",
                    shape.cut.per_group(gated).0,
                    shape.norm.is_some(),
                    norm.layer,
                    norm.weight,
                    norm.bias,
                    shape.visits,
                    groups <= stage,
                );
                let norm_steps = if shape.norm.is_some() { inputs.div_ceil(4 * NORM_THREADS) } else { 0 };
                let steps = tokens * stage * 8 / (TEAMS * LANES);
                let counts = [
                    ("R", rows),
                    ("TOKENS", tokens),
                    ("STEPS", steps),
                    ("NORM_STEPS", norm_steps),
                    ("AHEAD", ahead),
                ];
                unrolled(include_str!("wgsl/matmul.wgsl"), &counts) + ROW_SUM + ACT
            }
        };
        let text = include_str!("wgsl/product.wgsl").to_owned() + &body;
        let label = match shape.cut {
            Cut::Lanes { .. } => "matmul",
            Cut::Tile { .. } => "tile",
        };
        gpu.unchecked_kernel(label, self.source(&constants, &text))
    }

    /// Groups of each row that a thread asks for at once, of the `steps` that it has in a stage.
    fn ahead(&self, gpu: &Gpu, rows: usize, steps: usize) -> usize {
        // A driver in software has nothing to wait for, and long texts to translate.
        let most = if gpu.report().kind.is_gpu() { WORDS_AHEAD / (rows * self.group_words()) } else { 1 };
        (1..=steps.min(most.max(1))).rev().find(|ahead| steps.is_multiple_of(*ahead)).unwrap_or(1)
    }

    /// Groups of inputs that are in workgroup memory at once, of so many tokens.
    fn stage(&self, tokens: usize) -> usize {
        self.groups().next_multiple_of(LANES).min(STAGE / tokens)
    }

    /// Workgroups that share so many units of rows: one for each, or as many as run at once where all inputs fit in workgroup memory,
    /// each with as many units as the others.
    fn workgroups(&self, gpu: &Gpu, units: usize, tokens: usize) -> usize {
        // A driver in software gets few, so that tests see workgroups that go on.
        let at_once = if gpu.report().kind.is_gpu() { GROUPS_AT_ONCE } else { 3 };
        match self.groups() <= self.stage(tokens) {
            true => units.div_ceil(units.div_ceil(at_once).max(1)),
            false => units,
        }
    }

    /// Whether a product of `tokens` rows can be fused with a norm before it and gates after it.
    pub(crate) fn fuses(&self, tokens: usize, fused: Fused<'_>) -> bool {
        let norm = fused.norm.is_none_or(|(norm, _)| {
            tokens == 1 && norm.width == self.inputs() && self.inputs().is_multiple_of(4)
        });
        norm && (fused.activate.is_none() || (self.parts().len() == 1 && tokens <= BY_LANES))
    }

    /// Multiplies `tokens` rows of `x`, whose strides are whole groups.
    pub(crate) fn multiply(
        &self,
        recorder: &mut Recorder<'_>,
        tokens: usize,
        x: Place<'_>,
        bias: Option<&Buffer>,
        y: Place<'_>,
        epilogue: Epilogue,
    ) {
        self.multiply_fused(recorder, tokens, x, Target { bias, y, epilogue }, Fused::default());
    }

    /// The same with what is done to `x` before and to the products after; see [`Matrix::fuses`].
    pub(crate) fn multiply_fused(
        &self,
        recorder: &mut Recorder<'_>,
        tokens: usize,
        x: Place<'_>,
        Target { bias, y, epilogue }: Target<'_>,
        fused: Fused<'_>,
    ) {
        if tokens == 0 {
            return;
        }
        let gated = fused.activate.is_some();
        let experts = fused.visits.map_or(1, |visits| visits.experts);
        let outputs = self.outputs() / experts / if gated { 2 } else { 1 };
        let shape = ProductShape {
            cut: Cut::new(tokens, outputs, gated, fused.visits.is_some()),
            bias: bias.is_some(),
            add: epilogue.keep != 0.0,
            norm: fused.norm.map(|(norm, _)| NormShape::of(norm)),
            activate: fused.activate.map(|activate| (activate.number(), activate.clamp.is_some())),
            visits: fused.visits.is_some(),
        };
        let kernel = self.product(recorder.gpu(), shape);
        let ends = match fused.activate {
            Some(activate) => [activate.gate_scale, activate.limits().0, activate.limits().1],
            None => [epilogue.keep, epilogue.scale, epilogue.cap.unwrap_or(0.0)],
        };
        let norm = fused.norm.map(|(norm, _)| norm);
        let (per_outputs, per_tokens) = shape.cut.per_group(gated);
        for part in self.parts() {
            // Gates, then ups.
            let outputs = part.rows / experts / if gated { 2 } else { 1 };
            let arguments = [
                self.groups() as u32,
                (x.stride / 4) as u32,
                (x.at / 4) as u32,
                outputs as u32,
                y.stride as u32,
                (y.at + part.first) as u32,
                part.first as u32,
                tokens as u32,
                self.row_words() as u32,
                ends[0].to_bits(),
                ends[1].to_bits(),
                ends[2].to_bits(),
                norm.map_or(0.0, |norm| norm.eps).to_bits(),
                fused.norm.map_or(1.0, |(_, scale)| scale).to_bits(),
                fused.visits.map_or(1, |visits| visits.of_input as u32),
                (part.rows / experts) as u32,
            ];
            let weights = &part.buffer;
            let bias = bias.unwrap_or(weights);
            let bound = [
                weights,
                weights,
                x.buffer,
                bias,
                y.buffer,
                norm.and_then(|norm| norm.weight.as_ref()).unwrap_or(weights),
                norm.and_then(|norm| norm.bias.as_ref()).unwrap_or(weights),
                fused.visits.map_or(weights, |visits| visits.routes),
            ];
            let (across, along) = (outputs.div_ceil(per_outputs), tokens.div_ceil(per_tokens));
            match shape.cut {
                Cut::Lanes { tokens, .. } => {
                    let across = self.workgroups(recorder.gpu(), across, tokens);
                    recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(across, along));
                }
                // Tiles of the same outputs beside each other: they find weights in the cache.
                Cut::Tile { .. } => {
                    recorder.dispatch(&kernel, &bound[..5], &arguments, Grid(along as u32, across as u32, 1));
                }
            }
        }
    }
}
