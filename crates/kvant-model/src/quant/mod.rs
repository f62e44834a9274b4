//! Block formats of quantised weights: one file per family, each with its formula.
//!
//! In this module everything is exact and plain: these functions define what a format *means*. Products with
//! packed weights that never decode a row are built elsewhere and tested against these.

mod float;

use crate::dtype::DType;
use crate::error::{LoadError, Result};

/// Decodes whole blocks of `dtype` into `out`. `bytes` must hold exactly as many values as `out`.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(LoadError::mismatch(format!(
            "{} bytes of {dtype} do not hold exactly {} values",
            bytes.len(),
            out.len()
        )));
    }
    match dtype {
        DType::F32 => float::f32(bytes, out),
        DType::F16 => float::f16(bytes, out),
        DType::BF16 => float::bf16(bytes, out),
        other => return Err(LoadError::unsupported(format!("{other} cannot be decoded yet"))),
    }
    Ok(())
}
