//! Block formats of quantised weights: one file per family, each with its formula.
//!
//! In this module everything is exact and plain: these functions define what a format *means*. Products with
//! packed weights that never decode a row are built elsewhere and tested against these.

mod block256;
mod block32;
mod codebook;
mod codebook_points;
mod encode;
mod float;

pub use encode::{quantize_row, quantize_tensor};

use crate::dtype::DType;
use crate::error::{LoadError, Result};
use half::f16;

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
        DType::Q4_0 | DType::Int4G32 => block32::q4_0(bytes, out),
        DType::Q4_1 => block32::q4_1(bytes, out),
        DType::Q5_0 => block32::q5_0(bytes, out),
        DType::Q5_1 => block32::q5_1(bytes, out),
        DType::Q8_0 | DType::Int8G32 => block32::q8_0(bytes, out),
        DType::Q2_K => block256::q2_k(bytes, out),
        DType::Q3_K => block256::q3_k(bytes, out),
        DType::Q4_K => block256::q4_k(bytes, out),
        DType::Q5_K => block256::q5_k(bytes, out),
        DType::Q6_K => block256::q6_k(bytes, out),
        DType::Q8_K => block256::q8_k(bytes, out),
        DType::IQ4_NL => codebook::iq4_nl(bytes, out),
        DType::IQ4_XS => codebook::iq4_xs(bytes, out),
        DType::IQ2_XXS => codebook::iq2_xxs(bytes, out),
        DType::I32 | DType::I64 => {
            return Err(LoadError::mismatch(format!("{dtype} holds integers, not weights")));
        }
    }
    Ok(())
}

/// The f16 at byte `at` of a block.
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
