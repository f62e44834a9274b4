//! Gated DeltaNets: linear attention whose state forgets, and corrects what it holds.

use crate::compile::Compiler;
use crate::gates::{GateFunction, GateShape, gate};
use crate::ops::{Norm, NormShape};
use crate::product::Epilogue;
use crate::program::{Linear, Widths};
use crate::run::{Input, Run};
use crate::states::StateKernels;
use crate::weights::Place;
use kvant_model::description::{self, Activation, DecayRate, DeltaDims, DeltaProjection, HeadOrder};
use kvant_model::error::{LoadError, Result};

/// A gated DeltaNet.
pub(crate) struct DeltaNet {
    pub state: StateKernels,
    dims: DeltaDims,
    /// To q, k, v, z, b and a, side by side.
    pub projection: Linear,
    /// Where z is, and from those of one key head to the next's.
    z: (usize, usize),
    norm: Norm,
    output: Linear,
}

impl Compiler<'_> {
    pub(crate) fn delta_net(&self, of: &description::GatedDeltaNet, widths: &mut Widths) -> Result<DeltaNet> {
        let dims = of.dims;
        let DeltaDims { key_heads, value_heads, key_dim, value_dim, .. } = dims;
        let (keys, values, group) = (dims.key_width(), dims.value_width(), value_heads / key_heads);
        let own = group * value_dim;
        // Where q, k, v, z, b and a begin; from one key head to the next of q and k, of v and z, of b and a.
        let (projection, at, steps) = match &of.projection {
            DeltaProjection::Apart { qkv, z, b, a } => {
                let wide = 2 * keys + values;
                let at = [0, keys, 2 * keys, wide, wide + values, wide + values + value_heads];
                (self.linear(&[qkv, z, b, a])?, at, [key_dim, own, group])
            }
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                let step = 2 * (key_dim + own);
                let small = key_heads * step;
                let at = [0, key_dim, 2 * key_dim, 2 * key_dim + own, small, small + group];
                (self.linear(&[qkvz, ba])?, at, [step, step, 2 * group])
            }
        };
        if projection.outputs() != 2 * keys + 2 * values + 2 * value_heads {
            return Err(LoadError::mismatch("a gated DeltaNet whose layers are of other widths"));
        }
        let (channels, shape) = (dims.conv_channels(), dims.state_shape());
        let mut rates = match &of.decay {
            DecayRate::Log(logs) => {
                logs.read(self.checkpoint)?.into_iter().map(|log| -log.exp()).collect::<Vec<f32>>()
            }
            DecayRate::Plain(rates) => rates.read(self.checkpoint)?,
        };
        rates.extend(of.dt_bias.read(self.checkpoint)?);
        if rates.len() != 2 * value_heads {
            return Err(LoadError::mismatch("a gated DeltaNet whose decays are of another number"));
        }
        let [q_at, k_at, v_at, z_at, b_at, a_at] = at;
        let constants = format!(
            "const KEY_HEADS = {key_heads}u;\nconst VALUE_HEADS = {value_heads}u;\nconst KEY_DIM = {key_dim}u;\n\
             const VALUE_DIM = {value_dim}u;\nconst GROUP = {group}u;\nconst TILED = {};\nconst KEY_WIDTH = {keys}u;\n\
             const MOST_DIM = {}u;\nconst Q_AT = {q_at}u;\nconst K_AT = {k_at}u;\nconst V_AT = {v_at}u;\nconst B_AT = {b_at}u;\n\
             const A_AT = {a_at}u;\nconst Q_STEP = {}u;\nconst V_STEP = {}u;\nconst B_STEP = {}u;\nconst DECAY_AT = OTHERS_AT;\n\
             const QK_EPS = {:?}f;\nconst QUERY_SCALE = {:?}f;\nconst KEYS_AT = {channels}u;\nconst U_AT = {}u;\nconst DECAYS_AT = {}u;\n",
            dims.order == HeadOrder::Tiled,
            key_dim.max(value_dim),
            steps[0],
            steps[1],
            steps[2],
            of.qk_eps,
            1.0 / (key_dim as f32).sqrt(),
            channels + keys,
            channels + keys + values,
        );
        let state =
            StateKernels::new(self.gpu, self.checkpoint, (of.slot, shape), &of.conv, (&rates, constants))?;
        widths.projected = widths.projected.max(projection.outputs());
        widths.convolved = widths.convolved.max(channels + 2 * value_heads);
        widths.mixed = widths.mixed.max(values);
        let norm = self.norm(&of.norm)?;
        let output = self.linear(&[&of.output])?;
        Ok(DeltaNet { state, dims, projection, z: (z_at, steps[1]), norm, output })
    }
}

impl Run<'_> {
    pub(crate) fn delta_net(&mut self, of: &DeltaNet, input: Input<'_>, y: Place<'_>, epilogue: Epilogue) {
        let buffers = self.buffers;
        let (projected, convolved) = (buffers.place("projected"), buffers.place("convolved"));
        let (mixed, normed) = (buffers.place("mixed"), buffers.place("mixed normed"));
        self.project(&of.projection, input, projected, None);
        let DeltaDims { key_heads, value_heads, key_dim, value_dim, .. } = of.dims;
        let heads = ("delta_heads", include_str!("wgsl/delta_heads.wgsl"));
        let scan = ("delta_scan", include_str!("wgsl/delta_scan.wgsl"));
        let close = ("delta_close", include_str!("wgsl/delta_close.wgsl"));
        for round in self.state_rounds(&of.state) {
            let all = round.pieces * round.tokens * (2 * key_heads + value_heads);
            self.state_kernel(&of.state, heads, round, (projected, convolved), all);
            self.state_kernel(&of.state, scan, round, (convolved, mixed), round.pieces * value_heads);
            self.close_chunks(&of.state, round, projected, Some((close, value_heads * key_dim)));
        }
        let per_head = of.norm.width == value_dim;
        let segments = if per_head { value_heads } else { 1 };
        let shape =
            NormShape { segments, x_segment: value_dim, y_segment: value_dim, ..NormShape::rows(self.rows) };
        self.norm(&of.norm, mixed, normed, shape);
        let width = value_heads / key_heads * value_dim;
        let gates = GateShape {
            segments: key_heads,
            g_segment: of.z.1,
            y_segment: width,
            ..GateShape::rows(self.rows, width)
        };
        let z = Place { at: projected.at + of.z.0, ..projected };
        gate(&mut self.recorder, GateFunction::Of(Activation::Silu), z, normed, gates);
        self.linear(&of.output, self.rows, normed, y, epilogue);
    }
}
