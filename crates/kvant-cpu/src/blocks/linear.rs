//! Linear layers: `y = W x + b` over weights of any stored type.

use crate::blocks::activations::{Activations, for_each_row};
use crate::blocks::adapted::AdaptedRows;
use kvant_model::Tensor;
use kvant_model::error::{LoadError, Result};
use kvant_simd::Tier;
use kvant_weights::{Matrix, multiply_all, multiply_unpacked};

/// A matrix that multiplies activations. Kernels for packed weights and quantised activations are further
/// implementations of this trait; [`Unpacked`] is the reference they are held to.
///
/// **Invariant:** an output row depends on its input row alone, bit for bit: not on the other rows of the pass
/// and not on the number of threads.
pub trait Multiply: Send + Sync {
    /// Width of an input row.
    fn inputs(&self) -> usize;
    /// Width of an output row.
    fn outputs(&self) -> usize;
    /// The stored weights.
    fn bytes(&self) -> &[u8];
    /// `(tokens, inputs)` to `(tokens, outputs)`.
    fn multiply(&self, x: &Activations) -> Activations;
    /// The packed weights, where it is a product of such with rounded activations: several of them can share a parallel region.
    fn packed(&self) -> Option<&Matrix> {
        None
    }
}

/// The reference product: weights unpacked to f32 a few rows at a time, f32 activations.
pub struct Unpacked {
    tier: Tier,
    weight: Tensor, // (outputs, inputs)
}

impl Unpacked {
    /// A product over `weight`, `(outputs, inputs)`.
    pub fn new(tier: Tier, weight: Tensor) -> Result<Self> {
        if weight.shape().len() != 2 || weight.is_empty() {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} has shape {:?}; a linear layer needs two extents, both above zero",
                weight.name(),
                weight.shape()
            )));
        }
        // One row now, so that a type that cannot be unpacked is refused here and not in the middle of a pass.
        weight.row_f32(0, &mut vec![0.0; weight.columns()])?;
        Ok(Self { tier, weight })
    }

    /// The weights, which are known to be a matrix of a type that can be decoded.
    pub fn into_weight(self) -> Tensor {
        self.weight
    }
}

impl Multiply for Unpacked {
    fn inputs(&self) -> usize {
        self.weight.columns()
    }

    fn outputs(&self) -> usize {
        self.weight.rows()
    }

    fn bytes(&self) -> &[u8] {
        self.weight.bytes()
    }

    fn multiply(&self, x: &Activations) -> Activations {
        assert_eq!(
            x.width(),
            self.inputs(),
            "tensor {:?} was given rows of another width",
            self.weight.name()
        );
        let mut out = Activations::unset(x.tokens(), self.outputs());
        let unpack = |row: usize, numbers: &mut [f32]| {
            self.weight.row_f32(row, numbers).expect("the type was tried in new()");
        };
        multiply_unpacked(self.tier, (self.outputs(), self.inputs()), unpack, x.data(), out.data_mut());
        out
    }
}

/// A linear layer with an optional bias.
pub struct Linear {
    weight: Box<dyn Multiply>,
    bias: Option<Vec<f32>>, // (outputs)
    /// What adapters call the weights; none where there is no tensor of just them.
    name: Option<String>,
}

impl Linear {
    /// A layer over a product and its bias.
    pub fn new(weight: Box<dyn Multiply>, bias: Option<Vec<f32>>) -> Self {
        assert!(bias.as_ref().is_none_or(|b| b.len() == weight.outputs()), "a bias of another width");
        Self { weight, bias, name: None }
    }

    /// The same layer, whose weights are all of the tensor `name`.
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    /// The weights' bytes, as they are multiplied with.
    pub fn bytes(&self) -> &[u8] {
        self.weight.bytes()
    }

    /// The weights as plain numbers, `(outputs, inputs)`, by their products with the unit vectors.
    pub fn weights(&self) -> Activations {
        let (inputs, outputs) = (self.weight.inputs(), self.weight.outputs());
        let mut units = Activations::zeros(inputs, inputs);
        (0..inputs).for_each(|i| units.row_mut(i)[i] = 1.0);
        let columns = self.weight.multiply(&units); // (inputs, outputs)
        let mut weights = Activations::unset(outputs, inputs);
        for_each_row(weights.data_mut(), inputs, |output, row| {
            row.iter_mut().enumerate().for_each(|(input, w)| *w = columns.row(input)[output]);
        });
        weights
    }

    /// `(tokens, inputs)` to `(tokens, outputs)`.
    pub fn forward(&self, x: &Activations) -> Activations {
        self.with_bias(self.weight.multiply(x))
    }

    fn with_bias(&self, mut y: Activations) -> Activations {
        if let Some(bias) = &self.bias {
            for_each_row(y.data_mut(), bias.len(), |_, row| {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            });
        }
        y
    }

    /// The same over all rows of a pass, with what adapters add to some of them.
    pub fn forward_adapted(&self, x: &Activations, adapted: &AdaptedRows<'_>) -> Activations {
        self.with_adapters(self.forward(x), x, adapted)
    }

    fn with_adapters(&self, mut y: Activations, x: &Activations, adapted: &AdaptedRows<'_>) -> Activations {
        if let Some(name) = &self.name {
            adapted.add(name, x, &mut y);
        }
        y
    }

    /// Several layers over the same rows, as [`Linear::forward_adapted`] has each of them: in one parallel region, where all are products
    /// of packed weights.
    pub fn forward_all<const N: usize>(
        layers: [&Linear; N],
        x: &Activations,
        adapted: &AdaptedRows<'_>,
    ) -> [Activations; N] {
        let packed = layers.map(|layer| layer.weight.packed());
        let tier = packed[0].map(Matrix::tier);
        let Some(tier) = tier.filter(|_| packed.iter().all(|of| of.map(Matrix::tier) == tier)) else {
            return layers.map(|layer| layer.forward_adapted(x, adapted));
        };
        let mut all = layers.map(|layer| Activations::unset(x.tokens(), layer.outputs()));
        let rows = packed.into_iter().flatten().zip(&mut all);
        let mut products: Vec<(&Matrix, &mut [f32])> =
            rows.map(|(matrix, out)| (matrix, out.data_mut())).collect();
        multiply_all(x.quantised(tier), &mut products);
        let mut layers = layers.into_iter();
        all.map(|y| match layers.next() {
            Some(layer) => layer.with_adapters(layer.with_bias(y), x, adapted),
            None => y,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::DType;
    use kvant_model::quant::quantize_tensor;

    fn noise(n: usize, seed: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.7 + seed).sin()).collect()
    }

    /// Outputs that are no multiple of a block and tokens that are no multiple of a line or a tile.
    #[test]
    fn products_of_every_size_match_the_definition_and_rows_do_not_meet() {
        let (outputs, inputs) = (37, 64);
        let weights = noise(outputs * inputs, 0.1);
        let bias = noise(outputs, 0.2);
        let tensor = Tensor::from_f32("w", vec![outputs, inputs], &weights).unwrap();
        let packed = quantize_tensor(&tensor, DType::Int8G32).unwrap();
        for tensor in [tensor, packed] {
            let weights = tensor.to_f32().unwrap();
            let linear =
                Linear::new(Box::new(Unpacked::new(Tier::Scalar, tensor).unwrap()), Some(bias.clone()));
            assert_eq!(linear.weights().data(), weights);
            for tokens in [1, 3, 16, 21] {
                let x = Activations::from_vec(noise(tokens * inputs, 0.3), inputs);
                let y = linear.forward(&x);
                for t in 0..tokens {
                    let alone = linear.forward(&x.gather(&[t]));
                    assert_eq!(alone.data(), y.row(t), "row {t} of {tokens}");
                    for o in 0..outputs {
                        let exact: f64 = (0..inputs)
                            .map(|i| f64::from(weights[o * inputs + i]) * f64::from(x.row(t)[i]))
                            .sum();
                        assert!((f64::from(y.row(t)[o]) - exact - f64::from(bias[o])).abs() < 3e-5);
                    }
                }
            }
        }
    }

    #[test]
    fn weights_that_are_no_matrix_or_no_numbers_are_refused_by_name() {
        let vector = Tensor::from_f32("some.vector", vec![3], &[0.0; 3]).unwrap();
        let table = Tensor::new("some.table", DType::I32, vec![1, 2], vec![0; 8].into()).unwrap();
        for tensor in [vector, table] {
            let name = tensor.name().to_owned();
            let error = Unpacked::new(Tier::Scalar, tensor).err().unwrap().to_string();
            assert!(error.contains(&name), "{error}");
        }
    }
}
