//! Block formats of quantised weights: one file per family, each with its formula.
//!
//! In this module everything is exact and plain: these functions define what a format *means*. Products with
//! packed weights that never decode a row are built elsewhere and tested against these. The same plain loops are
//! compiled once for each instruction set; multiplications and additions stay apart in all of them, so
//! a row has the same bits on every machine.

mod block256;
mod block32;
mod codebook;
mod codebook_points;
mod encode;
mod float;
mod fp4;
mod grouped;

pub use encode::{quantize_row, quantize_tensor};
pub(crate) use fp4::half_power;

use crate::dtype::DType;
use crate::error::{LoadError, Result};
use kvant_simd::{Simd, Tier, Work, with_tier};

/// Decodes whole blocks of `dtype` into `out`. `bytes` must hold exactly as many values as `out`.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return Err(LoadError::mismatch(format!(
            "{} bytes of {dtype} do not hold exactly {} values",
            bytes.len(),
            out.len()
        )));
    }
    if dtype.is_integer() {
        return Err(LoadError::mismatch(format!("{dtype} holds integers, not weights")));
    }
    let tier = Tier::select().map_err(|e| LoadError::unsupported(e.to_string()))?;
    decode_on(tier, dtype, bytes, out);
    Ok(())
}

fn decode_on(tier: Tier, dtype: DType, bytes: &[u8], out: &mut [f32]) {
    // SAFETY: `with_tier` takes no tier that this CPU does not have.
    with_tier!(tier, S => unsafe { S::call(Decode { dtype, bytes, out }) });
}

/// Whole blocks, and where their values go.
struct Decode<'a> {
    dtype: DType,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl<S: Simd> Work<S> for Decode<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run(self) {
        decode(self.dtype, self.bytes, self.out);
    }
}

/// Inlined into a function of each instruction set, with all that it calls.
#[inline(always)]
fn decode(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => float::f32(bytes, out),
        DType::F16 => float::f16(bytes, out),
        DType::BF16 => float::bf16(bytes, out),
        DType::Q4_0 | DType::Int4G32 => block32::q4_0(bytes, out),
        DType::Q4_1 => block32::q4_1(bytes, out),
        DType::Q5_0 => block32::q5_0(bytes, out),
        DType::Q5_1 => block32::q5_1(bytes, out),
        DType::Q8_0 | DType::Int8G32 => block32::q8_0(bytes, out),
        DType::Int4G16 => grouped::int4::<20, 32>(bytes, out),
        DType::Int4G64 => grouped::int4::<34, 64>(bytes, out),
        DType::Int8G16 => grouped::int8::<36, 32>(bytes, out),
        DType::Int8G64 => grouped::int8::<66, 64>(bytes, out),
        DType::Q2_K => block256::q2_k(bytes, out),
        DType::Q3_K => block256::q3_k(bytes, out),
        DType::Q4_K => block256::q4_k(bytes, out),
        DType::Q5_K => block256::q5_k(bytes, out),
        DType::Q6_K => block256::q6_k(bytes, out),
        DType::Q8_K => block256::q8_k(bytes, out),
        DType::IQ4_NL => codebook::iq4_nl(bytes, out),
        DType::IQ4_XS => codebook::iq4_xs(bytes, out),
        DType::IQ3_S => codebook::iq3_s(bytes, out),
        DType::IQ3_XXS => codebook::iq3_xxs(bytes, out),
        DType::IQ2_S => codebook::iq2_s(bytes, out),
        DType::IQ2_XS => codebook::iq2_xs(bytes, out),
        DType::IQ2_XXS => codebook::iq2_xxs(bytes, out),
        DType::MXFP4 => fp4::mxfp4(bytes, out),
        DType::NVFP4 => fp4::nvfp4(bytes, out),
        DType::F8_E4M3 => fp4::f8_e4m3(bytes, out),
        DType::F4_E2M1 => fp4::f4_e2m1(bytes, out),
        // Refused by `dequantize_row`.
        DType::U8 | DType::I32 | DType::I64 => {}
    }
}

/// The f16 at byte `at` of a block.
#[inline(always)]
fn f16_at(block: &[u8], at: usize) -> f32 {
    widen(u16::from_le_bytes([block[at], block[at + 1]]))
}

/// An f16 by its bits, in a form that the compiler can vectorise. The exponent is moved by a product with 2¹¹²,
/// which is exact and puts subnormal numbers right too; infinities and NaNs need their exponent filled up.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let bits = if half & 0x7c00 == 0x7c00 { magnitude | 0x7f80_0000 } else { finite.to_bits() };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, reference) = (widen(bits), half::f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == reference.to_bits() || (ours.is_nan() && reference.is_nan()),
                "{bits:#x}"
            );
        }
    }

    /// Rows of random bytes, scales included, in every type: no instruction set may change a bit.
    #[test]
    fn every_instruction_set_decodes_the_same_bits() {
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_integer()) {
            let n = 5 * dtype.block_len().max(33);
            let n = n / dtype.block_len() * dtype.block_len();
            let bytes: Vec<u8> = (0..dtype.row_bytes(n).unwrap()).map(|_| byte()).collect();
            let mut plain = vec![0.0; n];
            decode(dtype, &bytes, &mut plain);
            for tier in Tier::available() {
                let mut wide = vec![0.0; n];
                decode_on(tier, dtype, &bytes, &mut wide);
                for (a, b) in plain.iter().zip(&wide) {
                    let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                    assert!(same, "{dtype} on {tier}: {a} {b}");
                }
            }
        }
    }
}
