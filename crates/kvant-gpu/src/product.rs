//! Products with packed matrices, and what is done around a product in the same dispatch.
//!
//! Few tokens go through kernels that read weights as fast as memory gives them, many through those that multiply as fast as they can
//! (`cut.rs`). Where a device has no arithmetic that is faster than f32, both share one order of sums (`wgsl/product.wgsl`), and a token
//! has the same bits in both.

use crate::buffer::Buffer;
use crate::cut::{BY_LANES, Cut, Demand, LANES, TEAMS, matrices_text};
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::ops::{ACT, Activate, Norm, ROW_SUM, SIXTEEN};
use crate::recorder::{Grid, Recorder};
use crate::unroll::unrolled;
use crate::visits::{TileOrder, VisitTiles};
use crate::weights::{GROUP, Matrix, Place};
use kvant_model::description::NormKind;
use std::sync::{Arc, PoisonError};

/// Workgroups of a product that run at once on a large card: four for each of 132 processors in f32, two in integers.
const GROUPS_AT_ONCE: [usize; 2] = [528, 264];

/// Words of weights that a thread asks for before it waits, in f32 and in integers.
const WORDS_AHEAD: [usize; 2] = [24, 40];

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
    /// The same rows in tiles that share a matrix, where there are many.
    pub tiles: Option<VisitTiles<'a>>,
}

/// What tells the kernels of a matrix apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductShape {
    cut: Cut,
    bias: bool,
    add: bool,
    norm: Option<ProductNorm>,
    /// Which function, and whether it is clamped.
    activate: Option<(usize, bool)>,
    visits: bool,
    tiles: Option<TileOrder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProductNorm {
    layer: bool,
    weight: bool,
    bias: bool,
}

impl ProductNorm {
    fn of(norm: &Norm) -> ProductNorm {
        ProductNorm {
            layer: norm.kind == NormKind::Layer,
            weight: norm.weight.is_some(),
            bias: norm.bias.is_some(),
        }
    }
}

impl Matrix {
    fn product(&self, gpu: &Gpu, shape: ProductShape) -> Arc<Kernel> {
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(products.entry(shape).or_insert_with(|| self.build_product(gpu, shape)))
    }

    fn build_product(&self, gpu: &Gpu, shape: ProductShape) -> Arc<Kernel> {
        gpu.unchecked_kernel(shape.cut.label(), self.product_text(gpu, shape))
    }

    fn product_text(&self, gpu: &Gpu, shape: ProductShape) -> String {
        let (inputs, groups) = (self.inputs(), self.groups());
        let gated = shape.activate.is_some();
        let ragged = !inputs.is_multiple_of(GROUP);
        // Widths of whole groups are arguments where nothing else depends on them: fewer kernels to build.
        let known = if ragged || shape.norm.is_some() || shape.cut.is_dots() { inputs } else { 0 };
        let mut constants = format!(
            "const INPUTS = {known}u;\nconst RAGGED = {ragged};\nconst BIAS = {};\nconst ADD = {};\nconst VISITS = {};\n",
            shape.bias, shape.add, shape.visits,
        );
        let body = match shape.cut {
            Cut::Tile { tokens } => {
                constants += &format!("const P = {tokens}u;\nconst FOURS = {}u;\n", tokens / 4);
                unrolled(include_str!("wgsl/tile.wgsl"), &[("P", tokens), ("FOURS", tokens / 4)])
            }
            Cut::Matrices { side, tile } => {
                // Metal loads matrices from memory of numbers.
                let (head, counts) = matrices_text(side, tile, gpu.report().api != "metal");
                constants = format!("enable f16;\nenable wgpu_cooperative_matrix;\n{constants}{head}");
                unrolled(include_str!("wgsl/matrices.wgsl"), &counts)
            }
            Cut::Lanes { tokens, rows } | Cut::Dots { tokens, rows } => {
                let stage = shape.cut.stage(groups).unwrap_or(groups);
                let ahead = self.ahead(gpu, shape.cut, rows, stage / LANES);
                let norm = shape.norm.unwrap_or(ProductNorm { layer: false, weight: false, bias: false });
                let (activation, clamped) = shape.activate.unwrap_or((0, false));
                constants += &format!(
                    "const TOKENS = {tokens}u;\nconst R = {rows}u;\nconst STAGE = {stage}u;\nconst OUTPUTS = {}u;\nconst NORMED = {};\n\
                     const LAYER = {};\nconst NORM_WEIGHT = {};\nconst NORM_BIAS = {};\nconst GATED = {gated};\n\
                     const ACTIVATION = {activation}u;\nconst CLAMPED = {clamped};\n\
                     const AHEAD = {ahead}u;\nconst SINGLE = {};\nconst TEAMS = {TEAMS}u;\nconst THREADS = {}u;\n",
                    shape.cut.per_group(gated).0,
                    shape.norm.is_some(),
                    norm.layer,
                    norm.weight,
                    norm.bias,
                    groups <= stage,
                    LANES * TEAMS,
                );
                let norm_steps = if shape.norm.is_some() { inputs.div_ceil(4 * NORM_THREADS) } else { 0 };
                let steps = tokens * stage * 8 / (TEAMS * LANES);
                let counts = [
                    ("R", rows),
                    ("TOKENS", tokens),
                    ("STEPS", steps),
                    ("NORM_STEPS", norm_steps),
                    ("AHEAD", ahead),
                    ("TEAMS", TEAMS),
                ];
                if shape.cut.is_dots() {
                    constants += &format!(
                        "const GROUPS = {groups}u;\nconst ROW_WORDS = {}u;\nconst WHOLE = {};\n",
                        self.row_words(),
                        groups.is_multiple_of(stage),
                    );
                }
                let (body, ends) = match shape.cut {
                    Cut::Dots { .. } => (include_str!("wgsl/dots.wgsl"), SIXTEEN),
                    _ => (include_str!("wgsl/matmul.wgsl"), ROW_SUM),
                };
                let text = [body, include_str!("wgsl/team_rows.wgsl"), ends].concat();
                unrolled(&text, &counts) + ACT
            }
        };
        let (order, rows) = match shape.tiles {
            None => (String::new(), include_str!("wgsl/whole.wgsl")),
            Some(TileOrder::Sorted) => (String::new(), include_str!("wgsl/grouped.wgsl")),
            Some(TileOrder::ByHead { heads }) => {
                (format!("const HEADS = {heads}u;\n"), include_str!("wgsl/by_head.wgsl"))
            }
        };
        let text = [include_str!("wgsl/product.wgsl"), &order, rows, &body].concat();
        self.source(&constants, &text)
    }

    /// Groups of each row that a thread asks for at once, of the `steps` that it has in a stage.
    fn ahead(&self, gpu: &Gpu, cut: Cut, rows: usize, steps: usize) -> usize {
        // A driver in software has nothing to wait for, and long texts to translate.
        let words = WORDS_AHEAD[usize::from(cut.is_dots())];
        let most = if gpu.report().kind.is_gpu() { words / (rows * self.group_words()) } else { 1 };
        (1..=steps.min(most.max(1))).rev().find(|ahead| steps.is_multiple_of(*ahead)).unwrap_or(1)
    }

    /// Workgroups that share so many units of rows: one for each, or as many as run at once where all inputs fit in workgroup memory,
    /// each with as many units as the others.
    fn workgroups(&self, gpu: &Gpu, units: usize, cut: Cut) -> usize {
        // A driver in software gets few, so that tests see workgroups that go on.
        let many = GROUPS_AT_ONCE[usize::from(cut.is_dots())];
        let at_once = if gpu.report().kind.is_gpu() { many } else { 3 };
        match cut.stage(self.groups()).is_some_and(|stage| self.groups() <= stage) {
            true => units.div_ceil(units.div_ceil(at_once).max(1)),
            false => units,
        }
    }

    /// Whether a product of `tokens` rows can be fused with a norm before it and gates after it.
    pub(crate) fn fuses(&self, gpu: &Gpu, tokens: usize, fused: Fused<'_>) -> bool {
        let is_dots = gpu.arithmetic().dots && self.has_codes();
        let norm = fused.norm.is_none_or(|(norm, _)| {
            let fits = norm.width == self.inputs() && self.inputs().is_multiple_of(4);
            fits && match is_dots {
                // All few tokens or none, so that each has the bits of one alone. A mean has to be known before numbers are made integers.
                true => {
                    let is_root = norm.kind == NormKind::Rms && norm.bias.is_none();
                    tokens <= BY_LANES && is_root && Cut::norms_in_dots(self.groups())
                }
                false => tokens == 1,
            }
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
        let (visits, has_codes) = (fused.visits.is_some(), self.has_codes());
        let tiles = fused.visits.and_then(|visits| visits.tiles);
        let tile = tiles.map(|tiles| tiles.tokens());
        let demand = Demand { tokens, outputs, gated, visits, tile, has_codes };
        let shape = ProductShape {
            cut: Cut::new(demand, recorder.gpu().arithmetic()),
            bias: bias.is_some(),
            add: epilogue.keep != 0.0,
            norm: fused.norm.map(|(norm, _)| ProductNorm::of(norm)),
            activate: fused.activate.map(|activate| (activate.number(), activate.clamp.is_some())),
            visits,
            tiles: tiles.map(|tiles| tiles.order()),
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
            let across = outputs.div_ceil(per_outputs);
            let along = tiles.map_or(tokens.div_ceil(per_tokens), |tiles| tiles.count());
            match shape.cut {
                Cut::Lanes { .. } | Cut::Dots { .. } => {
                    let across = self.workgroups(recorder.gpu(), across, shape.cut);
                    recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(across, along));
                }
                // Tiles of the same outputs beside each other: they find weights in the cache.
                Cut::Tile { .. } | Cut::Matrices { .. } => {
                    let mut bound = bound[..5].to_vec();
                    bound.extend(tiles.and_then(|tiles| tiles.list()));
                    recorder.dispatch(&kernel, &bound, &arguments, Grid(along as u32, across as u32, 1));
                }
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use kvant_model::{DType, Tensor};

    /// No driver in software has cooperative matrices: what wgpu would refuse on a card that has them is found here.
    #[test]
    fn products_by_matrices_are_valid_where_no_adapter_has_any() {
        let Some(gpu) = crate::tests::gpu() else { return };
        let tensor = Tensor::new("w", DType::Q4_0, vec![64, 64], vec![0; 64 * 36].into()).unwrap();
        let matrix = Matrix::upload(&gpu, &[tensor]).unwrap();
        for tiles in [None, Some(TileOrder::Sorted), Some(TileOrder::ByHead { heads: 2 })] {
            for (side, tile) in [(8, 32), (8, 64), (16, 64), (16, 128)] {
                let shape = ProductShape {
                    cut: Cut::Matrices { side, tile },
                    bias: true,
                    add: true,
                    norm: None,
                    activate: None,
                    visits: false,
                    tiles,
                };
                let text = matrix.product_text(&gpu, shape);
                kvant_msl::check(&text).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
            }
        }
    }
}
