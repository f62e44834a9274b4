//! Several residual streams side by side: how they are opened and joined, what a layer does with them (AltUp), and the low-rank layer
//! beside attention (LAuReL).
//!
//! Streams lie side by side in the rows of one buffer. Between layers `x` is the first of them; within a layer it is the one that the
//! layer's residuals change.

use crate::buffer::Buffer;
use crate::compile::Compiler;
use crate::layer_inputs::LayerInput;
use crate::ops::{Norm, NormShape, ROW_SUM, add};
use crate::product::Epilogue;
use crate::program::{Linear, Widths};
use crate::recorder::Grid;
use crate::run::Run;
use crate::weights::{GROUP, Place};
use kvant_model::description;
use kvant_model::error::Result;

/// Threads of the kernels that have a thread to a channel.
const THREADS: usize = 64;

/// How streams are opened and joined.
pub(crate) struct Streams {
    open: Vec<Linear>,
    join: Vec<Linear>,
}

/// A layer over several streams.
pub(crate) struct AltUp {
    active: usize,
    router: Linear,
    prediction: Linear,
    correction: Linear,
    router_norm: Norm,
    router_scale: f32,
    input_norm: Norm,
    output_scale: Option<Buffer>,
    input: LayerInput,
}

/// `x + norm(right(left(x)))`.
pub(crate) struct Laurel {
    left: Linear,
    right: Linear,
    norm: Norm,
}

impl Compiler<'_> {
    pub(crate) fn streams(&self, of: &description::Streams, widths: &mut Widths) -> Result<Streams> {
        let linears = |all: &[description::Linear]| {
            all.iter().map(|linear| self.linear(&[linear])).collect::<Result<Vec<_>>>()
        };
        widths.streams = 1 + of.open.len();
        Ok(Streams { open: linears(&of.open)?, join: linears(&of.join)? })
    }

    pub(crate) fn altup(&self, of: &description::AltUp, widths: &mut Widths) -> Result<AltUp> {
        let scale = of.output_scale.as_ref().map(|scale| scale.read(self.checkpoint)).transpose()?;
        Ok(AltUp {
            active: of.active,
            router: self.linear(&[&of.router])?,
            prediction: self.linear(&[&of.prediction])?,
            correction: self.linear(&[&of.correction])?,
            router_norm: self.norm(&of.router_norm)?,
            router_scale: of.router_scale,
            input_norm: self.norm(&of.input_norm)?,
            output_scale: scale.map(|scale| Buffer::of_floats(self.gpu, "output scale", &scale)),
            input: self.layer_input(&of.input, widths)?,
        })
    }

    pub(crate) fn laurel(&self, of: &description::Laurel, widths: &mut Widths) -> Result<Laurel> {
        let left = self.linear(&[&of.left])?;
        widths.laurel = widths.laurel.max(left.outputs());
        Ok(Laurel { left, right: self.linear(&[&of.right])?, norm: self.norm(&of.norm)? })
    }
}

impl<'a> Run<'a> {
    /// A stream's place.
    fn stream(&self, number: usize) -> Place<'a> {
        let width = self.network.program.widths.hidden.next_multiple_of(GROUP);
        Place { at: number * width, ..self.buffers.place("streams") }
    }

    /// All streams, from the first one in `x`.
    pub(crate) fn open_streams(&mut self, of: &Streams) {
        let (x, own) = (self.buffers.place("x"), self.buffers.place("branch"));
        let shape = (self.rows, self.network.program.widths.hidden);
        let first = self.stream(0);
        add(&mut self.recorder, shape, x, first, (0.0, 1.0));
        for (index, open) in of.open.iter().enumerate() {
            self.linear(open, self.rows, x, own, Epilogue::STORE);
            self.like(own, x, self.stream(index + 1), (0.0, 1.0));
        }
    }

    /// What the head gets, in `x`.
    pub(crate) fn join_streams(&mut self, of: &Streams) {
        let (x, own) = (self.buffers.place("x"), self.buffers.place("branch"));
        let share = 1.0 / (1 + of.join.len()) as f32;
        for (index, join) in of.join.iter().enumerate() {
            self.linear(join, self.rows, self.stream(index + 1), own, Epilogue::STORE);
            self.like(own, self.stream(0), x, (if index == 0 { share } else { 1.0 }, share));
        }
    }

    /// `y = keep · y + scale · x`, with `x` rescaled to the root mean square of `to`.
    fn like(&mut self, x: Place<'_>, to: Place<'_>, y: Place<'_>, (keep, scale): (f32, f32)) {
        let kernel = self.network.gpu.kernel_of("like", "like".to_owned(), || {
            let least = description::Streams::LEAST_MEAN_SQUARE;
            format!("const LEAST = {least:?}f;\n{}{ROW_SUM}", include_str!("wgsl/like.wgsl"))
        });
        let width = self.network.program.widths.hidden;
        let sizes = [width, self.rows, x.stride, x.at, to.stride, to.at, y.stride, y.at].map(|n| n as u32);
        let arguments: Vec<u32> = sizes.into_iter().chain([keep, scale].map(f32::to_bits)).collect();
        let bound = [x.buffer, to.buffer, y.buffer];
        self.recorder.dispatch(&kernel, &bound, &arguments, Grid::rows(self.rows, 1));
    }

    /// One of the kernels that go over all streams, with a thread to a channel of a token.
    fn over_streams(
        &mut self,
        (label, text): (&'static str, &'static str),
        active: usize,
        has_scale: bool,
        bound: &[&Buffer],
    ) {
        let widths = self.network.program.widths;
        let constants = format!(
            "const STREAMS = {}u;\nconst ACTIVE = {active}u;\nconst SCALE = {has_scale};\n",
            widths.streams
        );
        let kernel = self.network.gpu.kernel_of(label, format!("{label} {constants}"), || constants + text);
        let (streams, x) = (self.buffers.place("streams"), self.buffers.place("x"));
        let stream = widths.hidden.next_multiple_of(GROUP);
        let arguments = [
            widths.hidden,
            self.rows,
            streams.stride,
            stream,
            self.buffers.place("coefficients").stride,
            x.stride,
        ]
        .map(|n| n as u32);
        let grid = Grid::rows((self.rows * widths.hidden).div_ceil(THREADS), 1);
        self.recorder.dispatch(&kernel, bound, &arguments, grid);
    }

    /// Coefficients of what `u` is routed to.
    fn coefficients(&mut self, of: &AltUp, u: Place<'_>, linear: &Linear) {
        let (normed, route) = (self.buffers.place("normed"), self.buffers.place("route"));
        self.norm(
            &of.router_norm,
            u,
            normed,
            NormShape { scale: of.router_scale, ..NormShape::rows(self.rows) },
        );
        // The hyperbolic tangent is a soft cap of one.
        self.linear(&of.router, self.rows, normed, route, Epilogue { cap: Some(1.0), ..Epilogue::STORE });
        self.linear(linear, self.rows, route, self.buffers.place("coefficients"), Epilogue::STORE);
    }

    /// What a layer expects each stream to become; `x` is the active one.
    pub(crate) fn predict(&mut self, of: &AltUp) {
        let buffers = self.buffers;
        self.coefficients(of, self.stream(of.active), &of.prediction);
        let bound = ["coefficients", "streams", "predicted", "x"].map(|name| buffers.place(name).buffer);
        self.over_streams(("predict", include_str!("wgsl/predict.wgsl")), of.active, false, &bound);
    }

    /// All streams after the layer turned its prediction of the active one into `x`, which becomes the first of them.
    pub(crate) fn correct(&mut self, of: &AltUp) {
        let buffers = self.buffers;
        let [x, normed, own, after] = ["x", "normed", "branch", "after"].map(|name| buffers.place(name));
        self.coefficients(of, x, &of.correction);
        let scale = of.output_scale.as_ref();
        let [coefficients, predicted, streams] =
            ["coefficients", "predicted", "streams"].map(|name| buffers.place(name).buffer);
        let bound =
            [coefficients, x.buffer, predicted, scale.unwrap_or(&buffers.plan), streams, normed.buffer];
        let text = ("correct", include_str!("wgsl/correct.wgsl"));
        self.over_streams(text, of.active, scale.is_some(), &bound);
        self.layer_input(&of.input, normed, own, Epilogue::STORE);
        self.norm(&of.input_norm, own, after, NormShape::rows(self.rows));
        let text = ("further", include_str!("wgsl/further.wgsl"));
        self.over_streams(text, of.active, false, &[after.buffer, streams, x.buffer]);
    }

    /// Its own input beside what a low rank makes of it; `x` is another buffer than `y`.
    pub(crate) fn laurel(&mut self, of: &Laurel, x: Place<'_>, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        let [narrow, wide, normed] =
            ["laurel", "laurel out", "laurel normed"].map(|name| buffers.place(name));
        self.linear(&of.left, self.rows, x, narrow, Epilogue::STORE);
        self.linear(&of.right, self.rows, narrow, wide, Epilogue::STORE);
        self.norm(&of.norm, wide, normed, NormShape::rows(self.rows));
        let shape = (self.rows, self.network.program.widths.hidden);
        add(&mut self.recorder, shape, x, normed, (1.0, 1.0));
        add(&mut self.recorder, shape, normed, y, (epilogue.keep, epilogue.scale));
    }
}
