//! A pass through the blocks of a layer: what they read of the stream, how they are added up, and inputs of each layer's own.

use crate::buffer::Buffer;
use crate::device::Launch;
use crate::mixer_params::{
    HalfParams, InputGateParams, LayerInputParams, LayerNormParams, MixParams, PositionParams,
};
use crate::params::{Address, EmbedParams, NormParams};
use crate::program::{Block, Branch, Input, LayerInput, Mixer, Norm};
use crate::run::{Activations, Run, Target};

impl Run<'_> {
    /// `x = scale · (keep · x + after(Σ branches))`.
    pub(crate) fn block(&mut self, of: &Block) {
        let (x, sum, branch) =
            (self.buffers.x.address(), self.buffers.sum.address(), self.buffers.branch.address());
        if of.is_plain() {
            self.plain_block(of);
            if of.scale != 1.0 {
                self.mix(None, 0, x, (1.0, of.scale));
            }
            return;
        }
        for (index, own) in of.branches.iter().enumerate() {
            let read = self.input(&own.input, &own.mixer);
            let (accumulate, keep) = (index > 0, if index > 0 { 1.0 } else { 0.0 });
            match &own.after {
                None => self.mixer(&own.mixer, read, Target { address: sum, accumulate }),
                Some(after) => {
                    self.mixer(&own.mixer, read, Target::over(branch));
                    self.mix(Some(after), branch, sum, (keep, 1.0));
                }
            }
        }
        self.mix(of.after.as_ref(), sum, x, (of.keep, of.scale));
    }

    /// `x += after(mixer(input))`.
    fn plain_block(&mut self, of: &Block) {
        let [Branch { input, mixer, after }] = &of.branches[..] else { return };
        let (x, rows) = (self.buffers.x.address(), self.plan.rows);
        let read = self.input(input, mixer);
        let Some(after) = after.as_ref().or(of.after.as_ref()) else {
            return self.mixer(mixer, read, Target { address: x, accumulate: true });
        };
        let to = Target::over(self.buffers.branch.address());
        self.mixer(mixer, read, to);
        let (channels, weight) = (self.program.widths.hidden as i32, after.weight.address());
        let params = NormParams { x: to.address, weight, y: x, channels, eps: after.eps };
        self.launch("norm_add", (rows, 1), 512, params);
    }

    fn mixer(&mut self, of: &Mixer, read: Activations, to: Target) {
        match of {
            Mixer::Attention(of) => self.attention(of, read, to),
            Mixer::Latent(of) => self.latent_attention(of, to),
            Mixer::Mlp(of) => self.mlp(of, read, to),
            Mixer::Experts(of) => self.moe(of, to),
            Mixer::ShortConv(of) => self.short_conv(of, to),
            Mixer::Recurrent(of) => self.recurrent(of, to),
            Mixer::LayerInput(of) => self.layer_input(of, to),
            Mixer::Laurel(of) => self.laurel(of, to),
        }
    }

    /// y = scale · (keep · y + norm(x)).
    fn mix(&mut self, norm: Option<&Norm>, x: Address, y: Address, (keep, scale): (f32, f32)) {
        let channels = self.program.widths.hidden as i32;
        let (weight, eps) = norm.map_or((0, 0.0), |norm| (norm.weight.address(), norm.eps));
        let params = MixParams { x, weight, y, channels, eps, keep, scale };
        self.launch("mix_rows", (self.plan.rows, 1), 512, params);
    }

    /// What a mixer reads: in `normed`, or the stream itself where its product norms it.
    fn input(&mut self, of: &Input, mixer: &Mixer) -> Activations {
        let (x, rows) = (self.buffers.x.address(), self.plan.rows);
        match of {
            Input::Normed(norm) => {
                let own = mixer.reader().and_then(|reader| self.normed_row(norm, x, reader));
                if let Some(own) = own {
                    return own;
                }
                self.norm(norm, x, rows);
            }
            Input::Plain(scale) => self.halves(x, *scale),
        }
        self.buffers.normed.address().into()
    }

    /// Rows of the stream's width as f16, into `normed`.
    fn halves(&mut self, x: Address, scale: f32) {
        self.rows_as_f16((x, self.buffers.normed.address()), self.program.widths.hidden, scale);
    }

    /// (rows, channels) f32 to f16, times `scale`.
    pub(crate) fn rows_as_f16(&mut self, (x, y): (Address, Address), channels: usize, scale: f32) {
        let params = HalfParams { x, y, channels: channels as i32, scale };
        self.launch("to_half", (self.plan.rows, channels.div_ceil(1024)), 256, params);
    }

    /// Norms rows of the stream into `normed`.
    pub(crate) fn norm(&mut self, of: &Norm, x: Address, rows: usize) {
        let (hidden, y) = (self.program.widths.hidden, self.buffers.normed.address());
        let Some(bias) = &of.layer else { return self.norm_rows(of, (x, y), hidden, rows) };
        let bias = bias.as_ref().map_or(0, Buffer::address);
        let (weight, channels) = (of.weight.address(), hidden as i32);
        let params = LayerNormParams { x, weight, bias, y, channels, eps: of.eps };
        self.launch("layer_norm", (rows, 1), 512, params);
    }

    /// Token ids to the first activations, positions added, and inputs of all layers. Its first kernel is that of a pass, and waits for all
    /// before it.
    pub(crate) fn embed(&mut self) {
        let (program, b, rows) = (self.program, self.buffers, self.plan.rows);
        let launch = Launch { grid: (rows as u32, 1), threads: 256, shared: 0, early: false };
        let mut gather = |table: &crate::matrix::Matrix, ids: Address, out: Address, scale: f32| {
            let (weights, channels) = (table.address(), table.channels as i32);
            let params = EmbedParams { weights, ids, out, channels, scale: scale * table.scale };
            self.recorder.launch(&format!("embed_{}", table.kind.name()), launch, params);
        };
        let at = |offset: u64| b.plan.address() + offset;
        gather(&program.embedding, at(self.plan.ids_at), b.x.address(), program.embedding_scale);
        if let Some(inputs) = &program.layer_inputs {
            gather(&inputs.table, at(self.plan.layer_ids_at), b.layer_table.address(), inputs.table_scale);
        }
        if let Some(table) = &program.positions {
            let channels = program.widths.hidden as i32;
            let (x, table, positions) = (b.x.address(), table.address(), at(self.plan.positions_at));
            self.launch("add_positions", (rows, 1), 256, PositionParams { x, table, positions, channels });
        }
        self.open_inputs();
        if let Some(streams) = &program.streams {
            self.open_streams(streams);
        }
    }

    /// Inputs of all layers, of models that have them.
    fn open_inputs(&mut self) {
        let (program, b, rows) = (self.program, self.buffers, self.plan.rows);
        let Some(inputs) = &program.layer_inputs else { return };
        self.halves(b.x.address(), 1.0);
        let own = b.layer_inputs.address();
        self.linear(&inputs.projection, rows, b.normed.address(), Target::over(own));
        let params = LayerInputParams {
            x: own,
            table: b.layer_table.address(),
            weight: inputs.norm.weight.address(),
            layers: (program.widths.layer_inputs / inputs.width) as i32,
            width: inputs.width as i32,
            eps: inputs.norm.eps,
            scale: inputs.scale,
        };
        self.launch("layer_inputs", (rows, program.widths.layer_inputs / inputs.width), 128, params);
    }

    pub(crate) fn layer_input(&mut self, of: &LayerInput, to: Target) {
        let (b, rows, width) = (self.buffers, self.plan.rows, of.gate.outputs());
        self.linear(&of.gate, rows, b.normed.address(), Target::over(b.first.address()));
        let params = InputGateParams {
            gates: b.first.address(),
            inputs: b.layer_inputs.address() + (4 * of.layer * width) as u64,
            y: b.inner.address(),
            width: width as i32,
            stride: self.program.widths.layer_inputs as i32,
            activation: of.activation,
        };
        self.launch("gate_inputs", (rows, 1), 128, params);
        self.linear(&of.output, rows, b.inner.address(), to);
    }
}
