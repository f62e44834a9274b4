//! The weights of a description, and its numbers, in an order that two descriptions of one model share.
//!
//! A Hugging Face folder and a GGUF file of the same model have the same blocks under other names and in other layouts. Each
//! describes itself; walking both descriptions side by side tells which tensor becomes which, what has to be turned, stacked or
//! reordered on the way, and whether both mean the same model.

use crate::recipe::Role;
use kvant_model::Description;
use kvant_model::description::{
    AltUp, Attention, Convolution, DecayRate, DeltaProjection, Ffn, GatedDeltaNet, Inner, LatentAttention,
    LatentQuery, Linear, Mamba2, Matrix, Mixer, Mlp, Moe, Norm, Pairing, PerLayerInput, Precision,
    Projection, Residual, ShortConv, TensorRef, Vector,
};

/// One matrix or vector of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub role: Role,
    pub stored: Stored,
    pub layout: Layout,
}

/// Where a part is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stored {
    Matrix(Matrix),
    Vector(Vector),
}

impl Part {
    /// The tensor that it is, or is a part of.
    pub fn tensor(&self) -> &TensorRef {
        match &self.stored {
            Stored::Matrix(matrix) => &matrix.tensor,
            Stored::Vector(vector) => &vector.tensor,
        }
    }

    /// Its number in a tensor of all experts.
    pub fn expert(&self) -> Option<usize> {
        match &self.stored {
            Stored::Matrix(matrix) => matrix.expert,
            Stored::Vector(vector) => vector.expert,
        }
    }
}

/// What the outputs of a part mean, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The same in every file.
    Plain,
    /// Heads whose first `rotated` channels turn in pairs.
    Rotated { dim: usize, rotated: usize, pairing: Pairing },
    /// All queries, then all keys, then all values.
    Joined { dim: usize },
    /// Query, key and value of each head together.
    ByHead { dim: usize },
    /// Heads of Mamba 2 or DeltaNet, whose decay is stored as its logarithm.
    LogDecay,
    /// The decay itself.
    Decay,
}

/// A walk over a description.
#[derive(Default)]
pub(crate) struct Parts {
    pub list: Vec<Part>,
    /// What is not a weight, with a word for it: scales, widths, kinds as numbers.
    pub numbers: Vec<(&'static str, f64)>,
}

impl Parts {
    pub fn of(description: &Description) -> Self {
        let mut parts = Self::default();
        parts.table(Role::Embedding, &description.embedding.table);
        parts.number("embedding scale", description.embedding.scale);
        description.embedding.positions.iter().for_each(|table| parts.table(Role::Positions, table));
        if let Some(of) = &description.embedding.per_layer {
            parts.table(Role::Embedding, &of.table);
            parts.linear(&of.projection);
            parts.norm(&of.norm);
            [of.table_scale, of.projection_scale, of.scale]
                .into_iter()
                .for_each(|scale| parts.number("scale of layers' inputs", scale));
        }
        if let Some(streams) = &description.embedding.streams {
            streams.open.iter().chain(&streams.join).for_each(|linear| parts.linear(linear));
        }
        for rope in &description.ropes {
            for frequency in rope.frequencies(0).iter() {
                parts.number("rotary frequency", *frequency);
            }
            for frequency in rope.frequencies(description.context.unwrap_or(0)).iter() {
                parts.number("rotary frequency of long contexts", *frequency);
            }
            parts.number("rotary amplitude", rope.amplitude());
        }
        for layer in &description.layers {
            parts.number("residuals of a layer", layer.residuals.len() as f32);
            layer.residuals.iter().for_each(|residual| parts.residual(description, residual));
            layer.scale.iter().for_each(|scale| parts.vector(scale, Layout::Plain));
            layer.altup.iter().for_each(|altup| parts.altup(altup));
        }
        parts.norm(&description.head.norm);
        parts.number("logit scale", description.head.scale);
        parts.optional("logit cap", description.head.soft_cap);
        let output = &description.head.output;
        if output.weight.tensor == description.embedding.table {
            output.bias.iter().for_each(|bias| parts.vector(bias, Layout::Plain));
        } else {
            parts.linear_as(Role::Output, output, Layout::Plain);
        }
        parts
    }

    fn number(&mut self, what: &'static str, value: f32) {
        self.numbers.push((what, value.into()));
    }

    fn optional(&mut self, what: &'static str, value: Option<f32>) {
        self.number(what, value.unwrap_or(-1.0));
    }

    fn table(&mut self, role: Role, tensor: &TensorRef) {
        let stored = Stored::Matrix(Matrix::whole(tensor.clone()));
        self.list.push(Part { role, stored, layout: Layout::Plain });
    }

    fn matrix(&mut self, matrix: &Matrix) {
        self.list.push(Part {
            role: Role::Matrix,
            stored: Stored::Matrix(matrix.clone()),
            layout: Layout::Plain,
        });
    }

    fn vector(&mut self, vector: &Vector, layout: Layout) {
        self.list.push(Part { role: Role::Exact, stored: Stored::Vector(vector.clone()), layout });
    }

    fn linear(&mut self, linear: &Linear) {
        self.linear_in(linear, Layout::Plain);
    }

    fn linear_in(&mut self, linear: &Linear, layout: Layout) {
        let role = if linear.precision == Precision::Exact { Role::Exact } else { Role::Matrix };
        self.linear_as(role, linear, layout);
    }

    fn linear_as(&mut self, role: Role, linear: &Linear, layout: Layout) {
        self.list.push(Part { role, stored: Stored::Matrix(linear.weight.clone()), layout });
        self.number("a bias", if linear.bias.is_some() { 1.0 } else { 0.0 });
        linear.bias.iter().for_each(|bias| self.vector(bias, layout));
    }

    fn norm(&mut self, norm: &Norm) {
        self.number("norm epsilon", norm.eps);
        norm.weight.iter().chain(&norm.bias).for_each(|vector| self.vector(vector, Layout::Plain));
    }

    fn residual(&mut self, description: &Description, residual: &Residual) {
        self.number("residual scale", residual.scale);
        self.number("residual that is kept", residual.keep);
        for branch in &residual.branches {
            branch.norm.iter().for_each(|norm| self.norm(norm));
            self.number("branch input scale", branch.input_scale);
            self.number("branch scale", branch.scale);
            match &branch.mixer {
                Mixer::Attention(attention) => self.attention(description, attention),
                Mixer::LatentAttention(attention) => self.latent_attention(attention),
                Mixer::ShortConv(conv) => self.short_conv(conv),
                Mixer::Mamba2(mamba) => self.mamba2(mamba),
                Mixer::GatedDeltaNet(net) => self.delta_net(net),
                Mixer::Ffn(Ffn::Dense(mlp)) => self.mlp(mlp),
                Mixer::Ffn(Ffn::Experts(moe)) => self.moe(moe),
                Mixer::PerLayerInput(input) => self.per_layer_input(input),
                Mixer::Laurel(laurel) => {
                    self.linear(&laurel.left);
                    self.linear(&laurel.right);
                    self.norm(&laurel.norm);
                }
            }
            branch.after.iter().for_each(|norm| self.norm(norm));
        }
        residual.after.iter().for_each(|norm| self.norm(norm));
    }

    fn per_layer_input(&mut self, input: &PerLayerInput) {
        self.linear(&input.gate);
        self.linear(&input.output);
    }

    fn altup(&mut self, of: &AltUp) {
        [&of.router_norm, &of.input_norm].into_iter().for_each(|norm| self.norm(norm));
        [&of.router, &of.prediction, &of.correction].into_iter().for_each(|linear| self.linear(linear));
        of.output_scale.iter().for_each(|scale| self.vector(scale, Layout::Plain));
        self.per_layer_input(&of.input);
        self.number("active stream", of.active as f32);
    }

    fn attention(&mut self, description: &Description, of: &Attention) {
        let rope = of.rope.and_then(|id| description.ropes.get(id.0));
        let rotated = match rope {
            // A gate takes turns with its query: not a head of its own.
            Some(rope) if of.gate.is_none() => {
                Layout::Rotated { dim: of.key_dim, rotated: rope.dims(), pairing: rope.pairing() }
            }
            _ => Layout::Plain,
        };
        match &of.projection {
            Projection::Apart { q, k, v } => {
                self.linear_in(q, rotated);
                self.linear_in(k, rotated);
                self.linear(v);
            }
            Projection::Fused(qkv) => self.linear_in(qkv, Layout::Joined { dim: of.key_dim }),
            Projection::FusedByHead(qkv) => self.linear_in(qkv, Layout::ByHead { dim: of.key_dim }),
            Projection::Shared { q } => self.linear_in(q, rotated),
            Projection::Equal { q, kv } => {
                self.linear_in(q, rotated);
                self.linear_in(kv, rotated);
            }
        }
        for norm in of.q_norm.iter().chain(&of.k_norm) {
            self.number("norm epsilon", norm.eps);
            norm.weight.iter().chain(&norm.bias).for_each(|vector| self.vector(vector, rotated));
        }
        of.v_norm.iter().for_each(|norm| self.norm(norm));
        of.sink_logits.iter().for_each(|logits| self.vector(logits, Layout::Plain));
        self.linear(&of.output);
        let sizes = [of.heads, of.kv_heads, of.key_dim, of.value_dim, of.window.unwrap_or(0)];
        sizes.into_iter().for_each(|size| self.number("attention size", size as f32));
        self.number("rotary embedding", of.rope.map_or(-1.0, |rope| rope.0 as f32));
        self.number("key scale", of.key_scale);
        self.number("score scale", of.scale);
        self.optional("score cap", of.soft_cap);
        let gain = of.query_gain.map_or([0.0; 2], |gain| [gain.beta as f32, gain.every as f32]);
        gain.into_iter().for_each(|number| self.number("growth of queries", number));
    }

    fn latent_attention(&mut self, of: &LatentAttention) {
        match &of.query {
            LatentQuery::Direct(q) => self.linear(q),
            LatentQuery::LowRank { down, norm, up } => {
                self.linear(down);
                self.norm(norm);
                self.linear(up);
            }
        }
        self.linear(&of.latent);
        self.norm(&of.latent_norm);
        of.key_up.iter().chain(&of.value_up).for_each(|matrix| self.matrix(matrix));
        self.linear(&of.output);
        self.number("score scale", of.scale);
    }

    fn convolution(&mut self, conv: &Convolution) {
        self.vector(&conv.weight, Layout::Plain);
        conv.bias.iter().for_each(|bias| self.vector(bias, Layout::Plain));
    }

    fn decay(&mut self, decay: &DecayRate) {
        match decay {
            DecayRate::Log(rates) => self.vector(rates, Layout::LogDecay),
            DecayRate::Plain(rates) => self.vector(rates, Layout::Decay),
        }
    }

    fn short_conv(&mut self, of: &ShortConv) {
        self.linear(&of.input);
        self.convolution(&of.conv);
        self.linear(&of.output);
    }

    fn mamba2(&mut self, of: &Mamba2) {
        self.linear(&of.input);
        of.part_scales.into_iter().for_each(|scale| self.number("scale of a projected part", scale));
        self.convolution(&of.conv);
        self.vector(&of.dt_bias, Layout::Plain);
        self.decay(&of.decay);
        self.vector(&of.skip, Layout::Plain);
        if let Some(norm) = &of.norm {
            self.vector(&norm.weight, Layout::Plain);
            self.number("norm epsilon", norm.eps);
        }
        self.linear(&of.output);
    }

    fn delta_net(&mut self, of: &GatedDeltaNet) {
        // Which value heads share a key head: an order that files of the two kinds do not share.
        (0..of.dims.value_heads).for_each(|head| self.number("key head", of.dims.key_head(head) as f32));
        match &of.projection {
            DeltaProjection::Apart { qkv, z, b, a } => {
                [qkv, z, b, a].into_iter().for_each(|linear| self.linear(linear));
            }
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                [qkvz, ba].into_iter().for_each(|linear| self.linear(linear));
            }
        }
        self.convolution(&of.conv);
        self.decay(&of.decay);
        self.vector(&of.dt_bias, Layout::Plain);
        self.norm(&of.norm);
        self.linear(&of.output);
    }

    fn mlp(&mut self, of: &Mlp) {
        match &of.inner {
            Inner::Gated { gate, up } => [gate, up].into_iter().for_each(|linear| self.linear(linear)),
            Inner::GatedFused(both) | Inner::Plain(both) => self.linear(both),
        }
        self.linear(&of.down);
        self.number("activation", f32::from(of.activation as u8));
        self.optional("clamp", of.clamp.map(|clamp| clamp.limit));
        self.optional("clamp's alpha", of.clamp.map(|clamp| clamp.alpha));
        self.optional("sparsity of the gate", of.sparsity);
        self.number("gate scale", of.gate_scale);
        self.number("output scale", of.down_scale);
    }

    fn moe(&mut self, of: &Moe) {
        let router = &of.router;
        router.norm.iter().for_each(|norm| self.norm(norm));
        self.linear(&router.linear);
        let vectors = router.input_scale.iter().chain(&router.bias).chain(&router.expert_scale);
        vectors.for_each(|vector| self.vector(vector, Layout::Plain));
        self.number("experts per token", router.chosen as f32);
        self.number("score of experts", f32::from(router.score as u8));
        self.number("scale of experts", router.scale);
        self.number("renormalised experts", if router.renormalise.is_some() { 1.0 } else { 0.0 });
        let groups = router.groups.map_or([0; 3], |groups| [groups.count, groups.kept, groups.best]);
        groups.into_iter().for_each(|number| self.number("groups of experts", number as f32));
        of.experts.iter().for_each(|expert| self.mlp(expert));
        if let Some(shared) = &of.shared {
            self.mlp(&shared.mlp);
            shared.gate.iter().for_each(|gate| self.linear(gate));
        }
        if let Some((into, out)) = &of.latent {
            self.linear(into);
            self.linear(out);
        }
    }
}
