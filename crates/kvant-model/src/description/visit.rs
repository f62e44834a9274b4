//! Every tensor of a description.

use super::{
    AltUp, Attention, Convolution, DecayRate, DeltaProjection, Description, Ffn, GatedDeltaNet, Inner,
    LatentAttention, LatentQuery, Linear, Mamba2, Mixer, Mlp, Moe, Norm, PerLayerInput, Projection, Residual,
    ShortConv, TensorRef, Vector,
};
use std::collections::{BTreeMap, BTreeSet};

impl Description {
    /// Every tensor it names, each once.
    pub fn tensors(&self) -> Vec<&TensorRef> {
        self.found().list
    }

    /// The weights of norms by their tensors' names, and what the files leave out of them.
    pub fn norm_offsets(&self) -> BTreeMap<String, f32> {
        self.found().norms.into_iter().map(|(name, offset)| (name.to_owned(), offset)).collect()
    }

    fn found(&self) -> Found<'_> {
        let mut found = Found { seen: BTreeSet::new(), list: Vec::new(), norms: BTreeMap::new() };
        found.tensor(&self.embedding.table);
        self.embedding.positions.iter().for_each(|table| found.tensor(table));
        if let Some(per_layer) = &self.embedding.per_layer {
            found.tensor(&per_layer.table);
            found.linear(&per_layer.projection);
            found.norm(&per_layer.norm);
        }
        if let Some(streams) = &self.embedding.streams {
            streams.open.iter().chain(&streams.join).for_each(|linear| found.linear(linear));
        }
        for layer in &self.layers {
            layer.residuals.iter().for_each(|residual| found.residual(residual));
            layer.scale.iter().for_each(|scale| found.vector(scale));
            layer.altup.iter().for_each(|altup| found.altup(altup));
        }
        found.norm(&self.head.norm);
        found.linear(&self.head.output);
        found
    }
}

struct Found<'d> {
    seen: BTreeSet<&'d str>,
    list: Vec<&'d TensorRef>,
    norms: BTreeMap<&'d str, f32>,
}

impl<'d> Found<'d> {
    fn tensor(&mut self, tensor: &'d TensorRef) {
        if self.seen.insert(&tensor.name) {
            self.list.push(tensor);
        }
    }

    fn vector(&mut self, vector: &'d Vector) {
        self.tensor(&vector.tensor);
    }

    fn linear(&mut self, linear: &'d Linear) {
        self.tensor(&linear.weight.tensor);
        linear.bias.iter().for_each(|bias| self.vector(bias));
    }

    fn norm(&mut self, norm: &'d Norm) {
        norm.weight.iter().chain(&norm.bias).for_each(|vector| self.vector(vector));
        if let Some(weight) = &norm.weight {
            self.norms.insert(&weight.tensor.name, weight.offset);
        }
    }

    fn residual(&mut self, residual: &'d Residual) {
        for branch in &residual.branches {
            branch.norm.iter().for_each(|norm| self.norm(norm));
            match &branch.mixer {
                Mixer::Attention(attention) => self.attention(attention),
                Mixer::LatentAttention(attention) => self.latent_attention(attention),
                Mixer::ShortConv(conv) => self.short_conv(conv),
                Mixer::Mamba2(mamba) => self.mamba2(mamba),
                Mixer::GatedDeltaNet(net) => self.delta_net(net),
                Mixer::Ffn(Ffn::Dense(mlp)) => self.mlp(mlp),
                Mixer::Ffn(Ffn::Experts(moe)) => self.moe(moe),
                Mixer::PerLayerInput(input) => self.per_layer_input(input),
                Mixer::Laurel(laurel) => {
                    [&laurel.left, &laurel.right].into_iter().for_each(|linear| self.linear(linear));
                    self.norm(&laurel.norm);
                }
            }
            branch.after.iter().for_each(|norm| self.norm(norm));
        }
        residual.after.iter().for_each(|norm| self.norm(norm));
    }

    fn per_layer_input(&mut self, input: &'d PerLayerInput) {
        [&input.gate, &input.output].into_iter().for_each(|linear| self.linear(linear));
    }

    fn altup(&mut self, altup: &'d AltUp) {
        let AltUp { router, prediction, correction, .. } = altup;
        [router, prediction, correction].into_iter().for_each(|linear| self.linear(linear));
        [&altup.router_norm, &altup.input_norm].into_iter().for_each(|norm| self.norm(norm));
        altup.output_scale.iter().for_each(|scale| self.vector(scale));
        self.per_layer_input(&altup.input);
    }

    fn attention(&mut self, attention: &'d Attention) {
        match &attention.projection {
            Projection::Apart { q, k, v } => [q, k, v].into_iter().for_each(|linear| self.linear(linear)),
            Projection::Fused(qkv) | Projection::FusedByHead(qkv) => self.linear(qkv),
            Projection::Shared { q } => self.linear(q),
            Projection::Equal { q, kv } => [q, kv].into_iter().for_each(|linear| self.linear(linear)),
        }
        let Attention { q_norm, k_norm, v_norm, sink_logits, output, .. } = attention;
        q_norm.iter().chain(k_norm).chain(v_norm).for_each(|norm| self.norm(norm));
        sink_logits.iter().for_each(|logits| self.vector(logits));
        self.linear(output);
    }

    fn latent_attention(&mut self, attention: &'d LatentAttention) {
        match &attention.query {
            LatentQuery::Direct(q) => self.linear(q),
            LatentQuery::LowRank { down, norm, up } => {
                self.linear(down);
                self.norm(norm);
                self.linear(up);
            }
        }
        self.linear(&attention.latent);
        self.norm(&attention.latent_norm);
        attention.key_up.iter().chain(&attention.value_up).for_each(|matrix| self.tensor(&matrix.tensor));
        self.linear(&attention.output);
    }

    fn convolution(&mut self, conv: &'d Convolution) {
        self.vector(&conv.weight);
        conv.bias.iter().for_each(|bias| self.vector(bias));
    }

    fn decay(&mut self, decay: &'d DecayRate) {
        match decay {
            DecayRate::Log(rates) | DecayRate::Plain(rates) => self.vector(rates),
        }
    }

    fn short_conv(&mut self, short: &'d ShortConv) {
        self.linear(&short.input);
        self.convolution(&short.conv);
        self.linear(&short.output);
    }

    fn mamba2(&mut self, mamba: &'d Mamba2) {
        self.linear(&mamba.input);
        self.convolution(&mamba.conv);
        self.vector(&mamba.dt_bias);
        self.decay(&mamba.decay);
        self.vector(&mamba.skip);
        if let Some(norm) = &mamba.norm {
            self.vector(&norm.weight);
            self.norms.insert(&norm.weight.tensor.name, norm.weight.offset);
        }
        self.linear(&mamba.output);
    }

    fn delta_net(&mut self, net: &'d GatedDeltaNet) {
        match &net.projection {
            DeltaProjection::Apart { qkv, z, b, a } => {
                [qkv, z, b, a].into_iter().for_each(|linear| self.linear(linear))
            }
            DeltaProjection::ByKeyHead { qkvz, ba } => {
                [qkvz, ba].into_iter().for_each(|linear| self.linear(linear))
            }
        }
        self.convolution(&net.conv);
        self.decay(&net.decay);
        self.vector(&net.dt_bias);
        self.norm(&net.norm);
        self.linear(&net.output);
    }

    fn mlp(&mut self, mlp: &'d Mlp) {
        match &mlp.inner {
            Inner::Gated { gate, up } => [gate, up].into_iter().for_each(|linear| self.linear(linear)),
            Inner::GatedFused(linear) | Inner::Plain(linear) => self.linear(linear),
        }
        self.linear(&mlp.down);
    }

    fn moe(&mut self, moe: &'d Moe) {
        let router = &moe.router;
        router.norm.iter().for_each(|norm| self.norm(norm));
        self.linear(&router.linear);
        let vectors = router.input_scale.iter().chain(&router.bias).chain(&router.expert_scale);
        vectors.for_each(|vector| self.vector(vector));
        moe.experts.iter().for_each(|expert| self.mlp(expert));
        if let Some(shared) = &moe.shared {
            self.mlp(&shared.mlp);
            shared.gate.iter().for_each(|gate| self.linear(gate));
        }
        if let Some((into, out)) = &moe.latent {
            self.linear(into);
            self.linear(out);
        }
    }
}
