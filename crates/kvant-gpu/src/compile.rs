//! From a description and weights to a program: what the device does not run is refused by name here.

use crate::buffer::Buffer;
use crate::compile_moe::check_experts;
use crate::device::Gpu;
use crate::latent::check_latent;
use crate::ops::{Activate, Norm};
use crate::program::{
    Attention, Branch, Embedding, Head, Layer, Linear, LinearPart, Mixer, Mlp, Residual, Widths,
};
use crate::weights::Matrix;
use kvant_cache::STATE_CHUNK;
use kvant_device::{
    Blocks, HeadPlaces, Refusal, biases, check_layers, first_layers, norm_weights, packed, projected_layers,
    runs,
};
use kvant_model::description::{self, Description, Inner, Projection};
use kvant_model::error::{LoadError, Result};
use kvant_model::{Checkpoint, DType, Tensor};

/// The weights of a checkpoint on their way to a device.
pub(crate) struct Compiler<'a> {
    pub gpu: &'a Gpu,
    pub checkpoint: &'a Checkpoint,
    /// What plain numbers are packed to.
    pub weights: Option<DType>,
}

/// A program.
pub(crate) struct Program {
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub head: Head,
    pub widths: Widths,
}

impl Compiler<'_> {
    /// What of a model does not run, before anything is uploaded.
    pub(crate) fn check_model(&self, of: &Description) -> Result<()> {
        let refuse = |refusal: Refusal| refusal.on(self.gpu.name());
        check_layers(of, Blocks::ALL, check_mixer, check_streams).map_err(refuse)
    }

    pub(crate) fn program(&self, of: &Description) -> Result<Program> {
        self.check_model(of)?;
        let mut widths = Widths { hidden: of.hidden, vocabulary: of.vocabulary, ..Widths::default() };
        let embedding = self.embedding(&of.embedding, &mut widths)?;
        let layers =
            of.layers.iter().map(|layer| self.layer(layer, of, &mut widths)).collect::<Result<_>>()?;
        let head = Head {
            norm: self.norm(&of.head.norm)?,
            output: self.linear(&[&of.head.output])?,
            scale: of.head.scale,
            soft_cap: of.head.soft_cap,
        };
        if let Some(fault) = self.gpu.fault() {
            return Err(LoadError::unsupported(format!("{}: {fault}", self.gpu.name())));
        }
        Ok(Program { embedding, layers, head, widths })
    }

    fn embedding(&self, of: &description::Embedding, widths: &mut Widths) -> Result<Embedding> {
        let positions = of.positions.as_ref().map(|table| {
            let numbers = table.read(self.checkpoint)?.to_f32()?;
            Ok::<_, LoadError>(Buffer::of_floats(self.gpu, "positions", &numbers))
        });
        Ok(Embedding {
            table: Matrix::upload(self.gpu, &[of.table.read(self.checkpoint)?])?,
            scale: of.scale,
            positions: positions.transpose()?,
            layer_inputs: of.per_layer.as_ref().map(|of| self.layer_inputs(of, widths)).transpose()?,
            streams: of.streams.as_ref().map(|of| self.streams(of, widths)).transpose()?,
        })
    }

    fn layer(&self, of: &description::Layer, model: &Description, widths: &mut Widths) -> Result<Layer> {
        let residuals = of
            .residuals
            .iter()
            .map(|residual| self.residual(residual, model, widths))
            .collect::<Result<_>>()?;
        let scale = of.scale.as_ref().map(|scale| scale.read(self.checkpoint)).transpose()?;
        let altup = of.altup.as_ref().map(|of| self.altup(of, widths).map(Box::new)).transpose()?;
        Ok(Layer { residuals, scale: scale.and_then(|scale| scale.first().copied()), altup })
    }

    fn residual(
        &self,
        of: &description::Residual,
        model: &Description,
        widths: &mut Widths,
    ) -> Result<Residual> {
        let branch = |branch: &description::Branch| {
            Ok(Branch {
                norm: self.norm_if(branch.norm.as_ref())?,
                input_scale: branch.input_scale,
                mixer: self.mixer(&branch.mixer, model, widths)?,
                after: self.norm_if(branch.after.as_ref())?,
                scale: branch.scale,
            })
        };
        Ok(Residual {
            branches: of.branches.iter().map(branch).collect::<Result<_>>()?,
            after: self.norm_if(of.after.as_ref())?,
            scale: of.scale,
            keep: of.keep,
        })
    }

    fn mixer(&self, of: &description::Mixer, model: &Description, widths: &mut Widths) -> Result<Mixer> {
        match of {
            description::Mixer::Attention(of) => {
                Ok(Mixer::Attention(Box::new(self.attention(of, model, widths)?)))
            }
            description::Mixer::Ffn(description::Ffn::Dense(of)) => {
                Ok(Mixer::Mlp(Box::new(self.mlp(of, widths)?)))
            }
            description::Mixer::Ffn(description::Ffn::Experts(of)) => {
                Ok(Mixer::Moe(Box::new(self.moe(of, widths)?)))
            }
            description::Mixer::ShortConv(of) => Ok(Mixer::ShortConv(Box::new(self.short_conv(of, widths)?))),
            description::Mixer::GatedDeltaNet(of) => {
                Ok(Mixer::DeltaNet(Box::new(self.delta_net(of, widths)?)))
            }
            description::Mixer::Mamba2(of) => Ok(Mixer::Mamba2(Box::new(self.mamba2(of, widths)?))),
            description::Mixer::PerLayerInput(of) => {
                Ok(Mixer::PerLayerInput(Box::new(self.layer_input(of, widths)?)))
            }
            description::Mixer::LatentAttention(of) => {
                Ok(Mixer::Attention(Box::new(self.latent_attention(of, widths)?)))
            }
            description::Mixer::Laurel(of) => Ok(Mixer::Laurel(Box::new(self.laurel(of, widths)?))),
        }
    }

    fn attention(
        &self,
        of: &description::Attention,
        model: &Description,
        widths: &mut Widths,
    ) -> Result<Attention> {
        let (dim, value) = (of.key_dim, of.value_dim);
        let projection = self.linear(&projected_layers(&of.projection))?;
        let HeadPlaces { queries, keys_values } = HeadPlaces::of(of);
        widths.projected = widths.projected.max(projection.outputs());
        widths.queries = widths.queries.max(of.heads * dim);
        widths.keys = widths.keys.max(of.kv_heads * dim);
        let latent = self.folded(of, model)?;
        if latent.is_some() {
            // What meets keys is at most as wide as a key.
            widths.folded = widths.folded.max(of.heads * (dim + value));
        }
        widths.values = widths.values.max(of.kv_heads * value);
        widths.attended = widths.attended.max(of.heads * value);
        let sink_logits = of.sink_logits.as_ref().map(|logits| logits.read(self.checkpoint)).transpose()?;
        Ok(Attention {
            described: of.clone(),
            projection,
            q: queries,
            kv: keys_values.map(|[keys, values]| (keys, values)),
            q_norm: self.norm_if(of.q_norm.as_ref())?,
            k_norm: self.norm_if(of.k_norm.as_ref())?,
            v_norm: self.norm_if(of.v_norm.as_ref())?,
            latent,
            sink_logits: sink_logits.map(|logits| Buffer::of_floats(self.gpu, "sink logits", &logits)),
            output: self.linear(&[&of.output])?,
            output_weights: of.output.weight.read(self.checkpoint)?,
        })
    }

    pub(crate) fn mlp(&self, of: &description::Mlp, widths: &mut Widths) -> Result<Mlp> {
        let (first, gated) = (self.linear(&first_layers(&of.inner))?, !matches!(of.inner, Inner::Plain(_)));
        let down = self.linear(&[&of.down])?;
        let inner = down.inputs();
        widths.first = widths.first.max(first.outputs());
        widths.inner = widths.inner.max(inner);
        let activate =
            Activate { activation: of.activation, gated, gate_scale: of.gate_scale, clamp: of.clamp };
        Ok(Mlp { first, inner, activate, sparsity: of.sparsity, down, down_scale: of.down_scale })
    }

    pub(crate) fn norm(&self, of: &description::Norm) -> Result<Norm> {
        let [weight, bias] = norm_weights(of, |vector| vector.read(self.checkpoint))?;
        Ok(Norm::new(self.gpu, of.kind, of.width, weight.as_deref(), bias.as_deref(), of.eps))
    }

    fn norm_if(&self, of: Option<&description::Norm>) -> Result<Option<Norm>> {
        of.map(|norm| self.norm(norm)).transpose()
    }

    /// Layers of the same input; neighbours of one type become one matrix.
    pub(crate) fn linear(&self, layers: &[&description::Linear]) -> Result<Linear> {
        let read = |layer: &&description::Linear| {
            packed(layer.weight.read(self.checkpoint)?, layer.precision, self.weights)
        };
        let tensors: Vec<Tensor> = layers.iter().map(read).collect::<Result<_>>()?;
        let (mut parts, mut column, mut layers) = (Vec::new(), 0, layers);
        for run in runs(&tensors)? {
            let (own, rest) = layers.split_at(run.len());
            let matrix = Matrix::upload(self.gpu, run)?;
            let bias = biases(own, |bias| bias.read(self.checkpoint))?;
            let bias = bias.map(|numbers| Buffer::of_floats(self.gpu, "bias", &numbers));
            let outputs = matrix.outputs();
            parts.push(LinearPart { matrix, bias, column });
            (column, layers) = (column + outputs, rest);
        }
        Ok(Linear { parts })
    }
}

const RAGGED_INPUTS: &str = "inputs of each layer's own that are not whole fours";
const LONG: &str = "a convolution of more taps than a chunk of state has tokens";
const SPARSE: &str = "sparse gates that are scaled or clamped, or no gates";

/// Whether the last inputs of a convolution are those of one chunk.
fn is_kernel(conv: &description::Convolution) -> bool {
    (1..=STATE_CHUNK).contains(&conv.kernel)
}

fn is_odd_sparse(mlp: &description::Mlp) -> bool {
    let is_plain = mlp.gate_scale == 1.0 && mlp.clamp.is_none() && !matches!(mlp.inner, Inner::Plain(_));
    mlp.sparsity.is_some() && !is_plain
}

/// What of a layer over several streams does not run.
fn check_streams(layer: &description::Layer) -> Result<(), String> {
    match &layer.altup {
        Some(of) if !of.input.gate.outputs().is_multiple_of(4) => Err(RAGGED_INPUTS.to_owned()),
        _ => Ok(()),
    }
}

/// What of a mixer does not run.
fn check_mixer(mixer: &description::Mixer) -> Result<(), String> {
    use description::{Ffn, Mixer};
    let what = match mixer {
        Mixer::Attention(of) if of.key_dim > 512 || of.value_dim > 512 => "heads of more than 512 channels",
        Mixer::Attention(of) if of.gate.is_some() && of.key_dim != of.value_dim => {
            "gates of another width than values"
        }
        Mixer::Attention(of) if of.gate.is_some() && matches!(of.projection, Projection::FusedByHead(_)) => {
            "gates in a projection by head"
        }
        Mixer::LatentAttention(of) => return check_latent(of).map_err(str::to_owned),
        Mixer::PerLayerInput(of) if !of.gate.outputs().is_multiple_of(4) => RAGGED_INPUTS,
        Mixer::ShortConv(of) if !is_kernel(&of.conv) => LONG,
        Mixer::GatedDeltaNet(of) if !is_kernel(&of.conv) => LONG,
        Mixer::Mamba2(of) if !is_kernel(&of.conv) => LONG,
        Mixer::GatedDeltaNet(of) if of.dims.key_dim.max(of.dims.value_dim) > 1024 => {
            "a gated DeltaNet with heads of more than 1024 channels"
        }
        Mixer::Ffn(Ffn::Dense(mlp)) if is_odd_sparse(mlp) => SPARSE,
        Mixer::Ffn(Ffn::Experts(of)) if of.experts.iter().any(|mlp| mlp.sparsity.is_some()) => {
            "experts with sparse gates"
        }
        Mixer::Ffn(Ffn::Experts(of)) if of.shared.as_ref().is_some_and(|of| is_odd_sparse(&of.mlp)) => SPARSE,
        Mixer::Ffn(Ffn::Experts(of)) => return check_experts(of).map_err(str::to_owned),
        _ => return Ok(()),
    };
    Err(what.to_owned())
}
