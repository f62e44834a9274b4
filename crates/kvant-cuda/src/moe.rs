//! Mixtures of experts: how they are compiled, and how a pass goes through them.
//!
//! The experts of a layer are one matrix each for both of their products, expert after expert. A pass routes its tokens, sorts the pairs of
//! token and expert by expert, multiplies groups of them, and adds up what came of a token's pairs in the order of their ranks. Where experts have
//! many pairs and the card has the widest tiles, activations are laid out by pair first.

use crate::buffer::Buffer;
use crate::compile::{Compiler, check_norm};
use crate::device::Launch;
use crate::matrix::{Matrix, on_card};
use crate::params::{Address, CombineParams, ExpertBiasParams, GatherParams, GroupParams, RouteParams};
use crate::product::{GroupForm, ProductForm, WIDE_GROUP};
use crate::product_params::{GroupedParams, LinearParams, WideGroupsParams};
use crate::program::{Activating, Gating, Linear, Mlp, Norm, Widths};
use crate::run::{Run, Target};
use crate::upload::RowOrder;
use kvant_device::{first_layers, norm_weights};
use kvant_model::description::{self, RouterScore};
use kvant_model::error::{LoadError, Result};

/// Experts, chosen experts and groups that `kernels/moe.cu` has room for.
const MOST: (usize, usize, usize) = (512, 32, 32);

/// The first or the second product of all experts.
pub(crate) struct ExpertMatrix {
    /// Rows of all experts, one after another.
    pub matrix: Matrix,
    /// Rows of one expert.
    pub rows: usize,
    /// (experts, rows).
    pub bias: Option<Buffer>,
    pub scale: f32,
    /// Of gates and ups whose product gives inner values.
    pub gating: Option<Gating>,
}

/// A mixture of experts.
pub(crate) struct Moe {
    /// Of the stream, where the router does not read what experts read.
    router_norm: Option<Norm>,
    pub router: Linear,
    pub experts: usize,
    pub chosen: usize,
    /// Everything of the router but addresses.
    routing: RouteParams,
    bias: Option<Buffer>,
    expert_scale: Option<Buffer>,
    pub first: ExpertMatrix,
    pub down: ExpertMatrix,
    activating: Activating,
    /// Into the narrower space that experts work in, and out of it.
    narrow: Option<(Linear, Linear)>,
    pub shared: Option<(Mlp, Option<Linear>)>,
}

impl Moe {
    /// Bytes of all matrices.
    pub(crate) fn bytes(&self) -> usize {
        let shared = self.shared.as_ref();
        let gate = shared.and_then(|(_, gate)| gate.as_ref()).map_or(0, Linear::bytes);
        let shared = shared.map_or(0, |(mlp, _)| mlp.first.bytes() + mlp.down.bytes());
        let narrow = self.narrow.as_ref().map_or(0, |(into, back)| into.bytes() + back.bytes());
        narrow + self.router.bytes() + self.first.matrix.bytes() + self.down.matrix.bytes() + shared + gate
    }
}

/// What of a mixture of experts does not run.
pub(crate) fn check_moe(of: &description::Moe) -> std::result::Result<(), String> {
    let refuse = |what: &str| Err(what.to_owned());
    let router = &of.router;
    match &router.norm {
        Some(norm) if router.reads_residual => check_norm(norm, router.linear.inputs())?,
        None if !router.reads_residual && router.input_scale.is_none() => {}
        _ => return refuse("a router that norms what experts read, or reads the stream without a norm"),
    }
    let groups = router.groups.map_or(0, |groups| groups.count);
    if of.experts.len() > MOST.0 || router.chosen > MOST.1.min(of.experts.len()) || groups > MOST.2 {
        return Err(format!(
            "{} experts, {} chosen, in {groups} groups, where {}, {} and {} are the most",
            of.experts.len(),
            router.chosen,
            MOST.0,
            MOST.1,
            MOST.2
        ));
    }
    let Some(expert) = of.experts.first() else { return refuse("a mixture of no experts") };
    if of.experts.iter().any(|expert| expert.sparsity.is_some()) {
        return refuse("experts with sparse gates");
    }
    let rows = [expert.down.outputs(), expert.down.inputs()];
    if rows.iter().any(|rows| !rows.is_multiple_of(16)) {
        return Err(format!("experts of {} and {} rows, not whole tiles of 16", rows[0], rows[1]));
    }
    if let Some((into, back)) = &of.latent
        && (into.outputs() != rows[0] || back.inputs() != rows[0] || rows[0] > into.inputs())
    {
        return Err(format!("experts of {} rows in a space of {} channels", rows[0], into.outputs()));
    }
    Ok(())
}

impl Compiler<'_> {
    /// Of a branch with this multiplier.
    pub(crate) fn moe(&self, of: &description::Moe, widths: &mut Widths, scale: f32) -> Result<Moe> {
        let Some(expert) = of.experts.first() else { return Err(LoadError::mismatch("no experts")) };
        let first: Vec<Vec<&description::Linear>> =
            of.experts.iter().map(|expert| first_layers(&expert.inner)).collect();
        let down: Vec<Vec<&description::Linear>> =
            of.experts.iter().map(|expert| vec![&expert.down]).collect();
        let gating = |rows| self.expert_gating(expert, rows);
        let first = self.experts(&first, 1.0, gating)?;
        let down = self.experts(&down, expert.down_scale, |_| None)?;
        let activating = Activating::of(expert);
        if first.rows != activating.inputs() * down.matrix.channels {
            let message = format!("{} inner values where {} belong", first.rows, down.matrix.channels);
            return Err(LoadError::mismatch(message));
        }
        let shared = match &of.shared {
            Some(shared) => {
                let gate = shared.gate.as_ref().map(|gate| self.linear(&[gate], 1.0)).transpose()?;
                Some((self.mlp(&shared.mlp, widths, scale)?, gate))
            }
            None => None,
        };
        let router = &of.router;
        let groups = router.groups.map_or([0; 3], |groups| [groups.count, groups.kept, groups.best]);
        let [groups, kept, best] = groups.map(|n| n as i32);
        let routing = RouteParams {
            experts: of.experts.len() as i32,
            count: router.chosen as i32,
            score: match router.score {
                RouterScore::Softmax => 0,
                RouterScore::SoftmaxOfChosen => 1,
                RouterScore::Sigmoid => 2,
            },
            groups,
            kept,
            best,
            renormalise: router.renormalise.is_some().into(),
            epsilon: router.renormalise.map_or(0.0, |by| by.epsilon),
            least: router.renormalise.map_or(0.0, |by| by.least),
            logit_scale: router.logit_scale,
            scale: if of.latent.is_some() { router.scale } else { router.scale * scale },
            ..RouteParams::default()
        };
        widths.experts = widths.experts.max(of.experts.len());
        widths.chosen = widths.chosen.max(router.chosen);
        widths.expert_first = widths.expert_first.max(first.rows);
        widths.expert_inner = widths.expert_inner.max(down.matrix.channels);
        let narrow = match &of.latent {
            Some((into, back)) => {
                widths.first = widths.first.max(into.outputs());
                widths.inner = widths.inner.max(into.outputs());
                Some((self.linear(&[into], 1.0)?, self.linear(&[back], scale)?))
            }
            None => None,
        };
        let floats = |of: &Option<description::Vector>, noise| {
            of.as_ref().map(|numbers| self.floats(numbers, noise)).transpose()
        };
        let mut router_norm = router.norm.as_ref().map(|norm| self.norm(norm, 1.0)).transpose()?;
        if let (Some(norm), Some(scale)) = (&router.norm, &router.input_scale) {
            let [weight, _] = norm_weights(norm, |vector| self.numbers(vector, 1.0))?;
            let scale = self.numbers(scale, 1.0)?;
            let weight = weight.unwrap_or_else(|| vec![1.0; scale.len()]);
            let both: Vec<f32> = weight.iter().zip(&scale).map(|(weight, scale)| weight * scale).collect();
            let weight = Buffer::of_floats(self.card(), &both).map_err(on_card)?;
            router_norm = Some(Norm { weight, eps: norm.eps, layer: None });
        }
        Ok(Moe {
            router_norm,
            router: self.linear(&[&router.linear], 1.0)?,
            experts: of.experts.len(),
            chosen: router.chosen,
            routing,
            bias: floats(&router.bias, 0.0)?,
            expert_scale: floats(&router.expert_scale, 1.0)?,
            first,
            down,
            activating,
            narrow,
            shared,
        })
    }

    /// One product of all experts as one matrix, with gates and ups in turns where it gates them.
    fn experts(
        &self,
        experts: &[Vec<&description::Linear>],
        scale: f32,
        gating: impl Fn(usize) -> Option<Gating>,
    ) -> Result<ExpertMatrix> {
        let layers: Vec<&description::Linear> = experts.iter().flatten().copied().collect();
        let rows = experts[0].iter().map(|layer| layer.outputs()).sum();
        if experts.iter().any(|expert| expert.iter().map(|layer| layer.outputs()).sum::<usize>() != rows) {
            return Err(LoadError::mismatch("experts of different sizes"));
        }
        let gating = gating(rows);
        let order = if gating.is_some() { RowOrder::Paired(rows) } else { RowOrder::Stored };
        let (matrix, bias) = self.one_matrix(&layers, scale, order)?;
        Ok(ExpertMatrix { matrix, rows, bias, scale, gating })
    }
}

impl Run<'_> {
    pub(crate) fn moe(&mut self, of: &Moe, to: Target) {
        let b = self.buffers;
        let (rows, pairs) = (self.plan.rows, self.plan.rows * of.chosen);
        let mut input = b.normed.address();
        if let Some(norm) = &of.router_norm {
            input = b.router_input.address();
            self.norm_rows(norm, (b.x.address(), input), self.program.widths.hidden, rows);
        }
        self.linear(&of.router, rows, input, Target::over(b.router.address()));
        let address = |buffer: &Option<Buffer>| buffer.as_ref().map_or(0, Buffer::address);
        let routing = RouteParams {
            logits: b.router.address(),
            bias: address(&of.bias),
            expert_scale: address(&of.expert_scale),
            chosen: b.chosen.address(),
            shares: b.shares.address(),
            ..of.routing
        };
        self.launch("route", (rows, 1), 32, routing);
        let form = GroupForm::widest(pairs, of.experts, self.recorder.card().limits());
        let params = GroupParams {
            chosen: b.chosen.address(),
            places: b.places.address(),
            sources: b.sources.address(),
            owners: b.owners.address(),
            groups: b.groups.address(),
            pairs: pairs as i32,
            count: of.chosen as i32,
            experts: of.experts as i32,
            size: form.size as i32,
            most: form.most as i32,
        };
        self.launch("group_pairs", (1, 1), 512, params);
        let groups = (form, b.groups.address());
        let mut input = b.normed.address();
        if let Some((into, _)) = &of.narrow {
            self.linear(into, rows, input, Target::over(b.first.address()));
            input = b.inner.address();
            self.rows_as_f16((b.first.address(), input), into.outputs(), 1.0);
        }
        let mut sources = b.sources.address();
        if form.size == WIDE_GROUP {
            // By pair, where the second product's results go later; two numbers of f16 as one of f32.
            let (y, channels) = (b.expert_out.address(), (of.first.matrix.channels / 2) as i32);
            self.launch(
                "gather_rows",
                (pairs, 1),
                256,
                GatherParams { x: input, rows: sources, y, channels },
            );
            (input, sources) = (y, 0);
        }
        let (inner, gated) = (b.expert_inner.address(), of.first.gating.is_some());
        let y = if gated { inner } else { b.expert_first.address() };
        self.grouped(&of.first, groups, input, sources, y);
        if !gated {
            self.activate(of.activating, of.down.matrix.channels, pairs, y, inner);
        }
        self.grouped(&of.down, groups, b.expert_inner.address(), 0, b.expert_out.address());
        // In the narrower space, where there is one, and then out of it.
        let sum = if of.narrow.is_some() { Target::over(b.first.address()) } else { to };
        let params = CombineParams {
            experts: b.expert_out.address(),
            shares: b.shares.address(),
            places: b.places.address(),
            y: sum.address,
            width: of.down.rows as i32,
            count: of.chosen as i32,
            sigmoid: 0,
            accumulate: sum.accumulate.into(),
        };
        self.launch("combine", (rows, of.down.rows.div_ceil(1024)), 256, params);
        if let Some((_, back)) = &of.narrow {
            self.rows_as_f16((sum.address, b.inner.address()), back.inputs(), 1.0);
            self.linear(back, rows, b.inner.address(), to);
        }
        let Some((mlp, gate)) = &of.shared else { return };
        let Some(gate) = gate else {
            return self.mlp(mlp, b.normed.address().into(), Target { accumulate: true, ..to });
        };
        // The logits of experts have been read: the gate's one takes their place.
        self.linear(gate, rows, b.normed.address(), Target::over(b.router.address()));
        self.mlp(mlp, b.normed.address().into(), Target::over(b.expert_out.address()));
        let (shares, places, width) = (b.router.address(), 0, mlp.down.outputs());
        let own = CombineParams { shares, places, y: to.address, width: width as i32, ..params };
        let params = CombineParams { count: 1, sigmoid: 1, accumulate: 1, ..own };
        self.launch("combine", (rows, width.div_ceil(1024)), 256, params);
    }

    /// y (pairs, rows of an expert) of x rows that `sources` names, or of the pairs' own.
    pub(crate) fn grouped(
        &mut self,
        of: &ExpertMatrix,
        (form, groups): (GroupForm, Address),
        x: Address,
        sources: Address,
        y: Address,
    ) {
        let matrix = &of.matrix;
        let product = LinearParams {
            weights: matrix.address(),
            x,
            y,
            rows: of.rows as i32,
            channels: matrix.channels as i32,
            tokens: form.pairs as i32,
            scale: of.scale * matrix.scale,
            gated: of.gating.is_some().into(),
            gate_scale: of.gating.map_or(1.0, |gating| gating.gate_scale),
            ..LinearParams::default()
        };
        let kernel = form.kernel((of.rows, matrix.channels), self.recorder.card().limits());
        let ProductForm { name, grid, threads, shared, .. } = kernel;
        let launch = Launch { grid, threads, shared, early: self.early };
        let name = format!("linear_{}_{name}", matrix.kind.name());
        if form.size == WIDE_GROUP {
            let (panels, tiles) = form.tiles(of.rows);
            let params = WideGroupsParams { product, groups, panels: panels as i32, tiles: tiles as i32 };
            let all = LinearParams { rows: matrix.rows as i32, ..product };
            self.recorder.launch_wide(&name, launch, params, (&all, matrix.kind, WIDE_GROUP / 2));
        } else {
            let expert_bytes = matrix.kind.packed_bytes(of.rows, matrix.channels) as u64;
            self.recorder.launch(&name, launch, GroupedParams { product, groups, sources, expert_bytes });
        }
        if let Some(bias) = &of.bias {
            let owners = self.buffers.owners.address();
            let params = ExpertBiasParams { y, bias: bias.address(), owners, width: of.rows as i32 };
            self.launch("add_expert_bias", (form.pairs, of.rows.div_ceil(1024)), 256, params);
        }
    }
}
