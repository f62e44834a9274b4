//! A pass through mixers with recurrent state.

use super::{Convolution, Recurrent, ShortConv, THREADS, shared_bytes};
use crate::buffer::Buffer;
use crate::device::Launch;
use crate::mixer_params::{ConvParams, GateNormParams, ScaleParams, StateParams};
use crate::params::Address;
use crate::run::{Run, Target};
use kvant_cache::{StateSlot, StateType};

/// Rows from which on a convolution goes through several at once, so many of them, and its taps then at most (`kernels/recurrent.cu`).
const MANY_ROWS: usize = 64;
const CONVOLVED_ROWS: usize = 8;
const MOST_TAPS: usize = 4;

/// Numbers of a normed group that a warp takes alone, at most (`NARROW_GROUP`).
const NARROW_GROUP: usize = 512;

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
    /// As `kernels/recurrent.cuh` numbers it.
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
            rows: self.plan.rows as i32,
        };
        let is_plain = self.states.state_type == StateType::F32 && of.kernel <= MOST_TAPS;
        let (name, rows) = match self.plan.rows {
            rows if is_plain && rows >= MANY_ROWS => ("convolve_many", rows.div_ceil(CONVOLVED_ROWS)),
            rows => ("convolve", rows),
        };
        self.launch(name, (rows, of.channels.div_ceil(256)), 256, params);
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
            products: b.state_products.address(),
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
            stages: 0,
        };
        self.scan(of, params);
        let groups = of.heads * of.value_dim / of.norm_width;
        let params = GateNormParams {
            x: mixed,
            gates: column(places.gates),
            weight: address(&of.norm),
            y: b.inner.address(),
            width: of.norm_width as i32,
            stride: stride as i32,
            gate_first: of.gate_first.into(),
            eps: of.norm_eps,
            groups: groups as i32,
        };
        let ctas = if of.norm_width <= NARROW_GROUP { groups.div_ceil(8) } else { groups };
        self.launch("gate_norm", (rows, ctas), 256, params);
        self.linear(&of.output, rows, b.inner.address(), to);
    }

    /// Goes through the tokens of all sequences: those that bring many by chunks, where there is room for that, others one by one.
    fn scan(&mut self, of: &Recurrent, params: StateParams) {
        let (long, pieces) = self.states.long;
        let form = of.chunk_form(self.recorder.card().limits().shared).filter(|_| long > 0);
        let first = if form.is_some() { long } else { 0 };
        if let Some(form) = form {
            let params = StateParams { stages: form.stages as i32, ..params };
            let products = self.scan_launch((pieces, of.key_heads), form.products);
            self.recorder.launch(&format!("chunk_products_{}", of.name), products, params);
            let scan = self.scan_launch((of.tiles(), long), form.scan);
            self.recorder.launch(&format!("scan_chunks_{}", of.name), scan, params);
        }
        if self.states.sequences > first {
            let params = StateParams { sequences: params.sequences + 8 * first as u64, ..params };
            let launch =
                self.scan_launch((of.tiles(), self.states.sequences - first), shared_bytes(of.key_dim));
            self.recorder.launch(&format!("scan_{}", of.name), launch, params);
        }
    }

    fn scan_launch(&self, grid: (usize, usize), shared: usize) -> Launch {
        let grid = (grid.0 as u32, grid.1 as u32);
        Launch { grid, threads: THREADS as u32, shared: shared as u32, early: self.early }
    }
}
