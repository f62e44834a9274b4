//! Small floats and the scales that lie beside them, found by name. The table in [`crate::Scales`] says which names.

use super::{Safetensors, unsupported};
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::scales::Scales;
use crate::tensor::Tensor;

/// Rows and columns under one scale of 8-bit floats, unless a configuration says otherwise.
pub(super) const USUAL_BLOCK: (usize, usize) = (128, 128);

/// A block of any size is one: all of a matrix, or of a row.
const ALL: usize = usize::MAX;

/// The block that a configuration names.
pub(super) fn block_of(config: &serde_json::Value) -> Option<(usize, usize)> {
    let named = |config: &serde_json::Value| {
        let block = config.get("quantization_config")?.get("weight_block_size")?;
        let extent = |at: usize| usize::try_from(block.get(at)?.as_u64()?).ok().filter(|&extent| extent > 0);
        Some((extent(0)?, extent(1)?))
    };
    named(config).or_else(|| named(config.get("text_config")?))
}

/// The tensor, together with its scales if it is of a type that has them.
pub(super) fn with_scales(all: &Safetensors, tensor: Tensor) -> Result<Tensor> {
    match tensor.dtype() {
        DType::F8_E4M3 => eight_bits(all, tensor),
        DType::U8 => four_bits(all, tensor),
        _ => Ok(tensor),
    }
}

/// 8-bit floats. Without a scale they would be some multiple of the weights that nobody knows.
fn eight_bits(all: &Safetensors, tensor: Tensor) -> Result<Tensor> {
    let name = tensor.name();
    for end in ["_scale_inv", "_scales_inv", "_scale"] {
        let Some(factors) = all.stored(&format!("{name}{end}"))? else { continue };
        let rows = tensor.shape().len().checked_sub(2).map_or(1, |at| tensor.shape()[at]);
        let block = match *factors.shape() {
            _ if factors.len().checked_mul(rows) == Some(tensor.rows()) => (ALL, ALL),
            [.., count, 1] | [count] if count == rows => (1, ALL),
            _ => all.scale_block,
        };
        let scales = Scales::new(&tensor, &factors, block)?;
        return Ok(tensor.with_scales(scales));
    }
    Err(LoadError::missing(format!(
        "tensor {name:?} is F8_E4M3, and neither {:?} nor {:?} is there to scale it",
        format!("{name}_scale_inv"),
        format!("{name}_scale")
    )))
}

/// Bytes are read as the two halves of MXFP4, `X_blocks` `(…, groups, 16)` and `X_scales` `(…, groups)`, and as nothing else.
fn four_bits(all: &Safetensors, tensor: Tensor) -> Result<Tensor> {
    let name = tensor.name();
    let other = |end: &str, other: &str| Some(format!("{}{other}", name.strip_suffix(end)?));
    if other("_scales", "_blocks").is_some_and(|blocks| all.entry(&blocks).is_some()) {
        return Ok(tensor);
    }
    let factors = match other("_blocks", "_scales") {
        Some(scales) => all.stored(&scales)?,
        None => None,
    };
    let (Some(factors), [outer @ .., groups, 16]) = (factors, tensor.shape()) else {
        return Err(unsupported(name, "U8"));
    };
    let columns = groups.checked_mul(32);
    let shape = columns.map(|columns| outer.iter().copied().chain([columns]).collect());
    let shape = shape.ok_or_else(|| unsupported(name, "U8"))?;
    let pairs = Tensor::new(name, DType::F4_E2M1, shape, tensor.bytes().clone())?;
    let scales = Scales::new(&pairs, &factors, (1, 32))?;
    Ok(pairs.with_scales(scales))
}
