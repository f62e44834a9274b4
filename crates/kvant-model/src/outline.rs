//! A model from its configuration alone: every tensor that its architecture asks for, in the shape it asks for, of zeros.
//!
//! What an architecture reads is decided by its file in [`crate::arch`] and nowhere else, so a model without weights is loaded
//! as any other, and its requests are written down. Nothing is computed with the result: it has sizes, and that is all.

use crate::arch::{Architecture, LoadOptions, Parts};
use crate::bytes::Bytes;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Where no file bounds what a configuration may ask for, this does. The largest models have a third as many tensors,
/// nearly all of them experts.
const MAX_TENSORS: usize = 1 << 18;
/// Values of all vectors together: those are unpacked.
const MAX_VECTOR_VALUES: usize = 1 << 26;

/// Tensors that are made as they are asked for.
pub(crate) struct Outline {
    weights: DType,
    drawn: RefCell<Drawn>,
}

struct Drawn {
    tensors: BTreeMap<String, Tensor>,
    /// What all tensors share: as long as the largest of them, or longer.
    zeros: Bytes,
    vector_values: usize,
}

/// The tensors of the model that a checkpoint without weights describes, with matrices of the type `weights`.
///
/// # Errors
/// If the description is of no architecture kvant knows, lacks a size, or asks for more than there can be.
pub(crate) fn tensors(checkpoint: &Checkpoint, weights: DType) -> Result<BTreeMap<String, Tensor>> {
    let drawn = Drawn { tensors: BTreeMap::new(), zeros: Bytes::zeros(1 << 20)?, vector_values: 0 };
    let outline = Outline { weights, drawn: RefCell::new(drawn) };
    let parts = Parts::new(checkpoint, LoadOptions::AS_STORED)?.drawing(&outline);
    Architecture::of(&parts)?.load(&parts)?;
    Ok(outline.drawn.into_inner().tensors)
}

impl Outline {
    /// The tensor `name` of this shape, the same one each time.
    pub(crate) fn draw(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let mut drawn = self.drawn.borrow_mut();
        if let Some(tensor) = drawn.tensors.get(name) {
            tensor.expect_shape(shape)?;
            return Ok(tensor.clone());
        }
        let dtype = self.dtype(shape);
        let size = dtype.tensor_bytes(shape).ok_or_else(|| {
            LoadError::mismatch(format!(
                "tensor {name:?}: shape {shape:?} has more values than can be counted"
            ))
        })?;
        if let [width] = *shape {
            drawn.vector_values += width;
        }
        if drawn.vector_values > MAX_VECTOR_VALUES || drawn.tensors.len() >= MAX_TENSORS {
            return Err(LoadError::mismatch(format!(
                "the configuration asks for more than any model has: {} tensors before {name:?}",
                drawn.tensors.len()
            )));
        }
        if size > drawn.zeros.len() {
            drawn.zeros = Bytes::zeros(size)?;
        }
        let zeros = drawn.zeros.slice(0..size).expect("they are as long as the largest tensor");
        let tensor = Tensor::new(name, dtype, shape.to_vec(), zeros)?;
        drawn.tensors.insert(name.to_owned(), tensor.clone());
        Ok(tensor)
    }

    /// Vectors are kept in f32, as converters do; so is nothing else.
    fn dtype(&self, shape: &[usize]) -> DType {
        match *shape {
            [.., _, columns] if self.weights.row_bytes(columns).is_some() => self.weights,
            [.., _, _] => DType::F16,
            _ => DType::F32,
        }
    }
}
