//! Linear layers: `y = W x + b` over weights of any stored type.

use crate::blocks::dot::dot_block;
use crate::blocks::rows::{Rows, for_each_row};
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use kvant_threads::for_each_chunk;
use std::cell::RefCell;

/// Weight rows unpacked at a time: few enough to stay in a core's own cache, many enough to reuse what is
/// loaded of the activations.
const BLOCK_ROWS: usize = 16;

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
    fn multiply(&self, x: &Rows) -> Rows;
}

/// The reference product: weights unpacked to f32 a few rows at a time, f32 activations.
pub struct Unpacked {
    weight: Tensor, // (outputs, inputs)
}

impl Unpacked {
    /// A product over `weight`, `(outputs, inputs)`.
    pub fn new(weight: Tensor) -> Result<Self> {
        if weight.shape().len() != 2 || weight.is_empty() {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} has shape {:?}; a linear layer needs two extents, both above zero",
                weight.name(),
                weight.shape()
            )));
        }
        // One row now, so that a type that cannot be unpacked is refused here and not in the middle of a pass.
        weight.row_f32(0, &mut vec![0.0; weight.columns()])?;
        Ok(Self { weight })
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

    fn multiply(&self, x: &Rows) -> Rows {
        thread_local! {
            static UNPACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let (tokens, n) = (x.tokens(), self.inputs());
        assert_eq!(x.width(), n, "tensor {:?} was given rows of another width", self.weight.name());
        let mut product = vec![0.0; self.outputs() * tokens]; // (outputs, tokens)
        for_each_chunk(&mut product, BLOCK_ROWS * tokens.max(1), |block, out| {
            UNPACKED.with_borrow_mut(|rows| {
                let count = out.len() / tokens;
                rows.resize(count * n, 0.0); // (count, inputs)
                for (i, row) in rows.chunks_exact_mut(n).enumerate() {
                    self.weight.row_f32(block * BLOCK_ROWS + i, row).expect("the type was tried in new()");
                }
                dot_block(rows, x.data(), n, out);
            });
        });
        if tokens > 1 {
            product = transposed(&product, self.outputs(), tokens);
        }
        Rows::from_vec(product, self.outputs())
    }
}

/// `(rows, columns)` to `(columns, rows)`.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    // A cache line of each input row is read at once and goes to as many output rows.
    const LINE: usize = 16;
    let mut out = vec![0.0; values.len()];
    for_each_chunk(&mut out, LINE * rows, |band, out| {
        let count = out.len() / rows;
        for (r, input) in values.chunks_exact(columns).enumerate() {
            for (c, &value) in input[band * LINE..][..count].iter().enumerate() {
                out[c * rows + r] = value;
            }
        }
    });
    out
}

/// A linear layer with an optional bias.
pub struct Linear {
    weight: Box<dyn Multiply>,
    bias: Option<Vec<f32>>, // (outputs)
}

impl Linear {
    /// A layer over a product and its bias.
    pub fn new(weight: Box<dyn Multiply>, bias: Option<Vec<f32>>) -> Self {
        assert!(bias.as_ref().is_none_or(|b| b.len() == weight.outputs()), "a bias of another width");
        Self { weight, bias }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.weight.outputs()
    }

    /// The weights' bytes, as they are multiplied with.
    pub fn bytes(&self) -> &[u8] {
        self.weight.bytes()
    }

    /// `(tokens, inputs)` to `(tokens, outputs)`.
    pub fn forward(&self, x: &Rows) -> Rows {
        let mut y = self.weight.multiply(x);
        if let Some(bias) = &self.bias {
            for_each_row(y.data_mut(), bias.len(), |_, row| {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            });
        }
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::quant::quantize_tensor;

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
            let linear = Linear::new(Box::new(Unpacked::new(tensor).unwrap()), Some(bias.clone()));
            for tokens in [1, 3, 16, 21] {
                let x = Rows::from_vec(noise(tokens * inputs, 0.3), inputs);
                let y = linear.forward(&x);
                for t in 0..tokens {
                    let alone = linear.forward(&x.gather(&[t]));
                    assert_eq!(alone.data(), y.row(t), "row {t} of {tokens}");
                    for o in 0..outputs {
                        let exact: f64 = (0..inputs)
                            .map(|i| f64::from(weights[o * inputs + i]) * f64::from(x.row(t)[i]))
                            .sum();
                        assert!((f64::from(y.row(t)[o]) - exact - f64::from(bias[o])).abs() < 1e-5);
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
            let error = Unpacked::new(tensor).err().unwrap().to_string();
            assert!(error.contains(&name), "{error}");
        }
    }
}
