//! From a description and weights to a program: what the card does not run is refused by name here, before anything is uploaded.

use crate::buffer::Buffer;
use crate::device::CudaGpu;
use crate::latent::{check_folded, check_latent, latents_of};
use crate::layout::DIMS;
use crate::matrix::{Matrix, on_card};
use crate::moe::check_moe;
use crate::params::HEAD_TILE;
use crate::program::{
    Activating, Attention, Block, Branch, Gating, Input, LayerInput, LayerInputs, Linear, Mixer, Mlp, Norm,
    Program, Widths, activation,
};
use crate::recurrent::check_state;
use crate::streams::check_streams;
use crate::upload::{RowOrder, Uploader};
use crate::weights::{TILE_ROWS, WeightType};
use kvant_cache::Slots;
use kvant_device::{
    Blocks, LoadProgress, Refusal, biases, check_layers, first_layers, norm_weights, packed,
    projected_layers, runs,
};
use kvant_model::description::{self, Description, Ffn, NormKind, NormPlace, Precision, Projection};
use kvant_model::error::{LoadError, Result};
use kvant_model::{Checkpoint, DType, Tensor};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

/// Where weights come from.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A file; plain numbers are packed to the type, if there is one.
    File(&'a Checkpoint, Option<DType>),
    /// Nowhere: numbers without a meaning, of this type.
    Noise(WeightType),
}

/// Blocks beside attention, MLPs and mixtures that run.
const RUN: Blocks = Blocks::ALL;

/// The weights of a model on their way to a card.
pub(crate) struct Compiler<'a> {
    card: &'a Arc<CudaGpu>,
    source: Source<'a>,
    ropes: &'a [description::Rope],
    slots: &'a Slots,
    /// Matrices that are used twice, by the name of their tensor.
    shared: RefCell<HashMap<String, Arc<Matrix>>>,
    seed: Cell<u64>,
    /// Made for the first matrix of a file.
    uploader: RefCell<Option<Uploader>>,
    /// Of all weights in the file.
    bytes: u64,
    heard: Option<LoadProgress>,
    /// Whether products gate what they give, where they can.
    fused: bool,
}

impl<'a> Compiler<'a> {
    pub(crate) fn program(
        card: &'a Arc<CudaGpu>,
        of: &'a Description,
        source: Source<'a>,
        (heard, fused): (Option<LoadProgress>, bool),
    ) -> Result<Program> {
        let bytes = match source {
            Source::File(checkpoint, _) => of.tensors().into_iter().try_fold(0, |bytes, tensor| {
                Ok::<u64, LoadError>(bytes + tensor.read(checkpoint)?.bytes().len() as u64)
            })?,
            Source::Noise(_) => 0,
        };
        let compiler = Compiler { bytes, heard, fused, ..Compiler::without_weights(card, of, source) };
        let program = compiler.run(of)?;
        card.synchronize().map_err(on_card)?;
        Ok(program)
    }

    fn without_weights(card: &'a Arc<CudaGpu>, of: &'a Description, source: Source<'a>) -> Compiler<'a> {
        Compiler {
            card,
            source,
            ropes: &of.ropes,
            slots: &of.slots,
            shared: RefCell::default(),
            seed: Cell::new(1),
            uploader: RefCell::default(),
            bytes: 0,
            heard: None,
            fused: false,
        }
    }

    /// Whether there are kernels for every block.
    pub(crate) fn check_model(card: &'a Arc<CudaGpu>, of: &'a Description) -> Result<()> {
        let compiler = Compiler::without_weights(card, of, Source::Noise(WeightType::F16));
        compiler.check(of).map_err(|refusal| refusal.on(&card.label()))
    }

    fn run(&self, of: &Description) -> Result<Program> {
        let refuse = |refusal: Refusal| refusal.on(&self.card.label());
        self.check(of).map_err(refuse)?;
        let embedding = self.table(&of.embedding.table)?;
        let mut widths = Widths { hidden: of.hidden, vocabulary: of.vocabulary, ..Widths::default() };
        let (mut blocks, mut altups) = (Vec::new(), Vec::new());
        for (layer, description) in of.layers.iter().enumerate() {
            let altup = description.altup.as_ref().map(|altup| self.altup(altup, &mut widths));
            altups.push(altup.transpose()?);
            let last = description.residuals.len().saturating_sub(1);
            let factor = match &description.scale {
                Some(scale) => self.numbers(scale, 1.0)?.first().copied().unwrap_or(1.0),
                None => 1.0,
            };
            for (index, residual) in description.residuals.iter().enumerate() {
                let branch = |branch| self.branch(branch, residual, &mut widths);
                let branches = residual.branches.iter().map(branch).collect::<Result<Vec<_>>>()?;
                let after = residual.after.as_ref();
                let after = after.map(|after| self.norm(after, residual.scale)).transpose()?;
                let scale = if index == last { factor } else { 1.0 };
                blocks.push(Block { layer, branches, after, keep: residual.keep, scale });
            }
        }
        let norm = self.norm(&of.head.norm, 1.0)?;
        let head = match &of.head.output {
            // The same bytes once more.
            output if output.weight == description::Matrix::whole(of.embedding.table.clone()) => {
                let (parts, bias) = (vec![self.table(&of.embedding.table)?], self.bias(&[output], 1.0)?);
                Linear { parts, bias, scale: 1.0, gating: None }
            }
            output => self.linear(&[output], 1.0)?,
        };
        Ok(Program {
            embedding,
            embedding_scale: of.embedding.scale,
            positions: match &of.embedding.positions {
                Some(table) => Some(self.floats(&description::Vector::whole(table.clone()), 0.0)?),
                None => None,
            },
            layer_inputs: match &of.embedding.per_layer {
                Some(inputs) => Some(self.layer_inputs(inputs, &mut widths)?),
                None => None,
            },
            layers: of.layers.len(),
            blocks,
            streams: match &of.embedding.streams {
                Some(streams) => {
                    widths.streams = 1 + streams.open.len();
                    Some(self.streams(streams)?)
                }
                None => None,
            },
            altups,
            norm,
            head,
            head_scale: of.head.scale,
            head_cap: of.head.soft_cap,
            widths,
        })
    }

    /// Multipliers go to the norm after a block, or to its last product.
    fn branch(
        &self,
        of: &description::Branch,
        residual: &description::Residual,
        widths: &mut Widths,
    ) -> Result<Branch> {
        let input = match &of.norm {
            Some(norm) => Input::Normed(self.norm(norm, of.input_scale)?),
            None => Input::Plain(of.input_scale),
        };
        let scale = if residual.after.is_some() { of.scale } else { residual.scale * of.scale };
        let after = of.after.as_ref().map(|after| self.norm(after, scale)).transpose()?;
        let scale = if after.is_some() { 1.0 } else { scale };
        let mixer = match &of.mixer {
            description::Mixer::Attention(of) => {
                Mixer::Attention(Box::new(self.attention(of, widths, scale)?))
            }
            description::Mixer::LatentAttention(of) => {
                Mixer::Latent(Box::new(self.latent_attention(of, widths, scale)?))
            }
            description::Mixer::Ffn(Ffn::Dense(of)) => Mixer::Mlp(Box::new(self.mlp(of, widths, scale)?)),
            description::Mixer::Ffn(Ffn::Experts(of)) => {
                Mixer::Experts(Box::new(self.moe(of, widths, scale)?))
            }
            description::Mixer::ShortConv(of) => {
                Mixer::ShortConv(Box::new(self.short_conv(of, widths, scale)?))
            }
            description::Mixer::GatedDeltaNet(of) => {
                Mixer::Recurrent(Box::new(self.delta_net(of, widths, scale)?))
            }
            description::Mixer::Mamba2(of) => Mixer::Recurrent(Box::new(self.mamba2(of, widths, scale)?)),
            description::Mixer::PerLayerInput(of) => {
                Mixer::LayerInput(Box::new(self.layer_input(of, widths, scale)?))
            }
            description::Mixer::Laurel(of) => Mixer::Laurel(Box::new(self.laurel(of, widths, scale)?)),
        };
        Ok(Branch { input, mixer, after })
    }

    fn layer_inputs(&self, of: &description::PerLayerEmbedding, widths: &mut Widths) -> Result<LayerInputs> {
        let table = self.table(&of.table)?;
        widths.layer_inputs = table.channels;
        Ok(LayerInputs {
            ids: table.rows,
            table,
            table_scale: of.table_scale,
            projection: self.linear(&[&of.projection], of.projection_scale)?,
            norm: self.norm(&of.norm, 1.0)?,
            width: of.width,
            scale: of.scale,
        })
    }

    pub(crate) fn layer_input(
        &self,
        of: &description::PerLayerInput,
        widths: &mut Widths,
        scale: f32,
    ) -> Result<LayerInput> {
        let gate = self.linear(&[&of.gate], 1.0)?;
        widths.first = widths.first.max(gate.outputs());
        widths.inner = widths.inner.max(gate.outputs());
        let (activation, output) = (activation(of.activation), self.linear(&[&of.output], scale)?);
        Ok(LayerInput { layer: of.layer, gate, activation, output })
    }

    pub(crate) fn card(&self) -> &'a Arc<CudaGpu> {
        self.card
    }

    pub(crate) fn slots(&self) -> &'a Slots {
        self.slots
    }

    pub(crate) fn ropes(&self) -> &'a [description::Rope] {
        self.ropes
    }

    pub(crate) fn source(&self) -> Source<'a> {
        self.source
    }

    /// What of a model does not run.
    fn check(&self, of: &Description) -> Result<(), Refusal> {
        let residuals = |layer: &_| check_residuals(layer, of.hidden);
        check_layers(of, RUN, |mixer| self.check_mixer(mixer), residuals)?;
        check_streams(of).map_err(Refusal::model)?;
        if !of.hidden.is_multiple_of(4) {
            return Err(Refusal::model("a residual stream that is not whole fours"));
        }
        if let Some(inputs) = &of.embedding.per_layer {
            check_norm(&inputs.norm, inputs.width).map_err(Refusal::model)?;
        }
        check_stream_norm(&of.head.norm, of.hidden).map_err(Refusal::model)
    }

    fn check_mixer(&self, mixer: &description::Mixer) -> Result<(), String> {
        use description::Mixer;
        match mixer {
            Mixer::Attention(of) => self.check_attention(of),
            Mixer::LatentAttention(of) => check_latent(of, self.ropes),
            Mixer::Ffn(Ffn::Experts(of)) => check_moe(of),
            Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::GatedDeltaNet(_) => {
                check_state(mixer, self.card.limits().shared)
            }
            Mixer::Laurel(of) => check_norm(&of.norm, of.right.outputs()),
            Mixer::Ffn(Ffn::Dense(_)) | Mixer::PerLayerInput(_) => Ok(()),
        }
    }

    fn check_attention(&self, of: &description::Attention) -> Result<(), String> {
        let refuse = |what: &str| Err(what.to_owned());
        if let Some(shape) = latents_of(self.slots, of.slot) {
            return check_folded(of, self.slots, shape, self.ropes);
        }
        if of.key_dim != of.value_dim || !DIMS.contains(&of.key_dim) {
            return Err(format!("heads of {} and {} channels", of.key_dim, of.value_dim));
        }
        if of.kv_heads == 0 || !of.heads.is_multiple_of(of.kv_heads) || of.heads / of.kv_heads > 2 * HEAD_TILE
        {
            return Err(format!("{} query heads on {} kv heads", of.heads, of.kv_heads));
        }
        if matches!(of.projection, Projection::FusedByHead(_)) && of.gate.is_some() {
            return refuse("an output gate beside heads that are projected together");
        }
        if let Some(norm) = &of.v_norm {
            check_norm(norm, of.value_dim)?;
        }
        for (norm, heads) in [(&of.q_norm, of.heads), (&of.k_norm, of.kv_heads)] {
            let Some(norm) = norm else { continue };
            let is_whole = norm.width == heads * of.key_dim && norm.width != of.key_dim;
            if is_whole && (of.norm_place == NormPlace::AfterRope || of.gate.is_some() || of.key_scale != 1.0)
            {
                return refuse("a norm of all heads after their rotation, or beside a gate or a multiplier");
            }
            check_norm(norm, if is_whole { norm.width } else { of.key_dim })?;
        }
        let turned = of.rope.and_then(|rope| self.ropes.get(rope.0)).map_or(0, description::Rope::dims);
        if turned > of.key_dim {
            return refuse("a rotation of more channels than a head has");
        }
        Ok(())
    }

    fn attention(&self, of: &description::Attention, widths: &mut Widths, scale: f32) -> Result<Attention> {
        let projection = self.linear(&projected_layers(&of.projection), 1.0)?;
        widths.projected = widths.projected.max(projection.outputs());
        let folded = self.folded(of)?;
        let rotated = folded.as_ref().map_or(0, |folded| folded.rotated);
        widths.queries = widths.queries.max(of.heads * (of.key_dim + rotated));
        let sink_logits = match &of.sink_logits {
            Some(logits) => Some(self.floats(logits, 0.0)?),
            None => None,
        };
        let of_head = |norm: &&description::Norm| norm.width == of.key_dim;
        let whole =
            |norm: &Option<description::Norm>| self.norm_if(norm.as_ref().filter(|norm| !of_head(norm)));
        Ok(Attention {
            described: of.clone(),
            dim: of.key_dim,
            projection,
            q_norm: self.norm_if(of.q_norm.as_ref().filter(of_head))?,
            k_norm: self.norm_if(of.k_norm.as_ref().filter(of_head))?,
            v_norm: self.norm_if(of.v_norm.as_ref())?,
            whole_norms: [whole(&of.q_norm)?, whole(&of.k_norm)?],
            sink_logits,
            folded,
            output: self.linear(&[&of.output], scale)?,
            output_weights: match self.source {
                Source::File(checkpoint, _) => Some(of.output.weight.read(checkpoint)?),
                Source::Noise(_) => None,
            },
        })
    }

    /// Of a branch with this multiplier.
    pub(crate) fn mlp(&self, of: &description::Mlp, widths: &mut Widths, scale: f32) -> Result<Mlp> {
        let layers = first_layers(&of.inner);
        let first = match Gating::of(of).filter(|_| self.fused) {
            Some(gating) => self.gated(&layers, gating)?,
            None => self.linear(&layers, 1.0)?,
        };
        let down = self.linear(&[&of.down], scale * of.down_scale)?;
        let (inner, activating) = (down.inputs(), Activating::of(of));
        if first.outputs() != activating.inputs() * inner {
            let message = format!("{} gates and ups for {inner} inner values", first.outputs());
            return Err(LoadError::mismatch(message));
        }
        widths.first = widths.first.max(first.outputs());
        widths.inner = widths.inner.max(inner);
        Ok(Mlp { first, inner, activating, down })
    }

    /// A norm with a multiplier of what it gives.
    pub(crate) fn norm(&self, of: &description::Norm, scale: f32) -> Result<Norm> {
        let [weight, bias] = norm_weights(of, |vector| self.numbers(vector, 1.0))?;
        let weight = weight.unwrap_or_else(|| vec![1.0; of.width]);
        let upload = |numbers: Vec<f32>| {
            let scaled: Vec<f32> = numbers.iter().map(|number| scale * number).collect();
            Buffer::of_floats(self.card, &scaled).map_err(on_card)
        };
        let layer = match of.kind {
            NormKind::Rms => None,
            NormKind::Layer => Some(bias.map(upload).transpose()?),
        };
        Ok(Norm { weight: upload(weight)?, eps: of.eps, layer })
    }

    fn norm_if(&self, of: Option<&description::Norm>) -> Result<Option<Norm>> {
        of.map(|norm| self.norm(norm, 1.0)).transpose()
    }

    /// Numbers of a vector; all `noise` where there is no file.
    pub(crate) fn numbers(&self, of: &description::Vector, noise: f32) -> Result<Vec<f32>> {
        match self.source {
            Source::File(checkpoint, _) => of.read(checkpoint),
            Source::Noise(_) => Ok(vec![noise; of.len()]),
        }
    }

    /// Numbers of a small matrix, (outputs, inputs); zeros where there is no file.
    pub(crate) fn matrix_numbers(&self, of: &description::Matrix) -> Result<Vec<f32>> {
        match self.source {
            Source::File(checkpoint, _) => of.read(checkpoint)?.to_f32(),
            Source::Noise(_) => Ok(vec![0.0; of.outputs() * of.inputs()]),
        }
    }

    pub(crate) fn floats(&self, of: &description::Vector, noise: f32) -> Result<Buffer> {
        let numbers = self.numbers(of, noise)?;
        if numbers.len() != of.len() {
            return Err(LoadError::mismatch(format!("{} numbers where {} belong", numbers.len(), of.len())));
        }
        Buffer::of_floats(self.card, &numbers).map_err(on_card)
    }

    /// A table of embeddings, which may be the output layer too.
    fn table(&self, of: &description::TensorRef) -> Result<Arc<Matrix>> {
        if let Some(known) = self.shared.borrow().get(&of.name) {
            return Ok(Arc::clone(known));
        }
        let matrix = Arc::new(match self.source {
            Source::File(checkpoint, to) => {
                self.upload(&[packed(of.read(checkpoint)?, Precision::Packed, to)?])?
            }
            Source::Noise(kind) => {
                let [rows, channels] = of.shape[..] else {
                    return Err(LoadError::mismatch(format!("tensor {:?} is not a matrix", of.name)));
                };
                self.noise(kind, rows, channels)?
            }
        });
        self.shared.borrow_mut().insert(of.name.clone(), Arc::clone(&matrix));
        Ok(matrix)
    }

    /// Matrices of one type and width as one.
    pub(crate) fn upload(&self, tensors: &[Tensor]) -> Result<Matrix> {
        self.upload_as(tensors, RowOrder::Stored)
    }

    fn upload_as(&self, tensors: &[Tensor], order: RowOrder) -> Result<Matrix> {
        let mut uploader = self.uploader.borrow_mut();
        let uploader = match &mut *uploader {
            Some(uploader) => uploader,
            none => none.insert(Uploader::new(self.card, self.bytes, self.heard)?),
        };
        uploader.matrix(tensors, order)
    }

    pub(crate) fn noise(&self, kind: WeightType, rows: usize, channels: usize) -> Result<Matrix> {
        self.seed.set(self.seed.get() + 1);
        Matrix::noise(self.card, kind, rows, channels, self.seed.get())
    }

    /// Layers of the same input; neighbours of one type become one matrix.
    pub(crate) fn linear(&self, layers: &[&description::Linear], scale: f32) -> Result<Linear> {
        let bias = self.bias(layers, scale)?;
        let Some(tensors) = self.tensors(layers)? else {
            let parts = vec![Arc::new(self.noise_of(layers)?)];
            return Ok(Linear { parts, bias, scale, gating: None });
        };
        let upload = |run: &[Tensor]| self.upload(run).map(Arc::new);
        let parts = runs(&tensors)?.into_iter().map(upload).collect::<Result<_>>()?;
        Ok(Linear { parts, bias, scale, gating: None })
    }

    /// Gates and ups whose product gives inner values; as any other layers where they are of several types, or have biases.
    fn gated(&self, layers: &[&description::Linear], gating: Gating) -> Result<Linear> {
        let rows: usize = layers.iter().map(|layer| layer.outputs()).sum();
        let (scale, gating) = (1.0, Some(gating));
        if !rows.is_multiple_of(TILE_ROWS) || layers.iter().any(|layer| layer.bias.is_some()) {
            return self.linear(layers, scale);
        }
        let matrix = match self.tensors(layers)? {
            None => self.noise_of(layers)?,
            Some(tensors) if runs(&tensors)?.len() == 1 => {
                self.upload_as(&tensors, RowOrder::Paired(rows))?
            }
            Some(_) => return self.linear(layers, scale),
        };
        Ok(Linear { parts: vec![Arc::new(matrix)], bias: None, scale, gating })
    }

    /// How the gates and ups of a mixture's experts are gated where the product does that: so many rows of each expert, without biases.
    pub(crate) fn expert_gating(&self, of: &description::Mlp, rows: usize) -> Option<Gating> {
        let has_bias = first_layers(&of.inner).iter().any(|layer| layer.bias.is_some());
        Gating::of(of).filter(|_| self.fused && rows.is_multiple_of(TILE_ROWS) && !has_bias)
    }

    /// Layers of one type as one matrix in this order, and their biases.
    pub(crate) fn one_matrix(
        &self,
        layers: &[&description::Linear],
        scale: f32,
        order: RowOrder,
    ) -> Result<(Matrix, Option<Buffer>)> {
        let bias = self.bias(layers, scale)?;
        let Some(tensors) = self.tensors(layers)? else { return Ok((self.noise_of(layers)?, bias)) };
        let first = &tensors[0];
        let is_like = |other: &&Tensor| other.dtype() != first.dtype() || other.columns() != first.columns();
        if let Some(other) = tensors.iter().find(is_like) {
            let (name, other) = (first.name(), other.name());
            return Err(LoadError::unsupported(format!(
                "tensor {other:?} has another type or width than {name:?}, and experts of a layer are one matrix on {}",
                self.card.label()
            )));
        }
        Ok((self.upload_as(&tensors, order)?, bias))
    }

    /// The weights of layers; none where there is no file.
    fn tensors(&self, layers: &[&description::Linear]) -> Result<Option<Vec<Tensor>>> {
        let Source::File(checkpoint, to) = self.source else { return Ok(None) };
        let read = |layer: &&description::Linear| packed(layer.weight.read(checkpoint)?, layer.precision, to);
        layers.iter().map(read).collect::<Result<_>>().map(Some)
    }

    fn noise_of(&self, layers: &[&description::Linear]) -> Result<Matrix> {
        let Source::Noise(kind) = self.source else {
            return Err(LoadError::mismatch("weights are in a file"));
        };
        let (rows, channels) = (layers.iter().map(|layer| layer.outputs()).sum(), layers[0].inputs());
        self.noise(kind, rows, channels)
    }

    /// The biases of layers side by side; zeros for those that have none.
    fn bias(&self, layers: &[&description::Linear], scale: f32) -> Result<Option<Buffer>> {
        let biases = biases(layers, |bias| self.numbers(bias, 0.0))?;
        let Some(mut numbers) = biases else { return Ok(None) };
        numbers.iter_mut().for_each(|bias| *bias *= scale);
        Buffer::of_floats(self.card, &numbers).map(Some).map_err(on_card)
    }
}

/// What of the residuals of a layer does not run.
fn check_residuals(layer: &description::Layer, hidden: usize) -> Result<(), String> {
    let refuse = |what: &str| Err(what.to_owned());
    for residual in &layer.residuals {
        if residual.branches.is_empty() {
            return refuse("a residual of no blocks");
        }
        let after = residual.branches.iter().flat_map(|branch| &branch.after);
        after.chain(&residual.after).try_for_each(|after| check_norm(after, hidden))?;
        let before = residual.branches.iter().flat_map(|branch| &branch.norm);
        before.into_iter().try_for_each(|norm| check_stream_norm(norm, hidden))?;
    }
    Ok(())
}

/// A norm before a block, or the last one.
fn check_stream_norm(of: &description::Norm, hidden: usize) -> Result<(), String> {
    match of.kind {
        NormKind::Layer if of.width == hidden => Ok(()),
        NormKind::Layer | NormKind::Rms => check_norm(of, hidden),
    }
}

pub(crate) fn check_norm(of: &description::Norm, width: usize) -> Result<(), String> {
    match of.kind {
        NormKind::Rms if of.bias.is_none() && of.width == width => Ok(()),
        NormKind::Rms => Err("a norm with a bias, or over other widths than a row or a head".to_owned()),
        NormKind::Layer => Err("a layer norm".to_owned()),
    }
}
