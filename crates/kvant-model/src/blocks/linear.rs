//! Linear layers: `y = W x + b` over weights of any stored type.

use crate::blocks::dot::dot_block;
use crate::blocks::rows::{Rows, for_each_row};
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use rayon::prelude::*;
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
}

impl Multiply for Unpacked {
    fn inputs(&self) -> usize {
        self.weight.columns()
    }

    fn outputs(&self) -> usize {
        self.weight.rows()
    }

    fn multiply(&self, x: &Rows) -> Rows {
        thread_local! {
            static UNPACKED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let (tokens, n) = (x.tokens(), self.inputs());
        assert_eq!(x.width(), n, "tensor {:?} was given rows of another width", self.weight.name());
        let mut product = vec![0.0; self.outputs() * tokens]; // (outputs, tokens)
        product.par_chunks_mut(BLOCK_ROWS * tokens.max(1)).enumerate().for_each(|(block, out)| {
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
    let mut out = vec![0.0; values.len()];
    for_each_row(&mut out, rows, |c, row| {
        for (r, value) in row.iter_mut().enumerate() {
            *value = values[r * columns + c];
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
    pub fn new(weight: impl Multiply + 'static, bias: Option<Vec<f32>>) -> Self {
        assert!(bias.as_ref().is_none_or(|b| b.len() == weight.outputs()), "a bias of another width");
        Self { weight: Box::new(weight), bias }
    }

    /// Width of an output row.
    pub fn outputs(&self) -> usize {
        self.weight.outputs()
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
