//! Inputs of each layer's own, beside the residual stream.

use crate::blocks::{Activations, Block, Laurel, PerLayerEmbedding, PerLayerInput, for_each_row, function};
use crate::pass::CpuPass;

impl Block<'_, PerLayerEmbedding> {
    /// `(tokens, layers · width)`.
    pub fn forward(&self, x: &Activations, ids: impl Iterator<Item = u32>) -> Activations {
        let mut inputs = self.projection.forward(x);
        inputs.data_mut().iter_mut().for_each(|x| *x *= self.projection_scale);
        self.norm.in_place(&mut inputs);
        let mut row = vec![0.0; inputs.width()];
        for (at, id) in ids.enumerate() {
            let id = Some(id as usize).filter(|&id| id < self.table.rows()).unwrap_or(0);
            self.table.row_f32(id, &mut row).expect("the type was tried when it was compiled");
            let pairs = inputs.row_mut(at).iter_mut().zip(&row);
            pairs.for_each(|(x, own)| *x = (*x + own * self.table_scale) * self.scale);
        }
        inputs
    }
}

impl Block<'_, Laurel> {
    /// `(tokens, hidden)` to `(tokens, hidden)`.
    pub fn forward(&self, x: &Activations) -> Activations {
        let mut y = self.right.forward(&self.left.forward(x));
        self.norm.in_place(&mut y);
        y.add_scaled(x, 1.0);
        y
    }
}

impl Block<'_, PerLayerInput> {
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
