//! From a description and weights to blocks: the one place that chooses how weights are stored and multiplied.

mod mixers;

use crate::blocks::{
    Convolution, CpuWeights, Dense, Embedding, EncoderNetwork, Folded, GatedNorm, LatentHeads, Linear, Mtp,
    Multiply, Norm, Observed, Packed, Unpacked,
};
use crate::drivers::Drivers;
use crate::network::CpuNetwork;
use crate::options::{ActivationType, LoadOptions};
use kvant_cache::SlotKind;
use kvant_model::bytes::lock;
use kvant_model::description::{
    self, DecayRate, Description, Lower, Matrix, Node, NormKind, Precision, RopeId, TensorRef, Vector,
};
use kvant_model::error::{LoadError, LoadErrorKind, Result};
use kvant_model::quant::quantize_tensor;
use kvant_model::{Checkpoint, DType, InputObserver, Network, Tensor};
use kvant_simd::Tier;
use std::sync::Arc;

/// The weights of a checkpoint, and what is to be made of them.
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    options: LoadOptions,
    tier: Tier,
    observer: Option<Arc<dyn InputObserver>>,
}

/// A model, ready to run.
pub fn compiled(description: &Description, weights: &mut Weights<'_>) -> Result<Box<dyn Network>> {
    Ok(match &description.encoder {
        Some(of) => Box::new(encoder(description, of, weights)?),
        None => Box::new(network(description, weights)?),
    })
}

/// A model's blocks.
fn network(description: &Description, weights: &mut Weights<'_>) -> Result<CpuNetwork> {
    description.layers.iter().flat_map(description::Layer::mixers).try_for_each(mixers::check)?;
    let layers = description.layers.lower(weights)?;
    let head = description.head.lower(weights)?;
    let embedding = weights.embedding(&description.embedding)?.releasing_table_pages(&head.output);
    let mtp = weights.mtp(description, &head.output)?;
    Ok(CpuNetwork {
        embedding,
        mtp,
        per_layer: description.embedding.per_layer.lower(weights)?,
        streams: description.embedding.streams.lower(weights)?,
        layers,
        head,
        folded: weights.folded(description)?,
        ropes: description.ropes.clone(),
        slots: description.slots.clone(),
        drivers: Drivers::new(weights.tier),
        tier: weights.tier,
    })
}

/// The blocks of an encoder.
fn encoder(
    description: &Description,
    encoder: &description::Encoder,
    weights: &mut Weights<'_>,
) -> Result<EncoderNetwork> {
    use description::Projection::{Apart, Equal, Fused, FusedByHead, Shared};
    for layer in &encoder.layers {
        match layer.attention.projection {
            Apart { .. } | Fused(_) => {}
            FusedByHead(_) | Shared { .. } | Equal { .. } => {
                return Err(LoadError::unsupported(
                    "an encoder with heads that are not three plain projections",
                ));
            }
        }
    }
    Ok(EncoderNetwork {
        embedding: weights.embedding(&description.embedding)?,
        encoder: encoder.lower(weights)?,
        ropes: description.ropes.clone(),
    })
}

impl<'a> Weights<'a> {
    /// Those of `checkpoint`.
    pub fn new(checkpoint: &'a Checkpoint, options: LoadOptions, tier: Tier) -> Self {
        Self { checkpoint, options, tier, observer: None }
    }

    /// The same, with somebody who sees what linear layers are multiplied with.
    pub fn observed_by(self, observer: Arc<dyn InputObserver>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// How queries and keys meet slots of latents, by slot.
    fn folded(&self, description: &Description) -> Result<Vec<Option<Folded>>> {
        let mut by_slot: Vec<Option<Folded>> = description.slots.iter().map(|_| None).collect();
        for (_, of) in description.attentions() {
            let owner = description.slots.owner(of.slot);
            let Some(SlotKind::Latent(shape)) = description.slots.get(owner.index()).map(|slot| slot.kind)
            else {
                continue;
            };
            let is_view = owner != of.slot;
            let (Some(key_norm), Some(RopeId(rope)), false) = (&of.k_norm, of.rope, is_view) else {
                return Err(LoadError::mismatch(
                    "attention over latents needs keys of its own, normed and rotated",
                ));
            };
            let turning = description.ropes[rope].turning_channels();
            let mut by = self.norm_weights(key_norm)?;
            if (shape.latent_dim, shape.rope_dim) != (by.len(), turning.len()) || by.len() != of.value_dim {
                return Err(LoadError::mismatch(
                    "attention over latents: keys, values and slot are of different widths",
                ));
            }
            turning.iter().for_each(|&channel| by[channel] = 0.0);
            by_slot[of.slot.index()] = Some(Folded { turning, by });
        }
        Ok(by_slot)
    }

    fn norm_weights(&self, of: &description::Norm) -> Result<Vec<f32>> {
        let weight = match &of.weight {
            Some(weight) => weight.read(self.checkpoint)?,
            None => vec![1.0; of.width],
        };
        if weight.len() != of.width || weight.is_empty() {
            return Err(LoadError::mismatch(format!(
                "a norm over {} values has {} weights",
                of.width,
                weight.len()
            )));
        }
        Ok(weight)
    }

    fn embedding(&self, of: &description::Embedding) -> Result<Embedding> {
        let table = of.table.read(self.checkpoint)?;
        self.pin(table.name(), table.bytes())?;
        let positions = of.positions.as_ref().map(|table| table.read(self.checkpoint)).transpose()?;
        Embedding::new(table, positions, of.scale)
    }

    /// The head that guesses further tokens, where it is asked for and there.
    fn mtp(&mut self, description: &Description, output: &Linear) -> Result<Option<Mtp>> {
        let Some(Ok(of)) = description.mtp.as_ref().filter(|_| self.options.mtp) else { return Ok(None) };
        of.layer.layer.mixers().try_for_each(mixers::check)?;
        let layer = of.layer.lower(self)?;
        let embedding = Embedding::new(layer.table.clone(), None, description.embedding.scale)?;
        let output = layer.output.as_ref().unwrap_or(output);
        let embedding = embedding.releasing_table_pages(output);
        Ok(Some(Mtp { layer, embedding, slots: of.slots.clone() }))
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

    /// The product with the transpose of a matrix, in plain numbers.
    fn turned(&self, matrix: &Matrix) -> Result<Linear> {
        let stored = matrix.read(self.checkpoint)?;
        let (rows, columns) = (stored.rows(), stored.columns());
        let values = stored.to_f32()?;
        let turned: Vec<f32> =
            (0..columns).flat_map(|column| values[column..].iter().step_by(columns).copied()).collect();
        stored.bytes().release();
        Ok(Linear::new(self.product(Tensor::from_f32(stored.name(), vec![columns, rows], &turned)?)?, None))
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

impl<'d> Lower<'d> for Weights<'_> {
    type To = CpuWeights;
    type Error = LoadError;

    fn linear(&mut self, of: &'d description::Linear) -> Result<Linear> {
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
        let bias = of.bias.as_ref().map(|bias| bias.read(self.checkpoint)).transpose()?;
        let linear = Linear::new(product, bias);
        let Matrix { tensor, expert, rows, .. } = &of.weight;
        Ok(match (expert, rows) {
            (None, None) => linear.named(&tensor.name),
            _ => linear,
        })
    }

    fn norm(&mut self, of: &'d description::Norm) -> Result<Norm> {
        let weight = self.norm_weights(of)?;
        let bias = of.bias.as_ref().map(|bias| bias.read(self.checkpoint));
        Ok(match of.kind {
            NormKind::Rms => Norm::rms(weight, of.eps),
            NormKind::Layer => Norm::layer(weight, bias.transpose()?, of.eps),
        })
    }

    fn vector(&mut self, of: &'d Vector) -> Result<Vec<f32>> {
        of.read(self.checkpoint)
    }

    fn table(&mut self, of: &'d TensorRef) -> Result<Tensor> {
        let table = of.read(self.checkpoint)?;
        self.pin(table.name(), table.bytes())?;
        // One row now, so that a type that cannot be unpacked is refused here.
        table.row_f32(0, &mut vec![0.0; table.columns()])?;
        Ok(table)
    }

    fn latent_heads(&mut self, of: &'d description::LatentHeads) -> Result<LatentHeads> {
        let value_up = |matrix: &Matrix| Ok(Linear::new(self.product(matrix.read(self.checkpoint)?)?, None));
        Ok(LatentHeads {
            query_to_latent: of.key.iter().map(|matrix| self.turned(matrix)).collect::<Result<_>>()?,
            value_up: of.value.iter().map(value_up).collect::<Result<_>>()?,
        })
    }

    fn convolution(&mut self, of: &'d description::Convolution) -> Result<Convolution> {
        let weight = of.weight.read(self.checkpoint)?;
        let bias = of.bias.as_ref().map(|bias| bias.read(self.checkpoint)).transpose()?;
        Ok(Convolution::new((of.channels, of.kernel), &weight, bias, of.activation))
    }

    /// A, one for each head.
    fn decay(&mut self, of: &'d DecayRate) -> Result<Vec<f32>> {
        Ok(match of {
            DecayRate::Log(logs) => logs.read(self.checkpoint)?.into_iter().map(|log| -log.exp()).collect(),
            DecayRate::Plain(rates) => rates.read(self.checkpoint)?,
        })
    }

    fn gated_norm(&mut self, of: &'d description::GatedNorm) -> Result<GatedNorm> {
        Ok(GatedNorm {
            norm: Norm::rms(vec![1.0; of.width], of.eps),
            weight: of.weight.read(self.checkpoint)?,
            order: of.order,
        })
    }
}
