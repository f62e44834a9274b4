//! A pass under way: the blocks of a program noted one after another.

use crate::attend::{Attend, MANY_ROWS, encode};
use crate::buffer::Buffer;
use crate::cache::{LayoutPages, SlotPages};
use crate::device::{CudaGpu, Launch, OpenError};
use crate::general::GeneralBuffers;
use crate::matrix::Matrix;
use crate::mixer_params::{CutParams, HeadGateParams, SpanParams};
use crate::params::{
    ActivateParams, Address, AppendParams, AppendTurnParams, BiasParams, ColumnsParams, GatherParams,
    NormParams, StrictParams, TurnParams,
};
use crate::pass::{PassPlan, SLICE, SlicePlan, slot_pages};
use crate::product::{ProductForm, SEGMENT_SUMS};
use crate::product_params::{LinearParams, SegmentsParams, WideParams};
use crate::program::{Activating, Attention, Linear, Mixer, Mlp, Norm, Program, Widths};
use crate::recorder::Recorder;
use crate::recurrent::StatePlan;
use crate::step::Generation;
use crate::tables::PageTables;
use crate::top::OutLayout;
use kvant_cache::{KvSlot, Slots};
use kvant_device::HeadPlaces;
use kvant_model::description::{NormPlace, Rope};
use std::sync::Arc;

/// Activations of a pass, and what its kernels share.
pub(crate) struct PassBuffers {
    pub generation: Generation,
    pub rows: usize,
    /// The residual stream, (rows, hidden) f32.
    pub x: Buffer,
    /// (rows, hidden) f16.
    pub normed: Buffer,
    /// (rows, queries ‖ keys ‖ values) f32.
    pub projected: Buffer,
    /// (rows, heads, dim) f16.
    pub queries: Buffer,
    pub attended: Buffer,
    /// The same in the basis of a plan's keys, and (rows, heads) f32: their products with the keys' means.
    pub turned: Buffer,
    bias: Buffer,
    /// What attention over pages of any codec has besides.
    pub general: GeneralBuffers,
    /// What matrices of every head give, (heads, rows, channels) f32.
    pub by_head: Buffer,
    /// (rows, gates ‖ ups) f32.
    pub first: Buffer,
    /// (rows, inner) f16.
    pub inner: Buffer,
    /// Columns of one part of a product, (rows, columns) f32.
    columns: Buffer,
    /// Sums of segments that are added up by a kernel of their own, (segments, tokens, rows) f32.
    segments: Buffer,
    /// Rows whose logits are wanted, (rows, hidden) f32.
    picked: Buffer,
    /// What a block gave before the norm after it, (rows, hidden) f32, and the sum of blocks side by side.
    pub branch: Buffer,
    pub sum: Buffer,
    /// All residual streams of a model with several, (streams, rows, hidden) f32.
    pub streams: Buffer,
    /// Inputs of all layers, (rows, layers, width) f32, and their rows of the table.
    pub layer_inputs: Buffer,
    pub layer_table: Buffer,
    /// Products of keys of the chunks of a pass (`kernels/recurrent_chunks.cu`).
    pub state_products: Buffer,
    /// What a router reads where it is not what experts read, (rows, hidden) f16.
    pub router_input: Buffer,
    /// Mixtures of experts: logits (rows, experts); chosen experts and their shares (rows, chosen); by place in the order of experts
    /// (pairs): where pairs went, where they came from, their experts; groups of them.
    pub router: Buffer,
    pub chosen: Buffer,
    pub shares: Buffer,
    pub places: Buffer,
    pub sources: Buffer,
    pub owners: Buffer,
    pub groups: Buffer,
    /// (pairs, gates ‖ ups) f32, (pairs, inner) f16, (pairs, hidden) f32.
    pub expert_first: Buffer,
    pub expert_inner: Buffer,
    pub expert_out: Buffer,
    /// Partial sums of attention, and their maxima and masses.
    pub part_o: Buffer,
    pub part_ml: Buffer,
    pub plan: Buffer,
    /// Keys of two rounds of a ranking, in turns.
    pub ranks: [Buffer; 2],
    /// What goes to the host, of a slice of wanted rows: rankings, marks of numbers that cannot be stored (two for each slot), logits f32.
    pub out: Buffer,
    pub layout: OutLayout,
}

impl PassBuffers {
    pub(crate) fn new(
        card: &Arc<CudaGpu>,
        widths: &Widths,
        slots: usize,
        rows: usize,
    ) -> Result<PassBuffers, OpenError> {
        let buffer = |width: usize, bytes: usize| Buffer::new(card, (rows * width * bytes).max(16));
        let (experts, chosen) = (widths.experts, widths.chosen);
        let groups = crate::product::GroupForm::of(rows * chosen, experts);
        let layout = OutLayout::new(slots);
        let out = Buffer::new(card, layout.logits + 4 * rows.min(SLICE) * widths.vocabulary)?;
        Ok(PassBuffers {
            generation: Generation::new(),
            rows,
            x: buffer(widths.hidden, 4)?,
            normed: buffer(widths.hidden, 2)?,
            projected: buffer(widths.projected, 4)?,
            queries: buffer(widths.queries, 2)?,
            attended: buffer(widths.queries, 2)?,
            turned: buffer(widths.queries, 2)?,
            bias: buffer(widths.queries.div_ceil(64), 4)?,
            general: GeneralBuffers::new(card)?,
            by_head: buffer(widths.by_head, 4)?,
            first: buffer(widths.first, 4)?,
            inner: buffer(widths.inner, 2)?,
            columns: buffer(widths.projected.max(widths.first), 4)?,
            segments: Buffer::new(card, if card.limits().wide { SEGMENT_SUMS } else { 16 })?,
            picked: buffer(widths.hidden, 4)?,
            branch: buffer(widths.hidden, 4)?,
            sum: buffer(widths.hidden, 4)?,
            streams: buffer(widths.streams * widths.hidden, 4)?,
            layer_inputs: buffer(widths.layer_inputs, 4)?,
            layer_table: buffer(widths.layer_inputs, 4)?,
            state_products: Buffer::new(card, 0)?,
            router_input: buffer(widths.hidden, 2)?,
            router: buffer(experts, 4)?,
            chosen: buffer(chosen, 4)?,
            shares: buffer(chosen, 4)?,
            places: buffer(chosen, 4)?,
            sources: buffer(chosen, 4)?,
            owners: buffer(chosen, 4)?,
            groups: Buffer::new(card, 16 * (experts + groups.pairs / 8 + 1))?,
            expert_first: buffer(chosen * widths.expert_first, 4)?,
            expert_inner: buffer(chosen * widths.expert_inner, 2)?,
            expert_out: buffer(chosen * widths.hidden, 4)?,
            part_o: Buffer::new(card, 1 << 20)?,
            part_ml: Buffer::new(card, 1 << 16)?,
            plan: Buffer::new(card, 1 << 16)?,
            ranks: [Buffer::new(card, 0)?, Buffer::new(card, 0)?],
            out,
            layout,
        })
    }
}

impl PassBuffers {
    /// Where memory lies that is made larger by itself.
    pub(crate) fn growing(&self) -> impl Iterator<Item = Address> {
        let general = &self.general;
        let made = [&general.tiles, &general.queries, &general.bias, &general.encode];
        let [first, second] = &self.ranks;
        let own = [&self.part_o, &self.part_ml, &self.plan, &self.state_products, first, second];
        own.into_iter().chain(made).map(Buffer::address)
    }
}

/// Makes a buffer larger if it has to be.
pub(crate) fn fit(card: &Arc<CudaGpu>, buffer: &mut Buffer, bytes: usize) -> Result<(), OpenError> {
    if buffer.bytes() < bytes {
        *buffer = Buffer::new(card, bytes.next_power_of_two())?;
    }
    Ok(())
}

/// Where the rows of a product go.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    pub address: Address,
    /// Whether they are added to what is there.
    pub accumulate: bool,
}

impl Target {
    pub(crate) fn over(address: Address) -> Target {
        Target { address, accumulate: false }
    }
}

/// What a product reads.
#[derive(Clone, Copy)]
pub(crate) struct Activations {
    /// (tokens, channels) f16; before a norm one row of f32.
    pub address: Address,
    /// Weights and eps of an RMS norm that they go through first.
    pub norm: Option<(Address, f32)>,
}

impl From<Address> for Activations {
    fn from(address: Address) -> Activations {
        Activations { address, norm: None }
    }
}

/// A pass.
pub(crate) struct Run<'a> {
    pub program: &'a Program,
    pub ropes: &'a [Rope],
    pub slots: &'a Slots,
    pub buffers: &'a PassBuffers,
    pub pages: Address,
    pub layout: &'a LayoutPages,
    pub tables: &'a PageTables,
    pub plan: &'a PassPlan,
    pub states: &'a StatePlan,
    /// Whether kernels may begin before those before them have ended.
    pub early: bool,
    /// Whether products take the norm before them along.
    pub fused: bool,
    pub recorder: Recorder<'a>,
}

impl Run<'_> {
    pub(crate) fn at(&self, offset: u64) -> Address {
        self.buffers.plan.address() + offset
    }

    pub(crate) fn launch<P: Copy>(&mut self, name: &str, grid: (usize, usize), threads: u32, params: P) {
        let launch = Launch { grid: (grid.0 as u32, grid.1 as u32), threads, shared: 0, early: self.early };
        self.recorder.launch(name, launch, params);
    }

    /// Norms (rows, channels) f32 to f16.
    pub(crate) fn norm_rows(&mut self, of: &Norm, (x, y): (Address, Address), channels: usize, rows: usize) {
        let (weight, channels) = (of.weight.address(), channels as i32);
        self.launch("rms_norm", (rows, 1), 512, NormParams { x, weight, y, channels, eps: of.eps });
    }

    /// The row of a pass of one row through a norm, for a product that can do that itself.
    pub(crate) fn normed_row(&self, norm: &Norm, x: Address, reader: &Linear) -> Option<Activations> {
        let [matrix] = &reader.parts[..] else { return None };
        let fits =
            ProductForm::normed((matrix.rows, matrix.channels), self.recorder.card().limits()).is_some();
        let is_own = self.fused && self.plan.rows == 1 && norm.layer.is_none() && fits;
        is_own.then(|| Activations { address: x, norm: Some((norm.weight.address(), norm.eps)) })
    }

    pub(crate) fn mlp(&mut self, of: &Mlp, x: Activations, to: Target) {
        let b = self.buffers;
        let rows = self.plan.rows;
        if of.first.gating.is_some() {
            self.linear(&of.first, rows, x, Target::over(b.inner.address()));
        } else {
            self.linear(&of.first, rows, x, Target::over(b.first.address()));
            self.activate(of.activating, of.inner, rows, b.first.address(), b.inner.address());
        }
        self.linear(&of.down, rows, b.inner.address(), to);
    }

    /// y (rows, channels) f16 of the inner values of an MLP.
    pub(crate) fn activate(
        &mut self,
        by: Activating,
        channels: usize,
        rows: usize,
        inner: Address,
        y: Address,
    ) {
        let Activating { activation, gated, gate_scale, limit, alpha, sparsity } = by;
        let (channels, gated) = (channels as i32, gated.into());
        if let Some(deviations) = sparsity {
            let stride = by.inputs() as i32 * channels;
            self.launch("cut_gates", (rows, 1), 512, CutParams { x: inner, channels, stride, deviations });
        }
        let params = ActivateParams { inner, y, channels, activation, gated, gate_scale, limit, alpha };
        self.launch("activate_rows", (rows, (channels as usize).div_ceil(1024)), 256, params);
    }

    pub(crate) fn attention(&mut self, of: &Attention, x: Activations, to: Target) {
        let b = self.buffers;
        let rows = self.plan.rows;
        if let Some(folded) = &of.folded {
            return self.folded_attention(of, folded, to);
        }
        self.linear(&of.projection, rows, x, Target::over(b.projected.address()));
        let Some(slot) = slot_pages(self.layout, self.slots.owner(of.slot)) else { return };
        let (places, stride) = (of.places(), of.projection.outputs());
        let keys = places.keys_values.map_or(0, |[keys, _]| keys.at);
        for (norm, (at, heads)) in of.whole_norms.iter().zip([(0, of.heads), (keys, of.kv_heads)]) {
            if let Some(norm) = norm {
                let params = SpanParams {
                    x: b.projected.address(),
                    weight: norm.weight.address(),
                    stride: stride as i32,
                    at: at as i32,
                    width: (heads * of.dim) as i32,
                    eps: norm.eps,
                };
                self.launch("norm_span", (rows, 1), 512, params);
            }
        }
        self.append(of, slot);
        // A page that is closed by a chunk may be read as bytes by its later tokens.
        if !self.plan.is_step && !of.is_view() {
            self.strictly(of, slot, &format!("pad_d{}", slot.dim));
            self.encode(of, slot);
            self.strictly(of, slot, &format!("decode_{}_d{}", slot.codec, slot.dim));
        }
        let reading = self.layout.reading(self.slots, of.reading());
        if let Some(general) = &slot.general {
            self.general_queries(of, slot, general);
        }
        let made = slot.general.as_ref().and_then(|general| self.make_tiles(of, &reading, slot, general));
        for slice in self.plan.slices.get(&self.plan.tiling(&reading)).into_iter().flatten() {
            match &slot.general {
                Some(general) => self.attend_general(of, &reading, slot, general, slice, made),
                None => self.attend(of, slot, slice),
            }
        }
        if of.gate.is_some() {
            let params = HeadGateParams {
                x: b.attended.address(),
                gates: b.projected.address() + 4 * of.dim as u64,
                heads: of.heads as i32,
                dim: of.dim as i32,
                stride: stride as i32,
                step: places.queries.step as i32,
            };
            self.launch("gate_heads", (rows, of.heads), 128, params);
        }
        self.linear(&of.output, rows, b.attended.address(), to);
    }

    /// Closes the pages that are full after a step: its last kernels, which wait for all before them.
    pub(crate) fn encode_all(&mut self) {
        let program = self.program;
        for mixer in program.mixers() {
            match mixer {
                Mixer::Attention(of) if !of.is_view() => {
                    if let Some(slot) = slot_pages(self.layout, self.slots.owner(of.slot)) {
                        self.encode(of, slot);
                    }
                }
                Mixer::Latent(of) => {
                    if let Some(slot) = slot_pages(self.layout, self.slots.owner(of.slot)) {
                        self.encode_latents(of.slot, slot);
                    }
                }
                Mixer::Attention(_)
                | Mixer::Mlp(_)
                | Mixer::Experts(_)
                | Mixer::ShortConv(_)
                | Mixer::Recurrent(_)
                | Mixer::LayerInput(_)
                | Mixer::Laurel(_) => {}
            }
        }
    }

    /// Where numbers that cannot be stored are marked: those that are appended to a slot, or those that are encoded.
    pub(crate) fn refused(&self, slot: KvSlot, what: usize) -> Address {
        self.refused_at(self.slots.owner(slot).index(), what)
    }

    /// The same by the slot's place in the list.
    pub(crate) fn refused_at(&self, slot: usize, what: usize) -> Address {
        let mark = 4 * (2 * slot + what);
        self.buffers.out.address() + (self.buffers.layout.marks + mark) as u64
    }

    fn append(&mut self, of: &Attention, slot: &SlotPages) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        let (rotations, pairs, neighbours) = self.rope_table(of.rope);
        // Nothing is appended where keys and values are another layer's.
        let HeadPlaces { queries, keys_values } = of.places();
        let [keys, values] = keys_values.unwrap_or([queries; 2]);
        let elements = slot.general.as_ref().map_or([0; 2], |general| general.elements);
        let params = AppendParams {
            qkv: b.projected.address(),
            rotations,
            q_norm: Attention::norm_address(&of.q_norm),
            k_norm: Attention::norm_address(&of.k_norm),
            v_norm: Attention::norm_address(&of.v_norm),
            gains: self.gains(of.query_gain),
            q: b.queries.address(),
            pages: self.pages,
            exact: self.at(self.plan.slots[&index].exact_at),
            targets: self.at(self.plan.targets_at),
            refused: self.refused(of.slot, 0),
            heads: of.heads as i32,
            kv_heads: of.kv_heads as i32,
            exact_stride: self.plan.exact_stride as i32,
            pairs,
            neighbours,
            norm_last: (of.norm_place == NormPlace::AfterRope).into(),
            stride: of.projection.outputs() as i32,
            q_step: queries.step as i32,
            kv_step: keys.step as i32,
            k_at: keys.at as i32,
            v_at: values.at as i32,
            q_eps: Attention::norm_eps(&of.q_norm),
            k_eps: Attention::norm_eps(&of.k_norm),
            v_eps: Attention::norm_eps(&of.v_norm),
            key_scale: of.key_scale,
            k_element: elements[0],
            v_element: elements[1],
        };
        let grid = (self.plan.rows, of.heads + if of.is_view() { 0 } else { 2 * of.kv_heads });
        let threads = slot.dim.next_multiple_of(32) as u32;
        let Some(planned) = &slot.planned else {
            let many = format!("append_many_d{}", slot.dim);
            if grid.0 < MANY_ROWS || self.recorder.card().kernel(&many).is_none() {
                return self.launch(&format!("append_d{}", slot.dim), grid, threads, params);
            }
            // Warps of a CTA have a head each.
            let warps = 1 << grid.1.trailing_zeros().min(3);
            let grid = (grid.0, grid.1 / warps);
            return self.launch(&many, grid, 32 * warps as u32, params);
        };
        let turn =
            TurnParams { y: b.turned.address(), bias: b.bias.address(), bases: planned.query.address() };
        let params = AppendTurnParams { append: params, turn };
        self.launch(&format!("append_klt_d{}", slot.dim), grid, 4 * threads, params);
    }

    fn encode(&mut self, of: &Attention, slot: &SlotPages) {
        if slot.latent.is_some() {
            return self.encode_latents(of.slot, slot);
        }
        if let Some(general) = &slot.general {
            return self.encode_general(of.slot, slot, general);
        }
        let plan = self.plan.slots[&self.slots.owner(of.slot).index()];
        let (words, refused) = (self.buffers.plan.address(), self.refused(of.slot, 1));
        encode(&mut self.recorder, slot, &plan.jobs, words, (self.pages, refused));
    }

    /// What strict mode does to the pages of the pass before and after they are encoded.
    fn strictly(&mut self, of: &Attention, slot: &SlotPages, kernel: &str) {
        let plan = self.plan.slots[&self.slots.owner(of.slot).index()];
        if !self.layout.strict || plan.jobs.count == 0 {
            return;
        }
        let (jobs, tokens) = (self.at(plan.jobs.at), self.at(plan.tokens_at));
        let params = StrictParams { pages: self.pages, jobs, tokens, signs: slot.signs };
        self.launch(kernel, (plan.jobs.count, 1), 128, params);
    }

    fn attend(&mut self, of: &Attention, slot: &SlotPages, slice: &SlicePlan) {
        let b = self.buffers;
        let index = self.slots.owner(of.slot).index();
        let attend = Attend {
            slot,
            heads: of.heads,
            scale: of.scale,
            soft_cap: of.soft_cap,
            sink_logits: of.sink_logits.as_ref().map_or(0, Buffer::address),
            pages: self.pages,
            table: self.tables.table(index),
            exact: (self.at(self.plan.slots[&index].exact_at), self.plan.exact_stride),
            plan: b.plan.address(),
            queries: b.queries.address(),
            out: b.attended.address(),
            bf16: false,
            part_o: b.part_o.address(),
            part_ml: b.part_ml.address(),
            turned: (b.turned.address(), b.bias.address()),
            tiles: self.plan.tiles,
            early: self.early,
        };
        attend.slice(&mut self.recorder, slice);
    }

    /// Logits of wanted rows `first .. first + rows`, at most [`SLICE`].
    pub(crate) fn logits(&mut self, first: usize, rows: usize) {
        let b = self.buffers;
        let logits = b.out.address() + b.layout.logits as u64;
        let (norm, head) = (&self.program.norm, &self.program.head);
        if let Some(row) = self.normed_row(norm, b.x.address(), head) {
            return self.linear(head, rows, row, Target::over(logits));
        }
        let hidden = self.program.widths.hidden;
        let params = GatherParams {
            x: b.x.address(),
            rows: self.at(self.plan.wanted_at) + 4 * first as u64,
            y: b.picked.address(),
            channels: hidden as i32,
        };
        self.launch("gather_rows", (rows, 1), 256, params);
        self.norm(norm, b.picked.address(), rows);
        self.linear(head, rows, b.normed.address(), Target::over(logits));
    }

    /// y (tokens, outputs) = or += W x + b, of x (tokens, inputs) f16.
    pub(crate) fn linear(&mut self, of: &Linear, tokens: usize, x: impl Into<Activations>, to: Target) {
        let (x, outputs, y) = (x.into(), of.outputs(), to.address);
        if let [matrix] = &of.parts[..] {
            self.product(matrix, of, tokens, x, to);
        } else {
            // Types side by side: products have rows of their own width, which then go to their columns.
            let mut at = 0;
            for matrix in &of.parts {
                let columns = self.buffers.columns.address();
                self.product(matrix, of, tokens, x, Target::over(columns));
                let params = ColumnsParams {
                    x: columns,
                    y,
                    width: matrix.rows as i32,
                    stride: outputs as i32,
                    at: at as i32,
                };
                self.launch("put_columns", (tokens, matrix.rows.div_ceil(1024)), 256, params);
                at += matrix.rows;
            }
        }
        if let Some(bias) = &of.bias {
            let params = BiasParams { y, bias: bias.address(), width: outputs as i32 };
            self.launch("add_bias", (tokens, outputs.div_ceil(1024)), 256, params);
        }
    }

    fn product(&mut self, matrix: &Matrix, of: &Linear, tokens: usize, x: Activations, to: Target) {
        let (shape, limits) = ((matrix.rows, matrix.channels), self.recorder.card().limits());
        let normed = x.norm.and_then(|_| ProductForm::normed(shape, limits));
        let whole = of.gating.is_some() || !self.fused;
        let form = normed.unwrap_or_else(|| ProductForm::of(shape, tokens, whole, limits));
        let (norm, eps) = x.norm.unwrap_or_default();
        let params = LinearParams {
            weights: matrix.address(),
            x: x.address,
            y: to.address,
            rows: matrix.rows as i32,
            channels: matrix.channels as i32,
            tokens: tokens as i32,
            accumulate: to.accumulate.into(),
            scale: of.scale * matrix.scale,
            gated: of.gating.is_some().into(),
            gate_scale: of.gating.map_or(1.0, |gating| gating.gate_scale),
            eps,
            norm,
        };
        let launch =
            Launch { grid: form.grid, threads: form.threads, shared: form.shared, early: self.early };
        let name = format!("linear_{}_{}", matrix.kind.name(), form.name);
        let Some(tiles) = form.wide else { return self.recorder.launch(&name, launch, params) };
        let [token_tiles, whole, all, apart] =
            [tiles.token_tiles, tiles.whole, tiles.tiles, tiles.apart].map(|n| n as i32);
        let wide = WideParams { product: params, token_tiles, whole, tiles: all, apart };
        if apart == 0 {
            let maps = (&params, matrix.kind, tiles.width / 2);
            return self.recorder.launch_wide(&name, launch, wide, maps);
        }
        let sums = self.buffers.segments.address();
        let product = LinearParams { y: sums, accumulate: 0, scale: 1.0, ..params };
        let maps = (&product, matrix.kind, tiles.width / 2);
        self.recorder.launch_wide(&name, launch, WideParams { product, ..wide }, maps);
        let (y, accumulate, scale, numbers) =
            (params.y, params.accumulate, params.scale, tokens * matrix.rows);
        let params = SegmentsParams { sums, y, segments: apart, numbers: numbers as i32, accumulate, scale };
        self.launch("add_segments", (numbers.div_ceil(1024), 1), 256, params);
    }
}
