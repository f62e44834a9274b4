//! Weights on their way to a device: as the type that was asked for, neighbours of one type together, biases side by side.

use kvant_model::description::{Inner, Linear, Norm, Precision, Vector};
use kvant_model::error::{LoadError, Result};
use kvant_model::quant::quantize_tensor;
use kvant_model::{DType, Tensor};

/// Plain numbers as the type that was asked for, where the layer lets its weights be packed and the type divides its rows.
///
/// # Errors
/// When they cannot be read.
pub fn packed(weight: Tensor, precision: Precision, to: Option<DType>) -> Result<Tensor> {
    let plain = matches!(weight.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::F8_E4M3);
    match to {
        Some(to) if plain && precision == Precision::Packed && to.row_bytes(weight.columns()).is_some() => {
            let quantised = quantize_tensor(&weight, to)?;
            weight.bytes().release();
            Ok(quantised)
        }
        _ => Ok(weight),
    }
}

/// Neighbours of one type, which become one matrix on a device.
///
/// # Errors
/// When a tensor is of another width than the first.
pub fn runs(tensors: &[Tensor]) -> Result<Vec<&[Tensor]>> {
    let other = |tensor: &&Tensor| tensor.columns() != tensors[0].columns();
    if let Some(other) = tensors.iter().find(other) {
        return Err(LoadError::mismatch(format!("tensor {:?} is of another width", other.name())));
    }
    Ok(tensors.chunk_by(|a, b| a.dtype() == b.dtype()).collect())
}

/// The layers of an MLP before its activation, gates first.
pub fn first_layers(inner: &Inner) -> Vec<&Linear> {
    match inner {
        Inner::Gated { gate, up } => vec![gate, up],
        Inner::GatedFused(one) | Inner::Plain(one) => vec![one],
    }
}

/// The biases of layers side by side, zeros for those that have none; `None` where no layer has one.
///
/// # Errors
/// When one cannot be read, or is of another size than its layer.
pub fn biases(layers: &[&Linear], read: impl Fn(&Vector) -> Result<Vec<f32>>) -> Result<Option<Vec<f32>>> {
    if layers.iter().all(|layer| layer.bias.is_none()) {
        return Ok(None);
    }
    let mut numbers = Vec::new();
    for layer in layers {
        let bias = match &layer.bias {
            Some(bias) => read(bias)?,
            None => vec![0.0; layer.outputs()],
        };
        if bias.len() != layer.outputs() {
            let message = format!("a bias of {} numbers for {} outputs", bias.len(), layer.outputs());
            return Err(LoadError::mismatch(message));
        }
        numbers.extend(bias);
    }
    Ok(Some(numbers))
}

/// The weights and the bias of a norm, where it has them.
///
/// # Errors
/// When they cannot be read, or are of another size than the norm.
pub fn norm_weights(of: &Norm, read: impl Fn(&Vector) -> Result<Vec<f32>>) -> Result<[Option<Vec<f32>>; 2]> {
    let numbers = |vector: &Option<Vector>| {
        let numbers = vector.as_ref().map(&read).transpose()?;
        match numbers.as_ref().map(Vec::len).filter(|len| *len != of.width) {
            Some(len) => {
                Err(LoadError::mismatch(format!("a norm over {} values has {len} weights", of.width)))
            }
            None => Ok(numbers),
        }
    };
    Ok([numbers(&of.weight)?, numbers(&of.bias)?])
}
