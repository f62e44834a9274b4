//! Attention, recurrence and feed-forward parts.

use super::{Order, Outputs, Parts};
use crate::recipe::Role;
use kvant_model::Description;
use kvant_model::description::{
    Attention, Convolution, DeltaDims, DeltaProjection, GateOrder, GatedDeltaNet, HeadOrder, Inner,
    LatentAttention, LatentQuery, Linear, Mamba2, Mlp, Moe, NormPlace, Pairing, Projection, QueryGain, Rope,
    RopeId, ShortConv,
};

impl Parts {
    fn rope<'d>(&mut self, description: &'d Description, id: Option<RopeId>) -> Option<&'d Rope> {
        self.number("rotary embedding", id.map_or(-1.0, |rope| rope.0 as f32));
        id.and_then(|id| description.ropes.get(id.0))
    }

    fn query_gain(&mut self, gain: Option<QueryGain>) {
        let gain = gain.map_or([0.0; 2], |gain| [gain.beta as f32, gain.every as f32]);
        gain.into_iter().for_each(|number| self.number("growth of queries", number));
    }

    pub(super) fn attention(&mut self, description: &Description, of: &Attention, (into, out): (f32, f32)) {
        let rope = self.rope(description, of.rope);
        let (pairing, turning) = rope.map_or((self.still, of.key_dim), |rope| (rope.pairing(), rope.dims()));
        let rotated = |count, dim| Order::rotated(count, dim, (0, turning), pairing);
        // A gate takes turns with its query.
        let q_dim = of.key_dim * if of.gate.is_some() { 2 } else { 1 };
        let (q_count, k_count, v_count) =
            (of.heads * q_dim, of.kv_heads * of.key_dim, of.kv_heads * of.value_dim);
        let plain = |rows, count| Outputs { scale: into, ..Outputs::new(rows, count) };
        let keys =
            |rows, count| Outputs { rows, count, scale: into * of.key_scale, bias_scale: of.key_scale };
        match &of.projection {
            Projection::Apart { q, k, v } => {
                self.linear_scaled(q, plain(rotated(q_count, q_dim), q_count));
                self.linear_scaled(k, keys(rotated(k_count, of.key_dim), k_count));
                self.linear_scaled(v, plain(Order::ALL, v_count));
            }
            Projection::Fused(qkv) => {
                let k = rotated(k_count, of.key_dim).shifted(k_count, q_count);
                self.linear_scaled(qkv, plain(rotated(q_count, q_dim), q_count));
                self.linear_scaled(qkv, keys(k, k_count));
                self.linear_scaled(qkv, plain(Order::Run(q_count + k_count), v_count));
            }
            Projection::FusedByHead(qkv) => {
                let dim = of.key_dim;
                let order = |kind: usize, of: Order| {
                    Order::listed(q_count, |row| {
                        let row = of.at(row);
                        (row / dim * 3 + kind) * dim + row % dim
                    })
                };
                self.linear_scaled(qkv, plain(order(0, rotated(q_count, dim)), q_count));
                self.linear_scaled(qkv, keys(order(1, rotated(q_count, dim)), q_count));
                self.linear_scaled(qkv, plain(order(2, Order::ALL), q_count));
            }
            Projection::Shared { q } => {
                self.linear_scaled(q, plain(rotated(q_count, q_dim), q_count));
            }
            Projection::Equal { q, kv } => {
                self.linear_scaled(q, plain(rotated(q_count, q_dim), q_count));
                // Values do not turn, so an order of their own would change them.
                self.flag("neighbours in keys that are values", pairing == Pairing::Neighbours);
                self.linear_scaled(kv, keys(Order::ALL, k_count));
            }
        }
        for norm in of.q_norm.iter().chain(&of.k_norm) {
            self.norm_in(norm, |count| Outputs::new(rotated(count, of.key_dim), count));
        }
        of.v_norm.iter().for_each(|norm| self.norm(norm));
        of.sink_logits.iter().for_each(|logits| self.vector(logits));
        let back = Outputs { scale: out, bias_scale: out, ..Outputs::new(Order::ALL, of.output.outputs()) };
        self.linear_scaled(&of.output, back);
        let sizes = [of.heads, of.kv_heads, of.key_dim, of.value_dim];
        sizes.into_iter().for_each(|size| self.size("attention size", size));
        self.size("attention window", of.window.unwrap_or(0));
        self.flag("norms after the rotation", of.norm_place == NormPlace::AfterRope);
        self.flag("gate of the output", of.gate.is_some());
        self.number("score scale", of.scale);
        self.optional("score cap", of.soft_cap);
        self.query_gain(of.query_gain);
    }

    pub(super) fn latent_attention(&mut self, description: &Description, of: &LatentAttention) {
        let pairing = self.rope(description, of.rope).map_or(Pairing::Halves, Rope::pairing);
        let rotated = |count, dim, first| Order::rotated(count, dim, (first, of.rope_dim), pairing);
        let head = of.nope_dim + of.rope_dim;
        let queries = || rotated(of.heads * head, head, of.nope_dim);
        match &of.query {
            LatentQuery::Direct(q) => self.linear_in(q, queries()),
            LatentQuery::LowRank { down, norm, up } => {
                self.linear(down);
                self.norm(norm);
                self.linear_in(up, queries());
            }
        }
        let latent = of.latent_dim + of.rope_dim;
        self.linear_in(&of.latent, rotated(latent, latent, of.latent_dim));
        self.norm(&of.latent_norm);
        for matrix in of.up.key.iter().chain(&of.up.value) {
            self.matrix(Role::Matrix, matrix, Outputs::new(Order::ALL, matrix.outputs()), Order::ALL);
        }
        self.linear(&of.output);
        let sizes = [of.heads, of.nope_dim, of.rope_dim, of.latent_dim, of.value_dim];
        sizes.into_iter().for_each(|size| self.size("attention size", size));
        self.size("attention window", of.window.unwrap_or(0));
        self.number("score scale", of.scale);
        self.query_gain(of.query_gain);
    }

    /// A convolution whose channels lie in these runs of outputs.
    fn convolution(&mut self, conv: &Convolution, runs: Vec<(Order, usize)>) {
        self.size("taps of a convolution", conv.kernel);
        self.optional("activation", conv.activation.map(|activation| f32::from(activation as u8)));
        self.flag("a bias", conv.bias.is_some());
        for (rows, count) in &runs {
            self.numbers_of(&conv.weight, Outputs::new(rows.clone(), *count), conv.kernel, false);
        }
        for (bias, (rows, count)) in conv.bias.iter().flat_map(|bias| runs.iter().map(move |run| (bias, run)))
        {
            self.numbers_of(bias, Outputs::new(rows.clone(), *count), 1, false);
        }
    }

    pub(super) fn short_conv(&mut self, of: &ShortConv) {
        self.linear(&of.input);
        self.convolution(&of.conv, vec![(Order::ALL, of.conv.channels)]);
        self.linear(&of.output);
    }

    pub(super) fn mamba2(&mut self, of: &Mamba2, (into, out): (f32, f32)) {
        let dims = &of.dims;
        let group = dims.groups * dims.state;
        let widths = [dims.inner(), dims.inner(), group, group, dims.heads];
        let mut first = 0;
        for (count, scale) in widths.into_iter().zip(of.part_scales) {
            let outputs = Outputs { rows: Order::Run(first), count, scale: into * scale, bias_scale: scale };
            self.linear_scaled(&of.input, outputs);
            first += count;
        }
        self.convolution(&of.conv, vec![(Order::ALL, of.conv.channels)]);
        self.vector(&of.dt_bias);
        self.decay(&of.decay, Order::ALL);
        self.vector(&of.skip);
        let (least, most) = of.dt_limit.unwrap_or((0.0, f32::MAX));
        [least, most].into_iter().for_each(|limit| self.number("limit of time steps", limit));
        self.flag("norm beside a gate", of.norm.is_some());
        if let Some(norm) = &of.norm {
            self.vector(&norm.weight);
            self.number("norm epsilon", norm.eps);
            self.size("norm width", norm.width);
            self.flag("norm before its gate", norm.order == GateOrder::NormFirst);
        }
        let back = Outputs { scale: out, bias_scale: out, ..Outputs::new(Order::ALL, of.output.outputs()) };
        self.linear_scaled(&of.output, back);
        let sizes = [dims.heads, dims.head_dim, dims.groups, dims.state];
        sizes.into_iter().for_each(|size| self.size("Mamba-2 size", size));
    }

    pub(super) fn delta_net(&mut self, of: &GatedDeltaNet) {
        let dims = &of.dims;
        let each = dims.value_heads / dims.key_heads;
        // Value heads by key head, which files of the other kind have one of each key head in turn.
        let values = |dim: usize| {
            Order::listed(dims.value_heads * dim, |row| match dims.order {
                HeadOrder::Grouped => row,
                HeadOrder::Tiled => {
                    let head = row / dim;
                    (head % each * dims.key_heads + head / each) * dim + row % dim
                }
            })
        };
        let (keys, width) = (dims.key_width(), dims.value_width());
        let mut rows = |role: Role, linear: &Linear, rows: Order, count: usize| {
            self.outputs(role, linear, Outputs::new(rows, count), Order::ALL);
        };
        match &of.projection {
            DeltaProjection::Apart { qkv, z, b, a } => {
                rows(Role::Matrix, qkv, Order::ALL, keys);
                rows(Role::Matrix, qkv, Order::Run(keys), keys);
                rows(Role::Matrix, qkv, values(dims.value_dim).shifted(width, 2 * keys), width);
                rows(Role::Matrix, z, values(dims.value_dim), width);
                rows(Role::Exact, b, values(1), dims.value_heads);
                rows(Role::Exact, a, values(1), dims.value_heads);
            }
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                let own = each * dims.value_dim;
                let by_key_head =
                    |row: usize, part: usize, first: usize, all: usize| row / part * all + first + row % part;
                let all = 2 * dims.key_dim + 2 * own;
                for first in [0, dims.key_dim] {
                    let order = Order::listed(keys, |row| by_key_head(row, dims.key_dim, first, all));
                    rows(Role::Matrix, qkvz, order, keys);
                }
                for first in [2 * dims.key_dim, 2 * dims.key_dim + own] {
                    let order = Order::listed(width, |row| by_key_head(row, own, first, all));
                    rows(Role::Matrix, qkvz, order, width);
                }
                for first in [0, each] {
                    let order =
                        Order::listed(dims.value_heads, |row| by_key_head(row, each, first, 2 * each));
                    rows(Role::Exact, ba, order, dims.value_heads);
                }
            }
        }
        let v = values(dims.value_dim).shifted(width, 2 * keys);
        self.convolution(&of.conv, vec![(Order::ALL, keys), (Order::Run(keys), keys), (v, width)]);
        self.decay(&of.decay, values(1));
        let dt_bias = Outputs::new(values(1), dims.value_heads);
        self.numbers_of(&of.dt_bias, dt_bias, 1, false);
        self.norm(&of.norm);
        let back = Outputs::new(Order::ALL, of.output.outputs());
        self.outputs(Role::Matrix, &of.output, back, values(dims.value_dim));
        self.number("epsilon of lengths", of.qk_eps);
        let DeltaDims { key_heads, value_heads, key_dim, value_dim, .. } = *dims;
        [key_heads, value_heads, key_dim, value_dim]
            .into_iter()
            .for_each(|size| self.size("DeltaNet size", size));
    }

    pub(super) fn mlp(&mut self, of: &Mlp, (into, out): (f32, f32)) {
        let inner = of.down.inputs();
        let outputs = |first, scale: f32| Outputs {
            rows: Order::Run(first),
            count: inner,
            scale: into * scale,
            bias_scale: scale,
        };
        self.flag("gate", !matches!(of.inner, Inner::Plain(_)));
        match &of.inner {
            Inner::Gated { gate, up } => {
                self.linear_scaled(gate, outputs(0, of.gate_scale));
                self.linear_scaled(up, outputs(0, 1.0));
            }
            Inner::GatedFused(both) => {
                self.linear_scaled(both, outputs(0, of.gate_scale));
                self.linear_scaled(both, outputs(inner, 1.0));
            }
            Inner::Plain(up) => self.linear_scaled(up, outputs(0, 1.0)),
        }
        let scale = of.down_scale * out;
        let down = Outputs { scale, bias_scale: scale, ..Outputs::new(Order::ALL, of.down.outputs()) };
        self.linear_scaled(&of.down, down);
        self.number("activation", f32::from(of.activation as u8));
        self.optional("clamp", of.clamp.map(|clamp| clamp.limit));
        self.optional("clamp's alpha", of.clamp.map(|clamp| clamp.alpha));
        self.optional("sparsity of the gate", of.sparsity);
    }

    pub(super) fn moe(&mut self, of: &Moe) {
        let router = &of.router;
        router.norm.iter().for_each(|norm| self.norm(norm));
        self.linear(&router.linear);
        let vectors = [&router.input_scale, &router.bias, &router.expert_scale];
        for vector in vectors {
            self.flag("a router's vector", vector.is_some());
            vector.iter().for_each(|vector| self.vector(vector));
        }
        self.size("experts per token", router.chosen);
        self.flag("router of the residual", router.reads_residual);
        self.number("score of experts", f32::from(router.score as u8));
        self.number("scale of a router", router.logit_scale);
        self.number("scale of experts", router.scale);
        self.flag("renormalised experts", router.renormalise.is_some());
        let renormalise = router.renormalise.unwrap_or_default();
        [renormalise.epsilon, renormalise.least]
            .into_iter()
            .for_each(|number| self.number("least share of experts", number));
        let groups = router.groups.map_or([0; 3], |groups| [groups.count, groups.kept, groups.best]);
        groups.into_iter().for_each(|number| self.size("groups of experts", number));
        self.size("experts", of.experts.len());
        of.experts.iter().for_each(|expert| self.mlp(expert, (1.0, 1.0)));
        self.flag("a shared expert", of.shared.is_some());
        if let Some(shared) = &of.shared {
            self.mlp(&shared.mlp, (1.0, 1.0));
            self.flag("gate of a shared expert", shared.gate.is_some());
            shared.gate.iter().for_each(|gate| self.linear(gate));
        }
        if let Some((into, out)) = &of.latent {
            self.linear(into);
            self.linear(out);
        }
    }
}
