//! Packed matrices on the card: which types of a file they can be made of, and how they get there.

use crate::buffer::Buffer;
use crate::device::Card;
use crate::params::Address;
use crate::weights::{TILE_ROWS, WeightType};
use half::f16;
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use std::sync::Arc;

/// Bytes that are packed before they are sent.
const PIECE: usize = 16 << 20;

/// A matrix `(rows, channels)` on the card.
pub(crate) struct Matrix {
    pub kind: WeightType,
    pub rows: usize,
    pub channels: usize,
    /// What its numbers are multiplied by: a power of two that puts wide numbers into f16, else 1.
    pub scale: f32,
    buffer: Buffer,
}

/// The type that a tensor's numbers have on the card; `None` where no product reads them.
fn kind_of(dtype: DType) -> Option<WeightType> {
    match dtype {
        // kvant's own types have the bytes of their ggml twins.
        DType::Q4_0 | DType::Int4G32 => Some(WeightType::Q4_0),
        // Codes of 5 bits are bytes under the same scales.
        DType::Q8_0 | DType::Int8G32 | DType::Q5_0 => Some(WeightType::Q8_0),
        DType::Q4_K => Some(WeightType::Q4K),
        DType::Q6_K => Some(WeightType::Q6K),
        DType::Q4_1 => Some(WeightType::Q4_1),
        DType::Q5_K => Some(WeightType::Q5K),
        DType::MXFP4 => Some(WeightType::Mxfp4),
        // Of wider numbers, those that are f16 but for a power of two.
        DType::F16 | DType::BF16 | DType::F32 => Some(WeightType::F16),
        _ => None,
    }
}

impl Matrix {
    /// Uploads matrices of one type and width as one, rows of the first before those of the next.
    pub(crate) fn upload(card: &Arc<Card>, tensors: &[Tensor]) -> Result<Matrix> {
        let [first, ..] = tensors else { return Err(LoadError::mismatch("a matrix of no tensors")) };
        let (kind, channels) = (Matrix::kind(card, first)?, first.columns());
        let rows = tensors.iter().map(Tensor::rows).sum();
        let buffer = Buffer::new(card, kind.packed_bytes(rows, channels)).map_err(on_card)?;
        let scale = power_of_two(tensors)?;
        // Pieces are whole tiles, whichever tensors their rows are of.
        let step = (PIECE / first.row_bytes().max(1)).next_multiple_of(TILE_ROWS);
        let mut all = tensors.iter().flat_map(|tensor| (0..tensor.rows()).map(move |row| (tensor, row)));
        let (mut at, mut piece) = (0, Vec::new());
        loop {
            piece.clear();
            let mut count = 0;
            for (tensor, row) in all.by_ref().take(step) {
                file_row(tensor, row, scale, &mut piece)?;
                count += 1;
            }
            if count == 0 {
                break;
            }
            let name = |error| LoadError::unsupported(format!("tensor {:?}: {error}", first.name()));
            let packed = kind.pack(count, channels, &piece).map_err(name)?;
            buffer.upload(at, &packed).map_err(on_card)?;
            at += packed.len();
        }
        tensors.iter().for_each(|tensor| tensor.bytes().release());
        Ok(Matrix { kind, rows, channels, scale, buffer })
    }

    /// A matrix of numbers without a meaning, of the size of a trained one's, for measuring speed.
    pub(crate) fn noise(
        card: &Arc<Card>,
        kind: WeightType,
        rows: usize,
        channels: usize,
        seed: u64,
    ) -> Result<Matrix> {
        let bytes = kind.packed_bytes(rows, channels);
        let buffer = Buffer::new(card, bytes).map_err(on_card)?;
        let few = kind.packed_bytes(rows.min(256), channels);
        let part = kind.noise(channels, few, seed);
        buffer.upload(0, &part).map_err(on_card)?;
        let mut done = few;
        while done < bytes {
            let more = done.min(bytes - done);
            buffer.repeat(0, done, more).map_err(on_card)?;
            done += more;
        }
        Ok(Matrix { kind, rows, channels, scale: 1.0, buffer })
    }

    /// The type a tensor has on the card.
    pub(crate) fn kind(card: &Card, tensor: &Tensor) -> Result<WeightType> {
        let refuse = |what: String| {
            LoadError::unsupported(format!(
                "tensor {:?} {what}, which {} does not multiply; it does Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4, f16 and bf16 in rows of whole blocks. Run it with `--device cpu`, or convert the weights",
                tensor.name(),
                card.label()
            ))
        };
        let dtype = tensor.dtype();
        let kind = kind_of(dtype).ok_or_else(|| refuse(format!("is {dtype}")))?;
        if tensor.scales().is_some() {
            return Err(refuse(format!("is {dtype} with scales beside it")));
        }
        let (block, _) = kind.device_block();
        if tensor.is_empty() || !tensor.columns().is_multiple_of(block) {
            return Err(refuse(format!("has rows of {} numbers, not of whole {block}", tensor.columns())));
        }
        Ok(kind)
    }

    pub(crate) fn address(&self) -> Address {
        self.buffer.address()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buffer.bytes()
    }
}

pub(crate) fn on_card(error: crate::device::OpenError) -> LoadError {
    LoadError::unsupported(error.to_string())
}

/// The power of two that brings the largest of wide numbers just below 2¹⁵, and by which products are multiplied in the end: 1 for types that
/// kernels read as they are.
fn power_of_two(tensors: &[Tensor]) -> Result<f32> {
    if !tensors.iter().any(is_wide) {
        return Ok(1.0);
    }
    let mut largest = 0f32;
    for tensor in tensors {
        let mut numbers = vec![0.0; tensor.columns()];
        for row in 0..tensor.rows() {
            tensor.row_f32(row, &mut numbers)?;
            largest = numbers.iter().fold(largest, |largest, number| largest.max(number.abs()));
        }
    }
    if !(f32::MIN_POSITIVE..1e30).contains(&largest) {
        return Ok(1.0);
    }
    let exponent = largest.log2().floor() as i32 - 14;
    Ok((exponent as f32).exp2())
}

fn is_wide(tensor: &Tensor) -> bool {
    matches!(tensor.dtype(), DType::F32 | DType::BF16)
}

/// Blocks of Q5_0 as blocks of Q8_0: the same scales, and the codes less 16 as bytes.
fn widen_q5_0(row: &[u8], out: &mut Vec<u8>) {
    for block in row.as_chunks::<22>().0 {
        let high = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        out.extend_from_slice(&block[..2]);
        for place in 0..32 {
            let nibble = block[6 + place % 16] >> (4 * (place / 16)) & 15;
            let code = nibble | ((high >> place & 1) as u8) << 4;
            out.push(code.wrapping_sub(16));
        }
    }
}

/// A row in the blocks that are packed: as the file has it, or as f16 over `scale`. bf16 has fewer bits than f16, so all its numbers but those
/// below 2⁻³¹ of the largest stay what they are, and those change by less than 2⁻³⁹ of it; f32 is held to the same bound.
fn file_row(tensor: &Tensor, row: usize, scale: f32, out: &mut Vec<u8>) -> Result<()> {
    if tensor.dtype() == DType::Q5_0 {
        widen_q5_0(tensor.row(row), out);
        return Ok(());
    }
    if !is_wide(tensor) {
        out.extend_from_slice(tensor.row(row));
        return Ok(());
    }
    let mut numbers = vec![0.0; tensor.columns()];
    tensor.row_f32(row, &mut numbers)?;
    for number in numbers {
        let half = f16::from_f32(number / scale);
        let off = (half.to_f32() - number / scale).abs();
        if off.is_nan() || off > f32::EPSILON * 0.5 {
            return Err(LoadError::unsupported(format!(
                "tensor {:?} is {} and holds {number:e}, which f16 does not: the CUDA backend rounds no weights. Convert them, or run the model with `--device cpu`",
                tensor.name(),
                tensor.dtype()
            )));
        }
        out.extend_from_slice(&half.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::quant::dequantize_row;

    #[test]
    fn codes_of_five_bits_are_the_same_numbers_as_bytes() {
        let mut rows: Vec<u8> = kvant_codec::split_mix(3).flat_map(u64::to_le_bytes).take(22 * 6).collect();
        for (block, scale) in rows.chunks_exact_mut(22).zip([0.5f32, -0.02, 0.0, 3.0, 1e-4, 0.7]) {
            block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        let mut wide = Vec::new();
        widen_q5_0(&rows, &mut wide);
        let (mut want, mut found) = ([0.0; 192], [1.0; 192]);
        dequantize_row(DType::Q5_0, &rows, &mut want).unwrap();
        dequantize_row(DType::Q8_0, &wide, &mut found).unwrap();
        assert_eq!(found, want);
    }
}
