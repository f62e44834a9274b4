//! A model from its configuration alone: every tensor of its description, of zeros.
//!
//! What an architecture reads is decided by its file in [`crate::arch`] and nowhere else, so a model without weights is
//! described as any other. Nothing is computed with the result: it has sizes, and that is all.

use crate::bytes::Bytes;
use crate::checkpoint::Checkpoint;
use crate::description::{Description, assumed_type};
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// The tensors of the model that a checkpoint without weights describes, with matrices of the type `weights`.
///
/// # Errors
/// If the description is of no architecture kvant knows, lacks a size, or asks for more than there can be.
pub(crate) fn tensors(checkpoint: &Checkpoint, weights: DType) -> Result<BTreeMap<String, Tensor>> {
    let description = Description::of(checkpoint)?;
    // What all tensors share: as long as the largest of them, or longer.
    let mut zeros = Bytes::zeros(1 << 20)?;
    let mut tensors = BTreeMap::new();
    for tensor in description.tensors() {
        // A name that says what its tensor is, whatever the others are.
        let own = if tensor.name.ends_with("_blocks") { DType::MXFP4 } else { weights };
        let dtype = assumed_type(&tensor.shape, own);
        let size = dtype.tensor_bytes(&tensor.shape).ok_or_else(|| {
            LoadError::mismatch(format!(
                "tensor {:?}: shape {:?} has more values than can be counted",
                tensor.name, tensor.shape
            ))
        })?;
        if size > zeros.len() {
            zeros = Bytes::zeros(size)?;
        }
        let bytes = zeros.slice(0..size).expect("they are as long as the largest tensor");
        let drawn = Tensor::new(tensor.name.as_str(), dtype, tensor.shape.clone(), bytes)?;
        tensors.insert(tensor.name.clone(), drawn);
    }
    Ok(tensors)
}
