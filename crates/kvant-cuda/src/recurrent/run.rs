//! A pass through mixers with recurrent state.

use super::{Convolution, Recurrent, ShortConv, shared_bytes};
use crate::buffer::Buffer;
use crate::device::Launch;
use crate::mixer_params::{ConvParams, GateNormParams, ScaleParams, StateParams};
use crate::params::Address;
use crate::run::{Run, Target};
use kvant_cache::{StateSlot, StateType};

/// What a convolution reads and writes besides its state.
struct Convolving {
    x: Address,
    stride: usize,
    at: usize,
    times_at: Option<usize>,
    gate_at: usize,
    row_width: usize,
    y: Address,
    gated: Address,
    /// Numbers of the slot's state.
    state_count: usize,
}

fn address(buffer: &Option<Buffer>) -> Address {
    buffer.as_ref().map_or(0, Buffer::address)
}

impl Run<'_> {
    /// As `kernels/recurrent.cu` numbers it.
    fn state_type(&self) -> i32 {
        match self.states.state_type {
            StateType::F32 => 0,
            StateType::Bf16 => 1,
            StateType::Int8 => 2,
        }
    }

    fn pieces(&self, slot: StateSlot) -> Address {
        self.at(self.states.pieces_at[&slot.index()])
    }

    pub(crate) fn short_conv(&mut self, of: &ShortConv, to: Target) {
        let (b, rows) = (self.buffers, self.plan.rows);
        let channels = of.conv.channels;
        self.linear(&of.input, rows, b.normed.address(), Target::over(b.projected.address()));
        let conv = Convolving {
            x: b.projected.address(),
            stride: 3 * channels,
            at: 2 * channels,
            times_at: Some(0),
            gate_at: channels,
            row_width: channels,
            y: 0,
            gated: b.inner.address(),
            state_count: of.conv.tail(),
        };
        self.convolve(&of.conv, of.slot, &conv);
        self.linear(&of.output, rows, b.inner.address(), to);
    }

    fn convolve(&mut self, of: &Convolution, slot: StateSlot, on: &Convolving) {
        let params = ConvParams {
            x: on.x,
            taps: of.taps.address(),
            bias: address(&of.bias),
            y: on.y,
            gated: on.gated,
            pages: self.pages,
            pieces: self.pieces(slot),
            piece_of: self.at(self.states.piece_of_at),
            refused: self.refused_at(slot.index(), 0),
            channels: of.channels as i32,
            kernel: of.kernel as i32,
            stride: on.stride as i32,
            at: on.at as i32,
            times_at: on.times_at.map_or(-1, |at| at as i32),
            gate_at: on.gate_at as i32,
            row_width: on.row_width as i32,
            activation: of.activation,
            state_type: self.state_type(),
            state_count: on.state_count as i32,
        };
        self.launch("convolve", (self.plan.rows, of.channels.div_ceil(256)), 256, params);
    }

    pub(crate) fn recurrent(&mut self, of: &Recurrent, to: Target) {
        let (b, rows, places) = (self.buffers, self.plan.rows, of.places);
        let (projected, convolved, mixed) = (b.projected.address(), b.first.address(), b.by_head.address());
        let stride = of.input.outputs();
        self.linear(&of.input, rows, b.normed.address(), Target::over(projected));
        if let Some(scale) = &of.column_scale {
            let params = ScaleParams { x: projected, scale: scale.address(), width: stride as i32 };
            self.launch("scale_columns", (rows, stride.div_ceil(1024)), 256, params);
        }
        let conv = Convolving {
            x: projected,
            stride,
            at: places.input,
            times_at: None,
            gate_at: 0,
            row_width: places.row_width,
            y: convolved,
            gated: 0,
            state_count: of.state_count(),
        };
        self.convolve(&of.conv, of.slot, &conv);
        let column = |at: usize| projected + 4 * at as u64;
        let params = StateParams {
            x: convolved,
            steps: column(places.steps),
            betas: column(places.betas),
            rates: of.rates.address(),
            dt_bias: of.dt_bias.address(),
            skip: address(&of.skip),
            y: mixed,
            pages: self.pages,
            pieces: self.pieces(of.slot),
            sequences: self.at(self.states.sequences_at),
            refused: self.refused_at(of.slot.index(), 0),
            heads: of.heads as i32,
            key_heads: of.key_heads as i32,
            tiled: of.tiled.into(),
            key_dim: of.key_dim as i32,
            value_dim: of.value_dim as i32,
            channels: of.conv.channels as i32,
            stride: stride as i32,
            query_at: places.query as i32,
            key_at: places.key as i32,
            value_at: places.value as i32,
            row_width: places.row_width as i32,
            row_keys: places.row_keys as i32,
            row_values: places.row_values as i32,
            row_decay: places.row_decay as i32,
            state_at: of.conv.tail() as i32,
            qk_eps: of.qk_eps,
            least: of.dt_limit.0,
            most: of.dt_limit.1,
            state_type: self.state_type(),
            state_count: of.state_count() as i32,
        };
        let launch = Launch {
            grid: (of.heads as u32, self.states.sequences as u32),
            threads: super::THREADS as u32,
            shared: shared_bytes(of.key_dim, of.value_dim) as u32,
            early: self.early,
        };
        self.recorder.launch(of.name, launch, params);
        let params = GateNormParams {
            x: mixed,
            gates: column(places.gates),
            weight: address(&of.norm),
            y: b.inner.address(),
            width: of.norm_width as i32,
            stride: stride as i32,
            gate_first: of.gate_first.into(),
            eps: of.norm_eps,
        };
        self.launch("gate_norm", (rows, of.heads * of.value_dim / of.norm_width), 256, params);
        self.linear(&of.output, rows, b.inner.address(), to);
    }
}
