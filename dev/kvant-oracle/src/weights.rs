//! Every tensor of a description as f64, and the products and norms that are made with them.

use crate::function::{add, dot};
use kvant_model::description::{Linear, Matrix, Norm, NormKind, TensorRef, Vector};
use kvant_model::error::Result;
use kvant_model::{AdapterMix, Checkpoint, Description, Tensor};
use std::collections::BTreeMap;

/// All tensors, by name, and what adapters add.
pub struct Weights {
    tensors: BTreeMap<String, Vec<f64>>,
    adapters: AdapterMix,
}

impl Weights {
    /// Reads every tensor that the description names.
    pub fn read(description: &Description, checkpoint: &Checkpoint) -> Result<Self> {
        let read = |of: &TensorRef| {
            let values = of.read(checkpoint)?.to_f32()?;
            Ok((of.name.clone(), values.into_iter().map(f64::from).collect()))
        };
        let all = description.tensors().into_iter().chain(description.mtp_tensors());
        let tensors = all.map(read).collect::<Result<_>>()?;
        Ok(Self { tensors, adapters: AdapterMix::default() })
    }

    /// The same with adapters.
    pub fn with(self, adapters: AdapterMix) -> Self {
        Self { adapters, ..self }
    }

    /// All numbers of a tensor, as they are stored.
    fn stored(&self, of: &TensorRef) -> &[f64] {
        self.tensors
            .get(&of.name)
            .unwrap_or_else(|| panic!("Description::tensors() leaves out {:?}", of.name))
    }

    /// A row of a table.
    pub fn row(&self, table: &TensorRef, row: usize) -> &[f64] {
        let width = *table.shape.last().expect("a table has columns");
        &self.stored(table)[row * width..][..width]
    }

    /// A list of numbers.
    pub fn vector(&self, of: &Vector) -> Vec<f64> {
        let stored = self.stored(&of.tensor);
        let part = match of.expert {
            Some(expert) => {
                let size = stored.len() / of.tensor.shape[0];
                &stored[expert * size..][..size]
            }
            None => stored,
        };
        let numbers: Vec<f64> = match of.rows {
            Some(rows) => (0..rows.count).map(|i| part[rows.row(i)]).collect(),
            None => part.to_vec(),
        };
        numbers.into_iter().map(|x| x + f64::from(of.offset)).collect()
    }

    /// `W · x`.
    pub fn product(&self, of: &Matrix, x: &[f64]) -> Vec<f64> {
        let stored = self.stored(&of.tensor);
        assert_eq!(x.len(), of.inputs(), "inputs of {:?}", of.tensor.name);
        // What is stored is (rows, columns), one such matrix for each expert.
        let (rows, columns) = match *of.tensor.shape {
            [.., rows, columns] => (rows, columns),
            [columns] => (1, columns),
            [] => (1, 1),
        };
        let part = &stored[of.expert.unwrap_or(0) * rows * columns..][..rows * columns];
        let weight = |output: usize, input: usize| {
            let output = of.rows.map_or(output, |rows| rows.row(output));
            if of.transposed { part[input * columns + output] } else { part[output * columns + input] }
        };
        let sum = |output| x.iter().enumerate().map(|(input, x)| weight(output, input) * x).sum();
        (0..of.outputs()).map(sum).collect()
    }

    /// `W · x + b`, and for every adapter `scale · B · (A · x)`.
    pub fn linear(&self, of: &Linear, x: &[f64]) -> Vec<f64> {
        let mut y = self.product(&of.weight, x);
        if let Some(bias) = &of.bias {
            let bias = self.vector(bias);
            assert_eq!(y.len(), bias.len(), "the bias of {:?}", of.weight.tensor.name);
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        let Matrix { tensor, expert: None, rows: None, .. } = &of.weight else { return y };
        for applied in self.adapters.iter() {
            if let Some(update) = applied.adapter.update(&tensor.name) {
                let narrow = multiplied(update.a(), x);
                let scale = f64::from(update.scale()) * f64::from(applied.scale);
                add(&mut y, &multiplied(update.b(), &narrow), scale);
            }
        }
        y
    }

    /// Norms every stretch of the norm's width.
    pub fn norm(&self, of: &Norm, x: &[f64]) -> Vec<f64> {
        assert!(x.len().is_multiple_of(of.width), "a norm of {} over rows of {}", of.width, x.len());
        let weight = of.weight.as_ref().map(|weight| self.vector(weight));
        let bias = of.bias.as_ref().map(|bias| self.vector(bias));
        let one = |stretch: &[f64]| -> Vec<f64> {
            let normed = match of.kind {
                NormKind::Rms => rms(stretch, of.eps),
                NormKind::Layer => {
                    let mean = stretch.iter().sum::<f64>() / stretch.len() as f64;
                    rms(&stretch.iter().map(|x| x - mean).collect::<Vec<_>>(), of.eps)
                }
            };
            let weigh = |(i, x): (usize, f64)| {
                x * weight.as_ref().map_or(1.0, |weight| weight[i])
                    + bias.as_ref().map_or(0.0, |bias| bias[i])
            };
            normed.into_iter().enumerate().map(weigh).collect()
        };
        x.chunks(of.width).flat_map(one).collect()
    }

    /// The same where there is a norm.
    pub fn norm_if(&self, of: Option<&Norm>, x: Vec<f64>) -> Vec<f64> {
        of.map_or_else(|| x.clone(), |norm| self.norm(norm, &x))
    }
}

/// `M · x` of a matrix in f32.
fn multiplied(matrix: &Tensor, x: &[f64]) -> Vec<f64> {
    let numbers = matrix.to_f32().expect("an adapter's matrices are f32");
    let row = |row: &[f32]| row.iter().zip(x).map(|(m, x)| f64::from(*m) * x).sum();
    numbers.chunks(matrix.columns()).map(row).collect()
}

/// `x / √(mean(x²) + eps)`.
pub fn rms(x: &[f64], eps: f32) -> Vec<f64> {
    let root = (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().map(|x| x / root).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::description::RowRange;

    fn weights(shape: &[usize]) -> (Weights, TensorRef) {
        let count = shape.iter().product::<usize>();
        let all = (0..count).map(|i| i as f64).collect();
        let tensor = TensorRef { name: "w".to_owned(), shape: shape.to_vec() };
        let tensors = BTreeMap::from([("w".to_owned(), all)]);
        (Weights { tensors, adapters: AdapterMix::default() }, tensor)
    }

    #[test]
    fn experts_transposes_and_every_other_row_are_found() {
        // Two experts, (inputs 3, outputs 4) each; outputs 1 and 3 of the second.
        let (weights, tensor) = weights(&[2, 3, 4]);
        let rows = Some(RowRange::every(2, 1, 2));
        let matrix = Matrix { tensor: tensor.clone(), expert: Some(1), transposed: true, rows };
        assert_eq!(weights.product(&matrix, &[1.0, 0.0, 0.0]), [13.0, 15.0]);
        assert_eq!(weights.product(&matrix, &[0.0, 0.0, 1.0]), [21.0, 23.0]);
        let rows = Some(RowRange::from(2, 1));
        let matrix = Matrix { tensor: tensor.clone(), expert: Some(0), transposed: false, rows };
        assert_eq!(weights.product(&matrix, &[1.0, 0.0, 0.0, 10.0]), [118.0]);
        let vector = Vector { tensor, expert: Some(1), rows: Some(RowRange::every(5, 0, 2)), offset: 1.0 };
        assert_eq!(weights.vector(&vector), [13.0, 18.0]);
    }

    #[test]
    fn norms_act_on_each_stretch() {
        let (weights, tensor) = weights(&[2]);
        let weight = Some(Vector { offset: 1.0, ..Vector::whole(tensor) });
        let norm = Norm { kind: NormKind::Layer, width: 2, weight: weight.clone(), bias: weight, eps: 0.0 };
        assert_eq!(weights.norm(&norm, &[1.0, 5.0, 8.0, 2.0]), [0.0, 4.0, 2.0, 0.0]);
        let norm = Norm { kind: NormKind::Rms, bias: None, ..norm };
        assert_eq!(weights.norm(&norm, &[3.0, 3.0, -2.0, 2.0]), [1.0, 2.0, -1.0, 2.0]);
    }
}
