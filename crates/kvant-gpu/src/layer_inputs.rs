//! Inputs of each layer's own, beside the residual stream.

use crate::compile::Compiler;
use crate::gates::{GateFunction, GateShape, gate};
use crate::ops::{Norm, NormShape, add};
use crate::product::Epilogue;
use crate::program::{Linear, Widths};
use crate::run::Run;
use crate::weights::{Matrix, Place};
use kvant_model::description::{self, Activation};
use kvant_model::error::Result;

/// From token ids and first activations to an input for each layer.
pub(crate) struct LayerInputs {
    layers: usize,
    width: usize,
    table: Matrix,
    table_scale: f32,
    projection: Linear,
    projection_scale: f32,
    norm: Norm,
    scale: f32,
}

/// `output(act(gate(x)) · input)`.
pub(crate) struct LayerInput {
    layer: usize,
    width: usize,
    gate: Linear,
    activation: Activation,
    output: Linear,
}

impl LayerInputs {
    /// The ids of a pass as the table has them: those beyond it have its first row.
    pub(crate) fn row_of(&self, id: u32) -> u32 {
        if (id as usize) < self.table.outputs() { id } else { 0 }
    }
}

impl Compiler<'_> {
    pub(crate) fn layer_inputs(
        &self,
        of: &description::PerLayerEmbedding,
        widths: &mut Widths,
    ) -> Result<LayerInputs> {
        let projection = self.linear(&[&of.projection])?;
        widths.layer_inputs = projection.outputs();
        Ok(LayerInputs {
            layers: projection.outputs() / of.width,
            width: of.width,
            table: Matrix::upload(self.gpu, &[of.table.read(self.checkpoint)?])?,
            table_scale: of.table_scale,
            projection,
            projection_scale: of.projection_scale,
            norm: self.norm(&of.norm)?,
            scale: of.scale,
        })
    }

    pub(crate) fn layer_input(
        &self,
        of: &description::PerLayerInput,
        widths: &mut Widths,
    ) -> Result<LayerInput> {
        let gate = self.linear(&[&of.gate])?;
        widths.first = widths.first.max(gate.outputs());
        let (width, output) = (gate.outputs(), self.linear(&[&of.output])?);
        Ok(LayerInput { layer: of.layer, width, gate, activation: of.activation, output })
    }
}

impl Run<'_> {
    /// The inputs of all layers, of the first activations and the rows of a table that the plan lists.
    pub(crate) fn layer_inputs(&mut self, of: &LayerInputs, ids_at: usize) {
        let buffers = self.buffers;
        let (x, all) = (buffers.place("x"), buffers.place("layer inputs"));
        let other = buffers.place("layer rows");
        let epilogue = Epilogue { scale: of.projection_scale, ..Epilogue::STORE };
        self.linear(&of.projection, self.rows, x, other, epilogue);
        let shape = NormShape {
            segments: of.layers,
            x_segment: of.width,
            y_segment: of.width,
            scale: of.scale,
            ..NormShape::rows(self.rows)
        };
        self.norm(&of.norm, other, all, shape);
        let scale = of.table_scale * of.scale;
        of.table.gather(&mut self.recorder, self.rows, (&buffers.plan, ids_at), scale, None, other);
        add(&mut self.recorder, (self.rows, of.layers * of.width), other, all, (1.0, 1.0));
    }

    /// A layer's own input, which no other block reads.
    pub(crate) fn layer_input(&mut self, of: &LayerInput, x: Place<'_>, y: Place<'_>, epilogue: Epilogue) {
        let gates = self.buffers.place("first");
        self.linear(&of.gate, self.rows, x, gates, Epilogue::STORE);
        let all = self.buffers.place("layer inputs");
        let own = Place { at: of.layer * of.width, ..all };
        let shape = GateShape::rows(self.rows, of.width);
        gate(&mut self.recorder, GateFunction::Of(of.activation), gates, own, shape);
        self.linear(&of.output, self.rows, own, y, epilogue);
    }
}
