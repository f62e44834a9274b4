//! The small kernels around products: norms, rotation, activations, sums.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::kernel::Kernel;
use crate::recorder::{Grid, Recorder};
use crate::weights::Place;
use kvant_model::description::{Activation, ClampedSwiglu, NormKind, Pairing};
use std::sync::Arc;

/// Threads of the kernels that have a thread to a number.
const THREADS: usize = 64;

/// Sixteen numbers as integers; with loops to be written out.
pub(crate) const SIXTEEN: &str = include_str!("wgsl/sixteen.wgsl");

/// What kernels that norm rows end with.
pub(crate) const ROW_SUM: &str = include_str!("wgsl/row_sum.wgsl");

/// A norm on the device.
pub(crate) struct Norm {
    pub kind: NormKind,
    pub width: usize,
    pub weight: Option<Buffer>,
    pub bias: Option<Buffer>,
    pub eps: f32,
}

/// How a norm goes over rows.
#[derive(Clone, Copy)]
pub(crate) struct NormShape {
    pub rows: usize,
    /// Stretches that a row has, and from one to the next in what is read and in what is written.
    pub segments: usize,
    pub x_segment: usize,
    pub y_segment: usize,
    /// From the weights of one stretch to those of the next.
    pub weight_segment: usize,
    /// Multiplier of what is normed, and of the result.
    pub factor: f32,
    pub scale: f32,
    /// Where the plan says which rows are read; all in order where it does not.
    pub rows_at: Option<usize>,
}

impl NormShape {
    /// Whole rows.
    pub(crate) fn rows(rows: usize) -> NormShape {
        NormShape {
            rows,
            segments: 1,
            x_segment: 0,
            y_segment: 0,
            weight_segment: 0,
            factor: 1.0,
            scale: 1.0,
            rows_at: None,
        }
    }
}

impl Norm {
    pub(crate) fn new(
        gpu: &Gpu,
        kind: NormKind,
        width: usize,
        weight: Option<&[f32]>,
        bias: Option<&[f32]>,
        eps: f32,
    ) -> Norm {
        let upload = |numbers: &[f32]| Buffer::of_floats(gpu, "norm", numbers);
        Norm { kind, width, weight: weight.map(upload), bias: bias.map(upload), eps }
    }

    fn kernel(&self, gpu: &Gpu, gather: bool) -> Arc<Kernel> {
        let (layer, weight, bias) =
            (self.kind == NormKind::Layer, self.weight.is_some(), self.bias.is_some());
        gpu.kernel_of("norm", format!("norm {layer} {weight} {bias} {gather}"), || {
            let constants = format!(
                "const LAYER = {layer};\nconst WEIGHT = {weight};\nconst BIAS = {bias};\nconst GATHER = {gather};\n"
            );
            constants + include_str!("wgsl/norm.wgsl") + ROW_SUM
        })
    }

    /// Norms rows of `x` into `y`, another buffer.
    pub(crate) fn run(
        &self,
        recorder: &mut Recorder<'_>,
        plan: &Buffer,
        x: Place<'_>,
        y: Place<'_>,
        shape: NormShape,
    ) {
        let NormShape { rows, segments, x_segment, y_segment, weight_segment, factor, scale, rows_at } =
            shape;
        let arguments = [
            self.width as u32,
            segments as u32,
            x.stride as u32,
            x.at as u32,
            x_segment as u32,
            y.stride as u32,
            y.at as u32,
            y_segment as u32,
            rows as u32,
            rows_at.unwrap_or(0) as u32,
            self.eps.to_bits(),
            scale.to_bits(),
            factor.to_bits(),
            weight_segment as u32,
        ];
        let (weight, bias) = (self.weight.as_ref().unwrap_or(plan), self.bias.as_ref().unwrap_or(plan));
        let bound = [plan, weight, bias, x.buffer, y.buffer];
        let kernel = self.kernel(recorder.gpu(), rows_at.is_some());
        recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(rows * segments, 1));
    }
}

/// Heads that are rotated, or only copied and scaled.
#[derive(Clone, Copy)]
pub(crate) struct RopeRows {
    pub rows: usize,
    pub heads: usize,
    pub dim: usize,
    /// Pairs that turn, and where the plan has their sines and cosines.
    pub pairs: usize,
    pub turns_at: usize,
    pub pairing: Pairing,
    pub amplitude: f32,
    /// Multiplier of everything.
    pub scale: f32,
    /// From one head to the next.
    pub x_head: usize,
    pub y_head: usize,
}

/// What kernels that rotate end with.
pub(crate) const TURNED: &str = include_str!("wgsl/turned.wgsl");

/// Rotates heads of `x` into `y`, another buffer.
pub(crate) fn rotate(recorder: &mut Recorder<'_>, plan: &Buffer, x: Place<'_>, y: Place<'_>, of: RopeRows) {
    let neighbours = of.pairing == Pairing::Neighbours;
    let kernel = recorder.gpu().kernel_of("rope", format!("rope {neighbours}"), || {
        format!("const NEIGHBOURS = {neighbours};\n{}{TURNED}", include_str!("wgsl/rope.wgsl"))
    });
    let arguments = [
        of.rows as u32,
        of.heads as u32,
        of.dim as u32,
        of.pairs as u32,
        x.stride as u32,
        x.at as u32,
        of.x_head as u32,
        y.stride as u32,
        y.at as u32,
        of.y_head as u32,
        of.turns_at as u32,
        of.scale.to_bits(),
        of.amplitude.to_bits(),
    ];
    let threads = of.rows * of.heads * of.dim.div_ceil(2);
    recorder.dispatch(
        &kernel,
        &[plan, x.buffer, y.buffer],
        &arguments,
        Grid::rows(threads.div_ceil(THREADS), 1),
    );
}

/// How inner values of an MLP are made of what its first layers give.
#[derive(Clone, Copy)]
pub(crate) struct Activate {
    pub activation: Activation,
    /// Ups follow the gates.
    pub gated: bool,
    pub gate_scale: f32,
    pub clamp: Option<ClampedSwiglu>,
}

/// What kernels with inner values end with.
pub(crate) const ACT: &str = include_str!("wgsl/act.wgsl");

/// What [`ACT`] calls a function.
pub(crate) fn activation_number(activation: Activation) -> usize {
    match activation {
        Activation::Silu => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        Activation::ReluSquared => 4,
    }
}

impl Activate {
    /// What [`ACT`] calls its function.
    pub(crate) fn number(&self) -> usize {
        activation_number(self.activation)
    }

    /// What [`ACT`] wants to know.
    fn constants(&self) -> String {
        format!("const ACTIVATION = {}u;\nconst CLAMPED = {};\n", self.number(), self.clamp.is_some())
    }

    /// The limit and alpha of clamped gates.
    pub(crate) fn limits(&self) -> (f32, f32) {
        self.clamp.map_or((0.0, 0.0), |ClampedSwiglu { limit, alpha }| (limit, alpha))
    }

    pub(crate) fn run(
        &self,
        recorder: &mut Recorder<'_>,
        (rows, width): (usize, usize),
        x: Place<'_>,
        y: Place<'_>,
    ) {
        let constants = format!("const GATED = {};\n{}", self.gated, self.constants());
        let kernel = recorder.gpu().kernel_of("activate", format!("activate {constants}"), || {
            constants + include_str!("wgsl/activate.wgsl") + ACT
        });
        let (limit, alpha) = self.limits();
        let arguments = [
            width as u32,
            rows as u32,
            x.stride as u32,
            width as u32,
            y.stride as u32,
            self.gate_scale.to_bits(),
            limit.to_bits(),
            alpha.to_bits(),
        ];
        let grid = Grid::rows((rows * width).div_ceil(THREADS), 1);
        recorder.dispatch(&kernel, &[x.buffer, y.buffer], &arguments, grid);
    }
}

/// y = keep · y + scale · x; where `scale` is 0, x is not looked at.
pub(crate) fn add(
    recorder: &mut Recorder<'_>,
    (rows, width): (usize, usize),
    x: Place<'_>,
    y: Place<'_>,
    (keep, scale): (f32, f32),
) {
    let kernel =
        recorder.gpu().kernel_of("add", "add".to_owned(), || include_str!("wgsl/add.wgsl").to_owned());
    let arguments =
        [width as u32, rows as u32, x.stride as u32, y.stride as u32, keep.to_bits(), scale.to_bits()];
    let grid = Grid::rows((rows * width).div_ceil(THREADS), 1);
    recorder.dispatch(&kernel, &[x.buffer, y.buffer], &arguments, grid);
}
