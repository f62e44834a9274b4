//! From a description and weights to blocks: the one place that chooses how weights are stored and multiplied.

mod mixers;

use crate::blocks::{
    AltUp, Attention, Dense, Embedding, Ffn, Folded, Head, InputObserver, Laurel, Layer, Linear, Mlp, Moe,
    Multiply, Norm, Observed, Packed, PerLayerEmbedding, PerLayerInput, Residual, Router, Streams, Unpacked,
};
use crate::drivers::Drivers;
use crate::network::CpuNetwork;
use crate::options::{ActivationType, LoadOptions};
use kvant_cache::{SlotKind, Slots};
use kvant_model::bytes::lock;
use kvant_model::description::{
    self, Description, Inner, Mixer, NormKind, Precision, Projection, Rope, RopeId,
};
use kvant_model::error::{LoadError, LoadErrorKind, Result};
use kvant_model::quant::quantize_tensor;
use kvant_model::{Checkpoint, DType, Tensor};
use kvant_simd::Tier;
use std::sync::Arc;

/// The weights of a checkpoint, and what is to be made of them.
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    options: LoadOptions,
    tier: Tier,
    slots: &'a Slots,
    ropes: &'a [Rope],
    observer: Option<Arc<dyn InputObserver>>,
}

/// A model's blocks.
pub fn network(description: &Description, weights: &Weights<'_>) -> Result<CpuNetwork> {
    let layers = description.layers.iter().map(|layer| weights.layer(layer)).collect::<Result<_>>()?;
    let head = Head {
        norm: weights.norm(&description.head.norm)?,
        output: weights.linear(&description.head.output)?,
        scale: description.head.scale,
        soft_cap: description.head.soft_cap,
    };
    let embedding = weights.embedding(&description.embedding)?.releasing_table_pages(&head.output);
    let (ropes, slots) = (description.ropes.clone(), description.slots.clone());
    let streams = description.embedding.streams.as_ref().map(|of| weights.streams(of)).transpose()?;
    let per_layer = description.embedding.per_layer.as_ref().map(|of| weights.per_layer(of)).transpose()?;
    let (streams, drivers) = (streams.unwrap_or_default(), Drivers::new(weights.tier));
    Ok(CpuNetwork { embedding, per_layer, streams, layers, head, ropes, slots, drivers })
}

impl<'a> Weights<'a> {
    /// Those of `checkpoint`.
    pub fn new(
        description: &'a Description,
        checkpoint: &'a Checkpoint,
        options: LoadOptions,
        tier: Tier,
    ) -> Self {
        let Description { slots, ropes, .. } = description;
        Self { checkpoint, options, tier, slots, ropes, observer: None }
    }

    /// The same, with somebody who sees what linear layers are multiplied with.
    pub fn observed_by(self, observer: Arc<dyn InputObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    fn layer(&self, layer: &description::Layer) -> Result<Layer> {
        let residuals =
            layer.residuals.iter().map(|residual| self.residual(residual)).collect::<Result<_>>()?;
        let scale = self.vector_if(layer.scale.as_ref())?.map(|scale| scale[0]);
        let altup = layer.altup.as_ref().map(|altup| self.altup(altup)).transpose()?;
        Ok(Layer { residuals, scale, altup })
    }

    fn residual(&self, residual: &description::Residual) -> Result<Residual> {
        let branch = |branch: &description::Branch| {
            Ok(crate::blocks::Branch {
                norm: self.norm_if(branch.norm.as_ref())?,
                input_scale: branch.input_scale,
                mixer: self.mixer(&branch.mixer)?,
                after: self.norm_if(branch.after.as_ref())?,
                scale: branch.scale,
            })
        };
        Ok(Residual {
            branches: residual.branches.iter().map(branch).collect::<Result<_>>()?,
            after: self.norm_if(residual.after.as_ref())?,
            scale: residual.scale,
            keep: residual.keep,
        })
    }

    fn mixer(&self, mixer: &Mixer) -> Result<crate::blocks::Mixer> {
        use crate::blocks::Mixer as Compiled;
        Ok(match mixer {
            Mixer::Attention(attention) => Compiled::Attention(Box::new(self.attention(attention)?)),
            Mixer::LatentAttention(latent) => {
                Compiled::LatentAttention(Box::new(self.latent_attention(latent)?))
            }
            Mixer::ShortConv(conv) => Compiled::ShortConv(Box::new(self.short_conv(conv)?)),
            Mixer::Mamba2(mamba) => Compiled::Mamba2(Box::new(self.mamba2(mamba)?)),
            Mixer::GatedDeltaNet(net) => Compiled::GatedDeltaNet(Box::new(self.delta_net(net)?)),
            Mixer::Ffn(description::Ffn::Dense(mlp)) => Compiled::Ffn(Ffn::Dense(self.mlp(mlp)?)),
            Mixer::Ffn(description::Ffn::Experts(moe)) => {
                Compiled::Ffn(Ffn::Experts(Box::new(self.moe(moe)?)))
            }
            Mixer::PerLayerInput(input) => Compiled::PerLayerInput(Box::new(self.per_layer_input(input)?)),
            Mixer::Laurel(laurel) => Compiled::Laurel(Box::new(Laurel {
                left: self.linear(&laurel.left)?,
                right: self.linear(&laurel.right)?,
                norm: self.norm(&laurel.norm)?,
            })),
        })
    }

    fn attention(&self, of: &description::Attention) -> Result<Attention> {
        use crate::blocks::Projection as Compiled;
        let projection = match &of.projection {
            Projection::Apart { q, k, v } => {
                Compiled::Apart { q: self.linear(q)?, k: self.linear(k)?, v: self.linear(v)? }
            }
            Projection::Fused(qkv) => Compiled::Fused(self.linear(qkv)?),
            Projection::FusedByHead(qkv) => Compiled::FusedByHead(self.linear(qkv)?),
            Projection::Shared { q } => Compiled::Shared { q: self.linear(q)? },
            Projection::Equal { q, kv } => Compiled::Equal { q: self.linear(q)?, kv: self.linear(kv)? },
        };
        Ok(Attention {
            slot: of.slot,
            heads: of.heads,
            kv_heads: of.kv_heads,
            key_dim: of.key_dim,
            value_dim: of.value_dim,
            projection,
            q_norm: self.norm_if(of.q_norm.as_ref())?,
            k_norm: self.norm_if(of.k_norm.as_ref())?,
            v_norm: self.norm_if(of.v_norm.as_ref())?,
            norm_place: of.norm_place,
            key_scale: of.key_scale,
            rope: of.rope,
            query_gain: of.query_gain,
            scale: of.scale,
            soft_cap: of.soft_cap,
            sink_logits: self.vector_if(of.sink_logits.as_ref())?,
            gate: of.gate.clone(),
            folded: self.folded(of)?,
            output: self.linear(&of.output)?,
        })
    }

    /// How attention meets a slot of latents, where it has one.
    fn folded(&self, of: &description::Attention) -> Result<Option<Folded>> {
        let owner = self.slots.owner(of.slot);
        let Some(SlotKind::Latent(shape)) = self.slots.get(owner.index()).map(|slot| slot.kind) else {
            return Ok(None);
        };
        let is_view = owner != of.slot;
        let (Some(key_norm), Some(RopeId(rope)), false) = (&of.k_norm, of.rope, is_view) else {
            return Err(LoadError::mismatch(
                "attention over latents needs keys of its own, normed and rotated",
            ));
        };
        let turning = self.ropes[rope].turning_channels();
        let mut by = self.norm_weights(key_norm)?;
        if (shape.latent_dim, shape.rope_dim) != (by.len(), turning.len()) || by.len() != of.value_dim {
            return Err(LoadError::mismatch(
                "attention over latents: keys, values and slot are of different widths",
            ));
        }
        turning.iter().for_each(|&channel| by[channel] = 0.0);
        Ok(Some(Folded { turning, by }))
    }

    fn mlp(&self, of: &description::Mlp) -> Result<Mlp> {
        use crate::blocks::Inner as Compiled;
        let inner = match &of.inner {
            Inner::Gated { gate, up } => Compiled::Gated { gate: self.linear(gate)?, up: self.linear(up)? },
            Inner::GatedFused(both) => Compiled::GatedFused(self.linear(both)?),
            Inner::Plain(up) => Compiled::Plain(self.linear(up)?),
        };
        Ok(Mlp {
            inner,
            activation: of.activation,
            clamp: of.clamp,
            gate_scale: of.gate_scale,
            sparsity: of.sparsity,
            down: self.linear(&of.down)?,
            down_scale: of.down_scale,
        })
    }

    fn moe(&self, of: &description::Moe) -> Result<Moe> {
        let router = Router {
            norm: self.norm_if(of.router.norm.as_ref())?,
            reads_residual: of.router.reads_residual,
            input_scale: self.vector_if(of.router.input_scale.as_ref())?,
            linear: self.linear(&of.router.linear)?,
            logit_scale: of.router.logit_scale,
            score: of.router.score,
            bias: self.vector_if(of.router.bias.as_ref())?,
            groups: of.router.groups,
            chosen: of.router.chosen,
            renormalise: of.router.renormalise,
            scale: of.router.scale,
            expert_scale: self.vector_if(of.router.expert_scale.as_ref())?,
        };
        let shared = |shared: &description::SharedExpert| {
            Ok((self.mlp(&shared.mlp)?, shared.gate.as_ref().map(|gate| self.linear(gate)).transpose()?))
        };
        let latent = |(into, out): &(description::Linear, description::Linear)| {
            Ok((self.linear(into)?, self.linear(out)?))
        };
        Ok(Moe {
            router,
            experts: of.experts.iter().map(|expert| self.mlp(expert)).collect::<Result<_>>()?,
            shared: of.shared.as_ref().map(shared).transpose()?,
            latent: of.latent.as_ref().map(latent).transpose()?,
        })
    }

    fn norm_weights(&self, of: &description::Norm) -> Result<Vec<f32>> {
        let weight = self.vector_if(of.weight.as_ref())?.unwrap_or_else(|| vec![1.0; of.width]);
        if weight.len() != of.width || weight.is_empty() {
            return Err(LoadError::mismatch(format!(
                "a norm over {} values has {} weights",
                of.width,
                weight.len()
            )));
        }
        Ok(weight)
    }

    fn norm(&self, of: &description::Norm) -> Result<Norm> {
        let weight = self.norm_weights(of)?;
        Ok(match of.kind {
            NormKind::Rms => Norm::rms(weight, of.eps),
            NormKind::Layer => Norm::layer(weight, self.vector_if(of.bias.as_ref())?, of.eps),
        })
    }

    fn norm_if(&self, of: Option<&description::Norm>) -> Result<Option<Norm>> {
        of.map(|norm| self.norm(norm)).transpose()
    }

    fn vector_if(&self, of: Option<&description::Vector>) -> Result<Option<Vec<f32>>> {
        of.map(|vector| vector.read(self.checkpoint)).transpose()
    }

    fn embedding(&self, of: &description::Embedding) -> Result<Embedding> {
        let table = of.table.read(self.checkpoint)?;
        self.pin(table.name(), table.bytes())?;
        let positions = of.positions.as_ref().map(|table| table.read(self.checkpoint)).transpose()?;
        Embedding::new(table, positions, of.scale)
    }

    fn streams(&self, of: &description::Streams) -> Result<Streams> {
        let linears = |list: &[description::Linear]| {
            list.iter().map(|linear| self.linear(linear)).collect::<Result<_>>()
        };
        Ok(Streams { open: linears(&of.open)?, join: linears(&of.join)? })
    }

    fn altup(&self, of: &description::AltUp) -> Result<AltUp> {
        Ok(AltUp {
            active: of.active,
            router_norm: self.norm(&of.router_norm)?,
            router_scale: of.router_scale,
            router: self.linear(&of.router)?,
            prediction: self.linear(&of.prediction)?,
            correction: self.linear(&of.correction)?,
            output_scale: self.vector_if(of.output_scale.as_ref())?,
            input: self.per_layer_input(&of.input)?,
            input_norm: self.norm(&of.input_norm)?,
        })
    }

    fn per_layer_input(&self, of: &description::PerLayerInput) -> Result<PerLayerInput> {
        Ok(PerLayerInput {
            layer: of.layer,
            gate: self.linear(&of.gate)?,
            activation: of.activation,
            output: self.linear(&of.output)?,
        })
    }

    fn per_layer(&self, of: &description::PerLayerEmbedding) -> Result<PerLayerEmbedding> {
        let table = of.table.read(self.checkpoint)?;
        self.pin(table.name(), table.bytes())?;
        PerLayerEmbedding::new(table, self.linear(&of.projection)?, self.norm(&of.norm)?, of)
    }

    fn linear(&self, of: &description::Linear) -> Result<Linear> {
        let weight = of.weight.read(self.checkpoint)?;
        let product = match of.precision {
            Precision::Packed => self.product(weight)?,
            Precision::Exact => Box::new(Unpacked::new(self.tier, weight)?),
        };
        let product = match &self.observer {
            Some(observer) => {
                let (matrix, observer) = (of.weight.clone(), Arc::clone(observer));
                Box::new(Observed { product, matrix, observer })
            }
            None => product,
        };
        Ok(Linear::new(product, self.vector_if(of.bias.as_ref())?))
    }

    /// The product with a matrix of weights.
    fn product(&self, weight: Tensor) -> Result<Box<dyn Multiply>> {
        // Shapes and types that cannot be multiplied at all are refused by the reference.
        let weight = Unpacked::new(self.tier, weight)?.into_weight();
        let plain = matches!(weight.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3);
        let weight = match self.options.weights {
            Some(packed) if plain && packed.row_bytes(weight.columns()).is_some() => {
                let quantised = quantize_tensor(&weight, packed)?;
                weight.bytes().release();
                quantised
            }
            _ => weight,
        };
        let name = weight.name().to_owned();
        let fast = self.options.activations == ActivationType::Int8;
        let product: Box<dyn Multiply> = match (Packed::layout(weight.dtype()), Dense::number(weight.dtype()))
        {
            (Some(layout), _) if fast => Box::new(Packed::new(self.tier, layout, &weight)?),
            (_, Some(number)) => Box::new(Dense::new(self.tier, number, weight)),
            _ => Box::new(Unpacked::new(self.tier, weight)?),
        };
        self.pin(&name, product.bytes())?;
        Ok(product)
    }

    /// Pins the bytes of the tensor `name` in memory where the options ask for that.
    fn pin(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if !self.options.lock {
            return Ok(());
        }
        lock(bytes).map_err(|e| {
            let message = format!(
                "tensor {name:?}: cannot pin {} bytes in memory: {e}; raise the limit on locked memory (`ulimit -l`) or \
                 do without pinning",
                bytes.len()
            );
            LoadError::new(LoadErrorKind::Io, message)
        })
    }
}
