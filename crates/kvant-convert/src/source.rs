//! What a converted file holds, from a file of the same format.

use crate::error::{ConvertError, Result};
use crate::importance::Importance;
use crate::parts::{Form, Part, Parts};
use crate::recipe::{Place, Role, Weights, layers_of};
use crate::rows::{Dealt, Made, Rows, Source};
use kvant_model::description::Pairing;
use kvant_model::gguf::{Metadata, Value, Writer, WriterValue};
use kvant_model::{Checkpoint, DType, Description, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// The version of block formats that GGUF files state.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

/// The type of most matrices of a model whose weights are quantised already: what rounds them again adds to their error. None where
/// they have 16 bits or more.
pub fn quantised(checkpoint: &Checkpoint) -> Option<DType> {
    let tensors = checkpoint.names().filter_map(|name| checkpoint.tensor(name).ok());
    let largest = tensors.filter(|tensor| tensor.shape().len() > 1).max_by_key(Tensor::len)?;
    Some(largest.dtype()).filter(|dtype| dtype.bits_per_value() < 16.0)
}

/// What a checkpoint describes, where it can be converted.
pub(crate) fn described(checkpoint: &Checkpoint) -> Result<Description> {
    let description = Description::of(checkpoint)?;
    match description.encoder {
        Some(_) => Err(ConvertError::Refused(format!(
            "encoders ({}) are not converted; they run as they are",
            description.architecture
        ))),
        None => Ok(description),
    }
}

/// Every tensor of a GGUF file in the type that the recipe gives it.
pub(crate) fn requantised(
    checkpoint: &Checkpoint,
    weights: Weights,
    importance: Option<&Importance>,
) -> Result<Vec<Made>> {
    let parts = Parts::of(&described(checkpoint)?, Pairing::Halves);
    let by_name = by_tensor(&parts.list);
    let layers = layers_of(checkpoint.names());
    checkpoint
        .names()
        .map(|name| {
            let tensor = checkpoint.tensor(name)?;
            let Some(own) = by_name.get(name) else { return Ok(same(tensor)) };
            let (role, from) = (role(own), tensor.dtype());
            let dtype = weights.gguf_type(role, tensor.columns(), Place { name, layers });
            // More bits than a table has add nothing to it.
            let is_narrow = role != Role::Matrix && from.bits_per_value() <= dtype.bits_per_value();
            if from == dtype || role == Role::Exact || tensor.shape().len() < 2 || is_narrow {
                return Ok(same(tensor));
            }
            Ok(made(tensor, dtype, own, importance))
        })
        .collect()
}

/// Every tensor of a safetensors file, under its own name.
pub(crate) fn repacked(
    checkpoint: &Checkpoint,
    weights: Weights,
    importance: Option<&Importance>,
) -> Result<Vec<Made>> {
    let parts = Parts::of(&described(checkpoint)?, Pairing::Halves);
    let by_name = by_tensor(&parts.list);
    if let Some(packed) = checkpoint.names().find_map(|name| name.strip_suffix("_packed")) {
        return Err(ConvertError::Refused(format!(
            "tensor {packed:?} is packed already; convert the folder it was packed from"
        )));
    }
    checkpoint
        .names()
        .map(|name| {
            let tensor = checkpoint.tensor(name)?;
            let own = by_name.get(name);
            let wanted = own.and_then(|own| weights.safetensors_type(role(own), tensor.columns()));
            match (own, wanted) {
                (Some(own), Some(dtype)) if tensor.dtype() != dtype && tensor.shape().len() > 1 => {
                    Ok(made(tensor, dtype, own, importance))
                }
                _ => Ok(same(tensor)),
            }
        })
        .collect()
}

fn by_tensor(parts: &[Part]) -> HashMap<&str, Vec<&Part>> {
    let mut by_name: HashMap<&str, Vec<&Part>> = HashMap::new();
    for part in parts {
        by_name.entry(&part.tensor.name).or_default().push(part);
    }
    by_name
}

/// The most demanding of what a tensor is for.
fn role(parts: &[&Part]) -> Role {
    let order = [Role::Exact, Role::Positions, Role::Embedding, Role::Output];
    order.into_iter().find(|role| parts.iter().any(|part| part.role == *role)).unwrap_or(Role::Matrix)
}

fn same(tensor: Tensor) -> Made {
    Made {
        name: tensor.name().to_owned(),
        dtype: tensor.dtype(),
        shape: tensor.shape().to_vec(),
        rows: Rows::Same(tensor),
    }
}

/// A tensor in another type, its experts each with their own importance.
fn made(tensor: Tensor, dtype: DType, parts: &[&Part], importance: Option<&Importance>) -> Made {
    let (name, shape) = (tensor.name().to_owned(), tensor.shape().to_vec());
    let weight = |expert: Option<usize>| {
        parts.iter().filter(|part| part.expert == expert).find_map(|part| weight_of(part, importance))
    };
    let is_split = parts.iter().any(|part| part.expert.is_some()) && shape.len() > 2;
    let sources = if is_split {
        let expert =
            |e: usize| tensor.index(e).ok().map(|own| Dealt::one(Source::whole(own, weight(Some(e)))));
        (0..shape[0]).filter_map(expert).collect()
    } else {
        vec![Dealt::one(Source::whole(tensor, weight(None)))]
    };
    Made { name, dtype, shape, rows: Rows::Matrices(sources) }
}

/// The importance of a part's inputs, where they lie along its rows.
fn weight_of(part: &Part, importance: Option<&Importance>) -> Option<Arc<[f32]>> {
    match part.form {
        Form::Matrix { transposed: false, inputs, .. } => {
            importance?.of(&part.tensor.name, part.expert, inputs)
        }
        Form::Matrix { .. } | Form::Vector { .. } => None,
    }
}

/// A writer with all keys of a file but those that are about its types and parts.
pub(crate) fn copied_metadata(metadata: &Metadata, weights: Weights) -> Result<Writer> {
    let mut writer = Writer::new(metadata.architecture()?);
    for (key, value) in metadata.iter() {
        let is_about_the_file = ["split.", "quantize."].iter().any(|prefix| key.starts_with(prefix))
            || key == "general.alignment";
        if !is_about_the_file {
            writer.set(key, owned(&value));
        }
    }
    state_types(&mut writer, weights);
    Ok(writer)
}

/// Says what most weights are.
pub(crate) fn state_types(writer: &mut Writer, weights: Weights) {
    writer.set("general.file_type", WriterValue::U32(weights.file_type()));
    writer.set("general.quantization_version", WriterValue::U32(QUANTIZATION_VERSION));
}

fn owned(value: &Value<'_>) -> WriterValue {
    match *value {
        Value::U8(n) => WriterValue::U8(n),
        Value::I8(n) => WriterValue::I8(n),
        Value::U16(n) => WriterValue::U16(n),
        Value::I16(n) => WriterValue::I16(n),
        Value::U32(n) => WriterValue::U32(n),
        Value::I32(n) => WriterValue::I32(n),
        Value::F32(n) => WriterValue::F32(n),
        Value::Bool(flag) => WriterValue::Bool(flag),
        Value::String(text) => WriterValue::String(text.to_owned()),
        Value::Array(array) => {
            WriterValue::Array(array.element(), array.iter().map(|item| owned(&item)).collect())
        }
        Value::U64(n) => WriterValue::U64(n),
        Value::I64(n) => WriterValue::I64(n),
        Value::F64(n) => WriterValue::F64(n),
    }
}
