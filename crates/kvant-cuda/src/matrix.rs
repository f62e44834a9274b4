//! Packed matrices on the card: which types of a file they can be made of, and how they get there.

use crate::buffer::Buffer;
use crate::device::CudaGpu;
use crate::params::Address;
use crate::weights::{TILE_ROWS, WeightType};
use half::f16;
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use std::borrow::Cow;
use std::sync::Arc;

/// Bytes of zeros after a matrix: `linear_few` reads up to three parts past the last one, and does not use them.
const AFTER: usize = 3 * 2048;

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

/// Whether all numbers of a matrix were sent.
enum Reach {
    Within,
    Beyond,
}

/// The largest number of f16: weights are f16 numbers in products.
const LARGEST: f32 = 65504.0;

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
    pub(crate) fn upload(card: &Arc<CudaGpu>, tensors: &[Tensor]) -> Result<Matrix> {
        let [first, ..] = tensors else { return Err(LoadError::mismatch("a matrix of no tensors")) };
        let (kind, channels) = (Matrix::kind(card, first)?, first.columns());
        let rows = tensors.iter().map(Tensor::rows).sum();
        let buffer = Matrix::room(card, kind.packed_bytes(rows, channels))?;
        let scale = power_of_two(tensors)?;
        match Matrix::fill(&buffer, kind, tensors, scale)? {
            Reach::Within => Ok(Matrix { kind, rows, channels, scale, buffer }),
            // Blocks whose numbers are beyond f16: all over again, under a power of two.
            Reach::Beyond => {
                let all =
                    tensors.iter().flat_map(|of| (0..of.rows()).map(|row| reach(of.dtype(), of.row(row))));
                let scale = all.fold(1f32, |scale, reach| scale.max((reach / 32768.0).log2().ceil().exp2()));
                Matrix::fill(&buffer, kind, tensors, scale)?;
                Ok(Matrix { kind, rows, channels, scale, buffer })
            }
        }
    }

    /// Memory for packed weights.
    fn room(card: &Arc<CudaGpu>, bytes: usize) -> Result<Buffer> {
        let buffer = Buffer::new(card, bytes + AFTER).map_err(on_card)?;
        buffer.clear(bytes..bytes + AFTER).map_err(on_card)?;
        Ok(buffer)
    }

    /// Packs and sends all rows over `scale`; stops at numbers that f16 does not hold.
    fn fill(buffer: &Buffer, kind: WeightType, tensors: &[Tensor], scale: f32) -> Result<Reach> {
        let [first, ..] = tensors else { return Err(LoadError::mismatch("a matrix of no tensors")) };
        let channels = first.columns();
        // Pieces are whole tiles, whichever tensors their rows are of.
        let step = (PIECE / first.row_bytes().max(1)).next_multiple_of(TILE_ROWS);
        let mut all = tensors.iter().flat_map(|tensor| (0..tensor.rows()).map(move |row| (tensor, row)));
        let (mut at, mut piece) = (0, Vec::new());
        loop {
            piece.clear();
            let mut count = 0;
            for (tensor, row) in all.by_ref().take(step) {
                if scale == 1.0 && reach(tensor.dtype(), tensor.row(row)) > LARGEST {
                    return Ok(Reach::Beyond);
                }
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
        Ok(Reach::Within)
    }

    /// A matrix of numbers without a meaning, of the size of a trained one's, for measuring speed.
    pub(crate) fn noise(
        card: &Arc<CudaGpu>,
        kind: WeightType,
        rows: usize,
        channels: usize,
        seed: u64,
    ) -> Result<Matrix> {
        let bytes = kind.packed_bytes(rows, channels);
        let buffer = Matrix::room(card, bytes)?;
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
    pub(crate) fn kind(card: &CudaGpu, tensor: &Tensor) -> Result<WeightType> {
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

/// Where blocks of a type have their f16 scales, with what they are multiplied by at most: (bytes of a block, [(place, factor)]).
fn scales_of(dtype: DType) -> (usize, &'static [(usize, f32)]) {
    match dtype {
        DType::Q4_0 | DType::Int4G32 => (18, &[(0, 8.0)]),
        DType::Q8_0 | DType::Int8G32 => (34, &[(0, 128.0)]),
        DType::Q5_0 => (22, &[(0, 16.0)]),
        DType::Q4_1 => (20, &[(0, 15.0), (2, 1.0)]),
        DType::Q4_K => (144, &[(0, 63.0 * 15.0), (2, 63.0)]),
        DType::Q5_K => (176, &[(0, 63.0 * 31.0), (2, 63.0)]),
        DType::Q6_K => (210, &[(208, 128.0 * 32.0)]),
        _ => (1, &[]),
    }
}

/// How large numbers of a row of blocks may be; 0 for plain numbers, and where scales are no numbers. Kernels take exponents of MXFP4 up to 128, so
/// that one beyond is beyond f16 here.
fn reach(dtype: DType, row: &[u8]) -> f32 {
    if dtype == DType::MXFP4 {
        let exponent = row.chunks_exact(17).fold(0, |most, block| most.max(block[0]));
        return LARGEST * (f32::from(exponent) - 128.0).exp2();
    }
    let (bytes, scales) = scales_of(dtype);
    let reach = scales.iter().map(|(at, factor)| {
        // Without their signs, numbers and their bits have the same order.
        let bits = |block: &[u8]| u16::from_le_bytes([block[*at], block[at + 1]]) & 0x7fff;
        factor * f16::from_bits(row.chunks_exact(bytes).map(bits).max().unwrap_or(0)).to_f32()
    });
    Some(reach.sum::<f32>()).filter(|reach| reach.is_finite()).unwrap_or(0.0)
}

/// A row of blocks with their scales over a power of two.
fn shrink(dtype: DType, row: &mut [u8], scale: f32) {
    if dtype == DType::MXFP4 {
        let less = scale.log2() as u8;
        row.chunks_exact_mut(17).for_each(|block| block[0] = block[0].saturating_sub(less));
        return;
    }
    let (bytes, scales) = scales_of(dtype);
    for block in row.chunks_exact_mut(bytes) {
        for (at, _) in scales {
            let half = f16::from_le_bytes([block[*at], block[at + 1]]);
            block[*at..at + 2].copy_from_slice(&f16::from_f32(half.to_f32() / scale).to_le_bytes());
        }
    }
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
    if !is_wide(tensor) {
        let mut blocks = Cow::Borrowed(tensor.row(row));
        if scale != 1.0 {
            shrink(tensor.dtype(), blocks.to_mut(), scale);
        }
        match tensor.dtype() {
            DType::Q5_0 => widen_q5_0(&blocks, out),
            _ => out.extend_from_slice(&blocks),
        }
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
    fn blocks_beyond_f16_are_the_same_numbers_under_a_power_of_two() {
        let blocks =
            [(DType::Q4_0, 18, 32), (DType::Q6_K, 210, 256), (DType::Q4_1, 20, 32), (DType::MXFP4, 17, 32)];
        for (dtype, bytes, channels) in blocks {
            let mut row: Vec<u8> = kvant_codec::split_mix(7).flat_map(u64::to_le_bytes).take(bytes).collect();
            match dtype {
                DType::MXFP4 => row[0] = 135,
                _ => scales_of(dtype).1.iter().for_each(|(at, _)| {
                    row[*at..at + 2].copy_from_slice(&f16::from_f32(9000.0).to_le_bytes());
                }),
            }
            assert!(reach(dtype, &row) > LARGEST, "{dtype}");
            let mut small = row.clone();
            shrink(dtype, &mut small, 4096.0);
            assert!(reach(dtype, &small) <= LARGEST, "{dtype}");
            let (mut want, mut found) = (vec![0.0; channels], vec![0.0; channels]);
            dequantize_row(dtype, &row, &mut want).unwrap();
            dequantize_row(dtype, &small, &mut found).unwrap();
            found.iter_mut().for_each(|number| *number *= 4096.0);
            assert_eq!(found, want, "{dtype}");
            assert_eq!(reach(DType::F16, &row), 0.0);
        }
    }

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
