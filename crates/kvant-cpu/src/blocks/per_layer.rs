//! Inputs of each layer's own, beside the residual stream.

use crate::blocks::{Activations, Linear, Norm, for_each_row, function};
use crate::pass::CpuPass;
use kvant_model::Tensor;
use kvant_model::description::{self, Activation};
use kvant_model::error::Result;

/// From tokens and first activations to the inputs of all layers. As [`kvant_model::description::PerLayerEmbedding`].
pub struct PerLayerEmbedding {
    table: Tensor, // (ids, layers · width)
    table_scale: f32,
    projection: Linear,
    projection_scale: f32,
    norm: Norm,
    scale: f32,
}

impl PerLayerEmbedding {
    /// That of a description, over these weights.
    pub fn new(
        table: Tensor,
        projection: Linear,
        norm: Norm,
        of: &description::PerLayerEmbedding,
    ) -> Result<Self> {
        // One row now, so that a type that cannot be unpacked is refused here.
        table.row_f32(0, &mut vec![0.0; table.columns()])?;
        let &description::PerLayerEmbedding { table_scale, projection_scale, scale, .. } = of;
        Ok(Self { table, table_scale, projection, projection_scale, norm, scale })
    }

    /// `(tokens, layers · width)`.
    pub fn forward(&self, x: &Activations, ids: impl Iterator<Item = u32>) -> Activations {
        let mut inputs = self.projection.forward(x);
        inputs.data_mut().iter_mut().for_each(|x| *x *= self.projection_scale);
        self.norm.in_place(&mut inputs);
        let mut row = vec![0.0; inputs.width()];
        for (at, id) in ids.enumerate() {
            let id = Some(id as usize).filter(|&id| id < self.table.rows()).unwrap_or(0);
            self.table.row_f32(id, &mut row).expect("the type was tried in new()");
            let pairs = inputs.row_mut(at).iter_mut().zip(&row);
            pairs.for_each(|(x, own)| *x = (*x + own * self.table_scale) * self.scale);
        }
        inputs
    }
}

/// `x + norm(right(left(x)))`. Fields are as in [`kvant_model::description::Laurel`].
pub struct Laurel {
    pub left: Linear,
    pub right: Linear,
    pub norm: Norm,
}

impl Laurel {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations) -> Activations {
        let mut y = self.right.forward(&self.left.forward(x));
        self.norm.in_place(&mut y);
        y.add_scaled(x, 1.0);
        y
    }
}

/// `output(act(gate(x)) · input)`. Fields are as in [`kvant_model::description::PerLayerInput`].
pub struct PerLayerInput {
    pub layer: usize,
    pub gate: Linear,
    pub activation: Activation,
    pub output: Linear,
}

impl PerLayerInput {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations, pass: &CpuPass<'_, '_>) -> Activations {
        let mut gate = self.gate.forward(x);
        let width = gate.width();
        let inputs = pass.per_layer.as_ref().expect("a model with these layers has their embedding");
        function::in_place(self.activation, gate.data_mut(), width);
        for_each_row(gate.data_mut(), width, |token, row| {
            let own = &inputs.row(token)[self.layer * width..][..width];
            row.iter_mut().zip(own).for_each(|(x, own)| *x *= own);
        });
        self.output.forward(&gate)
    }
}
