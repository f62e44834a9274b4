//! Small kernels that change rows where they lie: gates, gates that are cut at a quantile, and multipliers of rows.

use crate::buffer::Buffer;
use crate::ops::{ACT, ROW_SUM, activation_number};
use crate::recorder::{Grid, Recorder};
use crate::weights::Place;
use kvant_model::description::Activation;

/// Threads of the kernels that have a thread to a number.
const THREADS: usize = 64;

/// What becomes of a gate before it multiplies.
#[derive(Clone, Copy)]
pub(crate) enum GateFunction {
    /// Its sigmoid.
    Sigmoid,
    /// An activation of it.
    Of(Activation),
}

/// Rows of stretches: from one to the next in the gates and in what they multiply.
#[derive(Clone, Copy)]
pub(crate) struct GateShape {
    pub rows: usize,
    pub segments: usize,
    pub width: usize,
    pub g_segment: usize,
    pub y_segment: usize,
    /// Multiplier of gates.
    pub scale: f32,
}

impl GateShape {
    /// Whole rows.
    pub(crate) fn rows(rows: usize, width: usize) -> GateShape {
        GateShape { rows, segments: 1, width, g_segment: 0, y_segment: 0, scale: 1.0 }
    }
}

/// `y *= function(scale · g)`; `g` is another buffer than `y`.
pub(crate) fn gate(
    recorder: &mut Recorder<'_>,
    function: GateFunction,
    g: Place<'_>,
    y: Place<'_>,
    of: GateShape,
) {
    let (sigmoid, activation) = match function {
        GateFunction::Sigmoid => (true, 0),
        GateFunction::Of(activation) => (false, activation_number(activation)),
    };
    let kernel = recorder.gpu().kernel_of("gate", format!("gate {sigmoid} {activation}"), || {
        let constants = format!(
            "const SIGMOID = {sigmoid};\nconst ACTIVATION = {activation}u;\nconst CLAMPED = false;\n"
        );
        constants + include_str!("wgsl/gate.wgsl") + ACT
    });
    let places = [of.width, of.segments, of.rows, g.stride, g.at, of.g_segment, y.stride, y.at, of.y_segment];
    let arguments: Vec<u32> = places.into_iter().map(|n| n as u32).chain([of.scale.to_bits()]).collect();
    let grid = Grid::rows((of.rows * of.segments * of.width).div_ceil(THREADS), 1);
    recorder.dispatch(&kernel, &[g.buffer, y.buffer], &arguments, grid);
}

/// Multiplies every row by a number of the plan.
pub(crate) fn scale_rows(
    recorder: &mut Recorder<'_>,
    (plan, factors_at): (&Buffer, usize),
    (rows, width): (usize, usize),
    y: Place<'_>,
) {
    let kernel = recorder
        .gpu()
        .kernel_of("scale_rows", "scale_rows".to_owned(), || include_str!("wgsl/scale_rows.wgsl").to_owned());
    let arguments = [width, rows, y.stride, y.at, factors_at].map(|n| n as u32);
    let grid = Grid::rows((rows * width).div_ceil(THREADS), 1);
    recorder.dispatch(&kernel, &[plan, y.buffer], &arguments, grid);
}

/// Gates count from the mean of their row and so many of its deviations on.
pub(crate) fn sparse_gates(
    recorder: &mut Recorder<'_>,
    (rows, width): (usize, usize),
    y: Place<'_>,
    (deviations, scale): (f32, f32),
) {
    let kernel = recorder
        .gpu()
        .kernel_of("sparse", "sparse".to_owned(), || include_str!("wgsl/sparse.wgsl").to_owned() + ROW_SUM);
    let sizes = [width, rows, y.stride, y.at].map(|n| n as u32);
    let arguments: Vec<u32> = sizes.into_iter().chain([deviations, scale].map(f32::to_bits)).collect();
    recorder.dispatch(&kernel, &[y.buffer], &arguments, Grid::rows(rows, 1));
}
