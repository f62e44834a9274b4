//! Mamba-2 state space models.

use crate::compile::Compiler;
use crate::gates::{GateFunction, GateShape, gate};
use crate::ops::{Norm, NormShape};
use crate::product::Epilogue;
use crate::program::{Linear, Widths};
use crate::run::{Input, Run};
use crate::states::StateKernels;
use crate::weights::Place;
use kvant_model::description::{self, Activation, DecayRate, GateOrder, Mamba2Dims, NormKind};
use kvant_model::error::{LoadError, Result};

/// A Mamba-2 mixer.
pub(crate) struct Mamba2 {
    pub state: StateKernels,
    dims: Mamba2Dims,
    /// To z, x, B, C and dt, side by side.
    pub input: Linear,
    z_scale: f32,
    /// A norm of groups of channels, whose weights follow each other, and whether it comes before the gate.
    norm: Option<(Norm, GateOrder)>,
    output: Linear,
}

impl Compiler<'_> {
    pub(crate) fn mamba2(&self, of: &description::Mamba2, widths: &mut Widths) -> Result<Mamba2> {
        let dims = of.dims;
        let Mamba2Dims { heads, head_dim, groups, state, .. } = dims;
        let (inner, channels, shape) = (dims.inner(), dims.conv_channels(), dims.state_shape());
        let input = self.linear(&[&of.input])?;
        let mut numbers = of.dt_bias.read(self.checkpoint)?;
        numbers.extend(match &of.decay {
            DecayRate::Log(logs) => {
                logs.read(self.checkpoint)?.into_iter().map(|log| -log.exp()).collect::<Vec<f32>>()
            }
            DecayRate::Plain(rates) => rates.read(self.checkpoint)?,
        });
        numbers.extend(of.skip.read(self.checkpoint)?);
        if input.outputs() != dims.projected() || numbers.len() != 3 * heads {
            return Err(LoadError::mismatch("a Mamba-2 mixer whose weights are of other widths"));
        }
        let [z_scale, x_scale, b_scale, c_scale, dt_scale] = of.part_scales;
        let (least, most) = of.dt_limit.unwrap_or_default();
        let constants = format!(
            "const HEADS = {heads}u;\nconst HEAD_DIM = {head_dim}u;\nconst GROUPS = {groups}u;\nconst STATE = {state}u;\n\
             const INNER = {inner}u;\nconst X_SCALE = {x_scale:?}f;\nconst B_SCALE = {b_scale:?}f;\nconst C_SCALE = {c_scale:?}f;\n\
             const DT_SCALE = {dt_scale:?}f;\nconst LIMITED = {};\nconst DT_LEAST = {:?}f;\nconst DT_MOST = {:?}f;\nconst DT_AT = OTHERS_AT;\n\
             const INPUTS_AT = {channels}u;\nconst B_AT = {}u;\nconst DECAYS_AT = {}u;\n",
            of.dt_limit.is_some(),
            least,
            most.min(f32::MAX),
            channels + inner,
            channels + inner + groups * state,
        );
        let kernels =
            StateKernels::new(self.gpu, self.checkpoint, (of.slot, shape), &of.conv, (&numbers, constants))?;
        let norm = of.norm.as_ref().map(|norm| {
            let weight = norm.weight.read(self.checkpoint)?;
            if norm.width == 0 || weight.len() != inner || !inner.is_multiple_of(norm.width) {
                return Err(LoadError::mismatch(format!("a norm of {} in {inner} channels", norm.width)));
            }
            let own = Norm::new(self.gpu, NormKind::Rms, norm.width, Some(&weight), None, norm.eps);
            Ok((own, norm.order))
        });
        widths.projected = widths.projected.max(input.outputs());
        widths.convolved = widths.convolved.max(channels + heads);
        widths.mixed = widths.mixed.max(inner);
        let (norm, output) = (norm.transpose()?, self.linear(&[&of.output])?);
        Ok(Mamba2 { state: kernels, dims, input, z_scale, norm, output })
    }
}

impl Run<'_> {
    pub(crate) fn mamba2(&mut self, of: &Mamba2, input: Input<'_>, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        let (projected, convolved) = (buffers.place("projected"), buffers.place("convolved"));
        let (mixed, normed) = (buffers.place("mixed"), buffers.place("mixed normed"));
        self.project(&of.input, input, projected, None);
        let (inner, channels) = (of.dims.inner(), of.dims.conv_channels());
        let heads = ("mamba_heads", include_str!("wgsl/mamba_heads.wgsl"));
        let scan = ("mamba_scan", include_str!("wgsl/mamba_scan.wgsl"));
        let close = ("mamba_close", include_str!("wgsl/mamba_close.wgsl"));
        for round in self.state_rounds(&of.state) {
            let all = round.pieces * round.tokens * channels.div_ceil(64);
            self.state_kernel(&of.state, heads, round, (projected, convolved), all);
            self.state_kernel(&of.state, scan, round, (convolved, mixed), round.pieces * of.dims.heads);
            self.close_chunks(&of.state, round, projected, Some((close, inner)));
        }
        let gates = GateShape { scale: of.z_scale, ..GateShape::rows(self.rows, inner) };
        let silu = GateFunction::Of(Activation::Silu);
        let out = match &of.norm {
            Some((norm, order)) => {
                let shape = NormShape {
                    segments: inner / norm.width,
                    x_segment: norm.width,
                    y_segment: norm.width,
                    weight_segment: norm.width,
                    ..NormShape::rows(self.rows)
                };
                if *order == GateOrder::GateFirst {
                    gate(&mut self.recorder, silu, projected, mixed, gates);
                }
                self.norm(norm, mixed, normed, shape);
                if *order == GateOrder::NormFirst {
                    gate(&mut self.recorder, silu, projected, normed, gates);
                }
                normed
            }
            None => {
                gate(&mut self.recorder, silu, projected, mixed, gates);
                mixed
            }
        };
        self.linear(&of.output, self.rows, out, y, epilogue);
    }
}
