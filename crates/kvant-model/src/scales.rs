//! Scales that lie beside a tensor and not in its blocks: what 8-bit and 4-bit floats of Hugging Face checkpoints are
//! multiplied by, and the second scale of NVFP4 in GGUF files.
//!
//! A matrix is cut into blocks of so many rows and columns, with one factor each:
//!
//! | weights | factors | block |
//! |---|---|---|
//! | `X.weight` (F8_E4M3) | `X.weight_scale_inv` (f32, bf16), multiplied in spite of its name | 128 × 128, or as `weight_block_size` says |
//! | `X.weight` (F8_E4M3) | `X.weight_scale` (f32, bf16) | the whole matrix, or a row |
//! | `X_blocks` (F4_E2M1) | `X_scales` (exponents of two) | 1 × 32 |
//! | `X.weight` (NVFP4, GGUF) | `X.scale` (f32) | the whole matrix |
//!
//! A tensor of many matrices (experts) has the factors of one after those of another. Factors stay in the file, as the
//! weights do, and are read with the row that they belong to.

use crate::bytes::Bytes;
use crate::description::RowRange;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::quant::half_power;
use crate::tensor::Tensor;
use half::{bf16, f16};

/// The factors of a tensor.
#[derive(Debug, Clone)]
pub struct Scales {
    kind: Factor,
    bytes: Bytes, // (matrices, row blocks, column blocks)
    /// Rows of a matrix.
    rows: usize,
    /// Rows and columns of a block.
    block: (usize, usize),
    /// Blocks of a matrix along its rows and its columns.
    blocks: (usize, usize),
    /// Which rows of the tensor that the factors were made for, and which of those, and so on.
    taken: Vec<RowRange>,
}

/// How a factor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Factor {
    F32,
    F16,
    BF16,
    /// A byte e for 2^(e − 127).
    Exponent,
}

impl Factor {
    fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::U8 => Self::Exponent,
            _ => return None,
        })
    }

    fn read(self, bytes: &[u8], at: usize) -> f32 {
        let pair = |at: usize| [bytes[2 * at], bytes[2 * at + 1]];
        match self {
            Self::F32 => f32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes")),
            Self::F16 => f16::from_le_bytes(pair(at)).to_f32(),
            Self::BF16 => bf16::from_le_bytes(pair(at)).to_f32(),
            Self::Exponent => 2.0 * half_power(bytes[at]),
        }
    }
}

impl Scales {
    /// The factors `of` a tensor, one for every `block` of rows and columns of each of its matrices. A block larger than the
    /// matrix is the whole of it.
    ///
    /// # Errors
    /// If the tensor has no matrices, or there are not as many factors as blocks, or they are no factors.
    pub fn new(of: &Tensor, factors: &Tensor, block: (usize, usize)) -> Result<Self> {
        let refuse = |why: String| {
            LoadError::mismatch(format!("tensor {:?}, the scales of {:?}: {why}", factors.name(), of.name()))
        };
        let kind = Factor::of(factors.dtype())
            .ok_or_else(|| refuse(format!("{} holds no scales", factors.dtype())))?;
        let [.., rows, columns] = *of.shape() else {
            return Err(refuse(format!("{:?} is not the shape of a matrix", of.shape())));
        };
        if rows == 0 || columns == 0 || block.0 == 0 || block.1 == 0 {
            return Err(refuse(format!("{:?} in blocks of {block:?} is empty", of.shape())));
        }
        let block = (block.0.min(rows), block.1.min(columns));
        let blocks = (rows.div_ceil(block.0), columns.div_ceil(block.1));
        let expected = of.rows() / rows * blocks.0 * blocks.1;
        let is_turned = matches!(*factors.shape(), [.., a, b] if (a, b) != blocks);
        if factors.len() != expected || is_turned {
            return Err(refuse(format!(
                "{:?} in blocks of {} × {} needs {expected} of them, not {:?}",
                of.shape(),
                block.0,
                block.1,
                factors.shape()
            )));
        }
        Ok(Self { kind, bytes: factors.bytes().clone(), rows, block, blocks, taken: Vec::new() })
    }

    /// The factors of some of the rows.
    pub(crate) fn of_rows(&self, rows: RowRange) -> Self {
        let mut scales = self.clone();
        scales.taken.push(rows);
        scales
    }

    /// Multiplies the values of a row by its factors.
    pub(crate) fn apply(&self, row: usize, values: &mut [f32]) {
        for (at, block) in values.chunks_mut(self.block.1).enumerate() {
            let factor = self.kind.read(&self.bytes, self.at(row) + at);
            block.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Where the factors of a row begin.
    fn at(&self, row: usize) -> usize {
        let row = self.taken.iter().rev().fold(row, |row, taken| taken.row(row));
        (row / self.rows * self.blocks.0 + row % self.rows / self.block.0) * self.blocks.1
    }

    /// The exponents of a row, where its factors are powers of two for every 32 values.
    fn exponents(&self, row: usize) -> Option<&[u8]> {
        let is_mx = self.kind == Factor::Exponent && self.block == (1, MX_BLOCK);
        is_mx.then(|| &self.bytes[self.at(row)..][..self.blocks.1])
    }
}

/// Values under one exponent in MXFP4.
const MX_BLOCK: usize = 32;

/// A matrix of 4-bit floats and its exponents as blocks of MXFP4, row by row; others come back as they are.
///
/// Neighbours `2i` and `2i + 1` share a byte in a checkpoint, values `i` and `i + 16` in a block.
pub(crate) fn joined(tensor: Tensor) -> Result<Tensor> {
    let Some(scales) = tensor.scales().filter(|_| tensor.dtype() == DType::F4_E2M1) else {
        return Ok(tensor);
    };
    let mut bytes = Vec::with_capacity(tensor.len() / MX_BLOCK * DType::MXFP4.block_bytes());
    for row in 0..tensor.rows() {
        let exponents = scales.exponents(row).ok_or_else(|| {
            LoadError::unsupported(format!(
                "tensor {:?}: 4-bit floats are read with a power of two for every {MX_BLOCK} (MXFP4)",
                tensor.name()
            ))
        })?;
        for (&exponent, codes) in exponents.iter().zip(tensor.row(row).as_chunks::<{ MX_BLOCK / 2 }>().0) {
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            bytes.push(exponent);
            bytes.extend((0..MX_BLOCK / 2).map(|i| code(i) | code(i + MX_BLOCK / 2) << 4));
        }
    }
    tensor.bytes().release();
    Tensor::new(tensor.name(), DType::MXFP4, tensor.shape().to_vec(), bytes.into())
}
