//! From rows of f32 to blocks of a stored type.
//!
//! *Plain* rounding is what llama.cpp's reference does for Q4_0, Q8_0 and MXFP4, byte for byte, and a search for the scales
//! of smallest squared error for the K types and the IQ4 types. With an *importance* per input channel, the mean square of what that channel
//! is multiplied with, every type searches for the scales of smallest Σ w·(x − x̂)²: the error that the layer's output has if
//! channels are uncorrelated.
//!
//! Groups of 16 and 64, which are kvant's own, have plain rounding alone, that of [`quantize_row`].
//!
//! **Invariant:** under its own weighted error a block with importance is never worse than the plain one, which is always one
//! of the candidates.
//!
//! The loops are plain and compiled once for each instruction set; sums have a fixed shape, so a row has the same bytes on
//! every machine.

mod affine;
mod block32;
mod fit;
mod head;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_k;
mod q5_k;
mod q6_k;
mod table;

use half::f16;
use kvant_model::DType;
use kvant_model::error::{LoadError, Result};
use kvant_model::quant::quantize_row;
use kvant_simd::{Simd, Tier, Work, with_tier};

/// Whether rows can be stored as `dtype` by [`encode_row`].
pub fn can_encode(dtype: DType) -> bool {
    matches!(
        dtype,
        DType::F32
            | DType::F16
            | DType::Q4_0
            | DType::Int4G32
            | DType::Q8_0
            | DType::Int8G32
            | DType::Int4G16
            | DType::Int4G64
            | DType::Int8G16
            | DType::Int8G64
            | DType::Q2_K
            | DType::Q3_K
            | DType::Q4_K
            | DType::Q5_K
            | DType::Q6_K
            | DType::IQ4_NL
            | DType::IQ4_XS
            | DType::MXFP4
    )
}

/// Stores a row. `importance`, one non-negative weight per value, weighs the rounding; groups of 16 and 64 take none.
///
/// # Errors
/// If the type is not one that is written, the lengths do not fit, or a value is not finite or too large for the type.
pub fn encode_row(dtype: DType, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) -> Result<()> {
    if !can_encode(dtype) {
        return Err(LoadError::unsupported(format!("weights are not written as {dtype}")));
    }
    let fits = dtype.row_bytes(values.len()) == Some(out.len())
        && importance.is_none_or(|weights| weights.len() == values.len());
    if !fits {
        return Err(LoadError::mismatch(format!(
            "{} values and {:?} weights do not fill {} bytes of {dtype}",
            values.len(),
            importance.map(<[f32]>::len),
            out.len()
        )));
    }
    if let Some(at) = values.iter().position(|x| !x.is_finite()) {
        return Err(LoadError::malformed(format!("value {at} is {}, not a finite number", values[at])));
    }
    if matches!(dtype.own_group(), 16 | 64) {
        return quantize_row(dtype, values, out);
    }
    let tier = Tier::select().map_err(|e| LoadError::unsupported(e.to_string()))?;
    // SAFETY: `with_tier` takes no tier that this CPU does not have.
    let stored = with_tier!(tier, S => unsafe { S::call(Encode { dtype, values, importance, out }) });
    stored.map_err(|block| {
        let (first, len) = (block * dtype.block_len(), dtype.block_len());
        LoadError::mismatch(format!("values {first}..{} are too large for {dtype}", first + len))
    })
}

struct Encode<'a> {
    dtype: DType,
    values: &'a [f32],
    importance: Option<&'a [f32]>,
    out: &'a mut [u8],
}

impl<S: Simd> Work<S> for Encode<'_> {
    type Output = std::result::Result<(), usize>;

    #[inline(always)]
    unsafe fn run(self) -> Self::Output {
        // SAFETY: the caller's contract.
        unsafe { encode::<S>(self.dtype, self.values, self.importance, self.out) }
    }
}

/// Stores finite values; the number of the first block that does not fit otherwise.
///
/// # Safety
/// The CPU has the tier.
#[inline(always)]
unsafe fn encode<S: Simd>(
    dtype: DType,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> std::result::Result<(), usize> {
    match dtype {
        DType::F32 => {
            out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, x)| *bytes = x.to_le_bytes());
            Ok(())
        }
        DType::F16 => each::<1, 2>(values, importance, out, |[x], _, out| {
            let half = f16::from_f32(*x);
            *out = half.to_le_bytes();
            half.is_finite()
        }),
        DType::Q4_0 | DType::Int4G32 => each::<32, 18>(values, importance, out, block32::q4_0),
        DType::Q8_0 | DType::Int8G32 => each::<32, 34>(values, importance, out, block32::q8_0),
        DType::MXFP4 => each::<32, 17>(values, importance, out, mxfp4::mxfp4),
        DType::Q4_K => each::<256, 144>(values, importance, out, |x, w, out| {
            // SAFETY: the caller's contract.
            unsafe { q4_k::q4_k::<S>(x, w, out) }
        }),
        DType::Q2_K => each::<256, 84>(values, importance, out, q2_k::q2_k),
        DType::Q3_K => each::<256, 110>(values, importance, out, q3_k::q3_k),
        DType::Q5_K => each::<256, 176>(values, importance, out, q5_k::q5_k),
        DType::Q6_K => each::<256, 210>(values, importance, out, q6_k::q6_k),
        DType::IQ4_NL => each::<32, 18>(values, importance, out, table::iq4_nl),
        DType::IQ4_XS => each::<256, 136>(values, importance, out, table::iq4_xs),
        _ => unreachable!("refused by encode_row"),
    }
}

/// Every block with its weights, to a function that says whether it fits.
#[inline(always)]
fn each<const LEN: usize, const BYTES: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    store: impl Fn(&[f32; LEN], Option<&[f32; LEN]>, &mut [u8; BYTES]) -> bool,
) -> std::result::Result<(), usize> {
    let blocks = values.as_chunks::<LEN>().0.iter().zip(out.as_chunks_mut::<BYTES>().0);
    for (number, (block, out)) in blocks.enumerate() {
        let weights = importance.map(|all| &all.as_chunks::<LEN>().0[number]);
        // Weights that are all zero say nothing.
        let weights = weights.filter(|weights| weights.iter().any(|&w| w > 0.0));
        if !store(block, weights, out) {
            return Err(number);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
