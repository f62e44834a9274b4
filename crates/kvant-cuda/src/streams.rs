//! Several residual streams side by side (Gemma 3n): AltUp, LAuReL beside attention, and how streams are opened and joined.
//!
//! The stream that blocks change is the one of every model; the others lie beside it, (streams, rows, hidden) f32. Coefficients are small
//! and stay f32.

use crate::buffer::Buffer;
use crate::compile::{Compiler, check_norm};
use crate::matrix::on_card;
use crate::mixer_params::{AddStreamsParams, AltUpParams, LaurelParams, LikeParams, MeanParams};
use crate::program::{LayerInput, Linear, Norm, Widths};
use crate::run::{Run, Target};
use kvant_model::description::{self, Description};
use kvant_model::error::{LoadError, Result};

/// Streams that `kernels/streams.cu` has room for.
const MOST: usize = 8;

/// How streams are opened and joined.
pub(crate) struct Streams {
    pub open: Vec<Linear>,
    pub join: Vec<Linear>,
}

impl Streams {
    /// All of them, the first too.
    pub(crate) fn count(&self) -> usize {
        1 + self.open.len()
    }

    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.open.iter().chain(&self.join).map(Linear::bytes).sum()
    }
}

/// A layer over several streams.
pub(crate) struct AltUp {
    active: usize,
    /// (streams, hidden), (streams · streams, streams), (streams, streams).
    router: Buffer,
    prediction: Buffer,
    correction: Buffer,
    /// With the router's multiplier.
    router_norm: Norm,
    input_norm: Norm,
    output_scale: Option<Buffer>,
    pub input: LayerInput,
}

/// A linear layer of low rank around which its input is added.
pub(crate) struct Laurel {
    pub left: Linear,
    pub right: Linear,
    norm: Norm,
    scale: f32,
}

/// What of a model's streams does not run.
pub(crate) fn check_streams(of: &Description) -> std::result::Result<(), String> {
    let Some(streams) = &of.embedding.streams else {
        return match of.layers.iter().any(|layer| layer.altup.is_some()) {
            true => Err("layers over streams that nobody opened".to_owned()),
            false => Ok(()),
        };
    };
    let count = 1 + streams.open.len();
    if count > MOST || streams.join.len() != streams.open.len() {
        return Err(format!("{count} residual streams, where {MOST} are the most"));
    }
    for layer in &of.layers {
        let Some(altup) = &layer.altup else {
            return Err("a layer over one stream beside others".to_owned());
        };
        let rows = [&altup.router, &altup.prediction, &altup.correction].map(|linear| linear.outputs());
        if altup.active >= count || rows != [count, count * count, count] {
            return Err(format!(
                "coefficients of {} streams, where there are {count}",
                altup.router.outputs()
            ));
        }
        check_norm(&altup.router_norm, of.hidden)?;
        check_norm(&altup.input_norm, of.hidden)?;
    }
    Ok(())
}

impl Compiler<'_> {
    pub(crate) fn streams(&self, of: &description::Streams) -> Result<Streams> {
        let all = |layers: &[description::Linear]| {
            layers.iter().map(|layer| self.linear(&[layer], 1.0)).collect::<Result<Vec<_>>>()
        };
        Ok(Streams { open: all(&of.open)?, join: all(&of.join)? })
    }

    /// The numbers of a small layer, (outputs, inputs).
    fn coefficients(&self, of: &description::Linear) -> Result<Buffer> {
        let numbers = self.matrix_numbers(&of.weight)?;
        if of.bias.is_some() || numbers.len() != of.outputs() * of.inputs() {
            return Err(LoadError::mismatch("coefficients of streams with a bias, or of another size"));
        }
        Buffer::of_floats(self.card(), &numbers).map_err(on_card)
    }

    pub(crate) fn altup(&self, of: &description::AltUp, widths: &mut Widths) -> Result<AltUp> {
        Ok(AltUp {
            active: of.active,
            router: self.coefficients(&of.router)?,
            prediction: self.coefficients(&of.prediction)?,
            correction: self.coefficients(&of.correction)?,
            router_norm: self.norm(&of.router_norm, of.router_scale)?,
            input_norm: self.norm(&of.input_norm, 1.0)?,
            output_scale: of.output_scale.as_ref().map(|scale| self.floats(scale, 1.0)).transpose()?,
            input: self.layer_input(&of.input, widths, 1.0)?,
        })
    }

    /// Of a branch with this multiplier.
    pub(crate) fn laurel(&self, of: &description::Laurel, widths: &mut Widths, scale: f32) -> Result<Laurel> {
        let (left, right) = (self.linear(&[&of.left], 1.0)?, self.linear(&[&of.right], 1.0)?);
        widths.first = widths.first.max(left.outputs()).max(right.outputs());
        widths.inner = widths.inner.max(left.outputs());
        Ok(Laurel { left, right, norm: self.norm(&of.norm, 1.0)?, scale })
    }
}

impl Run<'_> {
    fn stream(&self, index: usize) -> u64 {
        let row = 4 * self.program.widths.hidden as u64;
        self.buffers.streams.address() + index as u64 * self.plan.rows as u64 * row
    }

    /// All streams, from the embedding.
    pub(crate) fn open_streams(&mut self, of: &Streams) {
        let (b, channels, rows) = (self.buffers, self.program.widths.hidden, self.plan.rows);
        self.rows_as_f16((b.x.address(), b.normed.address()), channels, 1.0);
        let first =
            MeanParams { streams: b.x.address(), x: self.stream(0), count: 1, channels: channels as i32 };
        self.launch("mean_streams", (rows, 1), 512, first);
        for (index, open) in of.open.iter().enumerate() {
            let stream = self.stream(1 + index);
            self.linear(open, rows, b.normed.address(), Target::over(stream));
            self.rescale(stream, b.x.address());
        }
    }

    /// What the head gets, into the stream of every model.
    pub(crate) fn join_streams(&mut self, of: &Streams) {
        let (b, channels, rows) = (self.buffers, self.program.widths.hidden, self.plan.rows);
        for (index, join) in of.join.iter().enumerate() {
            let stream = self.stream(1 + index);
            self.rows_as_f16((stream, b.normed.address()), channels, 1.0);
            self.linear(join, rows, b.normed.address(), Target::over(stream));
            self.rescale(stream, self.stream(0));
        }
        let (streams, count) = (self.stream(0), of.count() as i32);
        let params = MeanParams { streams, x: b.x.address(), count, channels: channels as i32 };
        self.launch("mean_streams", (rows, 1), 512, params);
    }

    fn rescale(&mut self, x: u64, to: u64) {
        let channels = self.program.widths.hidden as i32;
        let least = description::Streams::LEAST_MEAN_SQUARE;
        self.launch("rescale_like", (self.plan.rows, 1), 512, LikeParams { x, to, channels, least });
    }

    fn altup_params(&self, of: &AltUp, coefficients: &Buffer) -> AltUpParams {
        AltUpParams {
            streams: self.stream(0),
            x: self.buffers.x.address(),
            norm: of.router_norm.weight.address(),
            router: of.router.address(),
            coefficients: coefficients.address(),
            output_scale: of.output_scale.as_ref().map_or(0, Buffer::address),
            y: self.buffers.normed.address(),
            count: self.program.streams.as_ref().map_or(1, Streams::count) as i32,
            active: of.active as i32,
            channels: self.program.widths.hidden as i32,
            eps: of.router_norm.eps,
        }
    }

    /// Before the blocks of a layer: all streams become what it expects of them.
    pub(crate) fn predict(&mut self, of: &AltUp) {
        self.launch("predict_streams", (self.plan.rows, 1), 512, self.altup_params(of, &of.prediction));
    }

    /// After the blocks of a layer: what they changed corrects all streams.
    pub(crate) fn correct(&mut self, of: &AltUp) {
        let params = self.altup_params(of, &of.correction);
        self.launch("correct_streams", (self.plan.rows, 1), 512, params);
        let own = self.buffers.branch.address();
        self.layer_input(&of.input, Target::over(own));
        let params = AddStreamsParams {
            x: own,
            weight: of.input_norm.weight.address(),
            streams: params.streams,
            count: params.count,
            channels: params.channels,
            eps: of.input_norm.eps,
        };
        self.launch("add_to_streams", (self.plan.rows, 1), 512, params);
    }

    pub(crate) fn laurel(&mut self, of: &Laurel, to: Target) {
        let (b, rows) = (self.buffers, self.plan.rows);
        self.linear(&of.left, rows, b.normed.address(), Target::over(b.first.address()));
        self.rows_as_f16((b.first.address(), b.inner.address()), of.left.outputs(), 1.0);
        self.linear(&of.right, rows, b.inner.address(), Target::over(b.first.address()));
        let params = LaurelParams {
            x: b.first.address(),
            input: b.normed.address(),
            weight: of.norm.weight.address(),
            y: to.address,
            channels: of.right.outputs() as i32,
            accumulate: to.accumulate.into(),
            eps: of.norm.eps,
            scale: of.scale,
        };
        self.launch("add_laurel", (rows, 1), 512, params);
    }
}
