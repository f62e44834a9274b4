//! A named block of weights: type, shape and shared bytes.

use crate::bytes::Bytes;
use crate::description::RowRange;
use crate::dtype::DType;
use crate::error::{LoadError, Result};
use crate::quant;
use crate::scales::Scales;
use std::ops::Range;
use std::sync::Arc;

/// A tensor whose bytes usually lie in a mapped file. Cloning and slicing share them.
///
/// **Invariant:** `bytes.len()` is exactly what `dtype` and `shape` say; every constructor checks it.
/// The shape is outermost first, as in PyTorch; the last extent is the row, whose values are contiguous. A
/// GGUF file writes its extents the other way round and they are turned on reading.
#[derive(Debug, Clone)]
pub struct Tensor {
    name: Arc<str>,
    dtype: DType,
    shape: Vec<usize>,
    bytes: Bytes,
    scales: Option<Scales>,
}

impl Tensor {
    /// A tensor over `bytes`, refused when their length is not that of the type and shape.
    pub fn new(name: impl Into<Arc<str>>, dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Result<Self> {
        let name = name.into();
        let Some(expected) = dtype.tensor_bytes(&shape) else {
            return Err(LoadError::malformed(format!(
                "tensor {name:?}: shape {shape:?} is impossible for type {dtype} (rows are blocks of {})",
                dtype.block_len()
            )));
        };
        if bytes.len() != expected {
            return Err(LoadError::malformed(format!(
                "tensor {name:?}: {dtype} {shape:?} takes {expected} bytes, but {} are there",
                bytes.len()
            )));
        }
        Ok(Self { name, dtype, shape, bytes, scales: None })
    }

    /// A tensor of f32 values made in memory.
    pub fn from_f32(name: impl Into<Arc<str>>, shape: Vec<usize>, values: &[f32]) -> Result<Self> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::new(name, DType::F32, shape, bytes.into())
    }

    /// The same tensor, whose values are those of its bytes times these factors.
    #[must_use]
    pub fn with_scales(self, scales: Scales) -> Self {
        Self { scales: Some(scales), ..self }
    }

    /// What the values of the bytes are multiplied by, where that lies beside them.
    pub fn scales(&self) -> Option<&Scales> {
        self.scales.as_ref()
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the values are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// True when an extent is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of a row: the last extent.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows: the product of all extents but the last.
    pub fn rows(&self) -> usize {
        self.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// The stored bytes, `(rows, row_bytes)`.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.columns()).expect("checked by Tensor::new")
    }

    /// The stored bytes of one row.
    ///
    /// # Panics
    /// When `row` is not below [`Tensor::rows`].
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows(), "row {row} of tensor {:?} with {} rows", self.name, self.rows());
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// Decodes one row into `out`, which holds [`Tensor::columns`] values.
    pub fn row_f32(&self, row: usize, out: &mut [f32]) -> Result<()> {
        quant::dequantize_row(self.dtype, self.row(row), out)
            .map_err(|e| LoadError::mismatch(format!("tensor {:?}: {e}", self.name)))?;
        if let Some(scales) = &self.scales {
            scales.apply(row, out);
        }
        Ok(())
    }

    /// Decodes everything, `(rows, columns)`. Only for small tensors and oracles: weights stay packed.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        let mut out = vec![0.0; self.len()];
        quant::dequantize_row(self.dtype, &self.bytes, &mut out)
            .map_err(|e| LoadError::mismatch(format!("tensor {:?}: {e}", self.name)))?;
        if let Some(scales) = &self.scales {
            out.chunks_mut(self.columns().max(1)).enumerate().for_each(|(row, out)| scales.apply(row, out));
        }
        Ok(out)
    }

    /// The integers of an I32 or I64 tensor.
    pub fn to_i64(&self) -> Result<Vec<i64>> {
        match self.dtype {
            DType::I32 => {
                Ok(self.bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect())
            }
            DType::I64 => Ok(self.bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
            other => {
                Err(LoadError::mismatch(format!("tensor {:?} is {other}, not an integer type", self.name)))
            }
        }
    }

    /// Sub-tensors along the outermost extent, sharing the bytes: rows of a fused projection, a few experts.
    pub fn narrow(&self, range: Range<usize>) -> Result<Self> {
        let outer = self.shape.first().copied().unwrap_or(0);
        if range.start > range.end || range.end > outer {
            return Err(LoadError::mismatch(format!(
                "tensor {:?}: part {range:?} of an outer extent of {outer} was asked for",
                self.name
            )));
        }
        if self.shape.len() == 1 {
            return self.narrow_row(range);
        }
        let mut shape = self.shape.clone();
        shape[0] = range.len();
        let stride = self.bytes.len().checked_div(outer).unwrap_or(0);
        let part = self.part(shape, range.start * stride..range.end * stride)?;
        let inner = self.rows().checked_div(outer).unwrap_or(0);
        Ok(part.scaled_as(self, RowRange::from(range.start * inner, range.len() * inner)))
    }

    /// Rows of a matrix that need not lie together, copied one after another. They are the caller's to check.
    pub(crate) fn gather(&self, rows: RowRange) -> Result<Self> {
        let mut bytes = Vec::with_capacity(rows.count * self.row_bytes());
        for row in 0..rows.count {
            bytes.extend_from_slice(self.row(rows.row(row)));
        }
        let gathered =
            Self::new(self.name.clone(), self.dtype, vec![rows.count, self.columns()], bytes.into())?;
        Ok(gathered.scaled_as(self, rows))
    }

    /// The same tensor with the factors that these rows of `other` have.
    fn scaled_as(self, other: &Self, rows: RowRange) -> Self {
        Self { scales: other.scales.as_ref().map(|scales| scales.of_rows(rows)), ..self }
    }

    /// One sub-tensor of the outermost extent with that extent removed: expert `index` of `(experts, out, in)`.
    pub fn index(&self, index: usize) -> Result<Self> {
        if self.shape.len() < 2 {
            return Err(LoadError::mismatch(format!(
                "tensor {:?} with shape {:?} has no outer extent to index",
                self.name, self.shape
            )));
        }
        let mut part = self.narrow(index..index.saturating_add(1))?;
        part.shape.remove(0);
        Ok(part)
    }

    /// The same bytes under another shape with as many values and rows that blocks still fill; where there are factors
    /// beside them, rows keep their length.
    pub fn reshape(&self, shape: Vec<usize>) -> Result<Self> {
        let reshaped = Self::new(self.name.clone(), self.dtype, shape, self.bytes.clone())?;
        if self.scales.is_some() && reshaped.columns() != self.columns() {
            return Err(LoadError::mismatch(format!(
                "tensor {:?}: rows of {} under scales cannot become rows of {}",
                self.name,
                self.columns(),
                reshaped.columns()
            )));
        }
        Ok(Self { scales: self.scales.clone(), ..reshaped })
    }

    /// Refuses a tensor whose shape is not `expected`, naming both.
    pub fn expect_shape(&self, expected: &[usize]) -> Result<&Self> {
        if self.shape == expected {
            return Ok(self);
        }
        Err(LoadError::mismatch(format!(
            "tensor {:?} has shape {:?}; the model's hyper-parameters call for {expected:?}",
            self.name, self.shape
        )))
    }

    fn narrow_row(&self, range: Range<usize>) -> Result<Self> {
        let block = self.dtype.block_len();
        if !range.start.is_multiple_of(block) {
            return Err(LoadError::mismatch(format!(
                "tensor {:?}: {} blocks hold {block} values, so a part cannot start at {}",
                self.name, self.dtype, range.start
            )));
        }
        if self.scales.is_some() {
            return Err(LoadError::mismatch(format!(
                "tensor {:?}: a row under scales has no parts",
                self.name
            )));
        }
        let (start, len) = (range.start / block, range.len() / block);
        let bytes = self.dtype.block_bytes();
        self.part(vec![range.len()], start * bytes..(start + len) * bytes)
    }

    fn part(&self, shape: Vec<usize>, range: Range<usize>) -> Result<Self> {
        let bytes = self.bytes.slice(range).ok_or_else(|| {
            LoadError::mismatch(format!("tensor {:?}: a part reaches beyond its bytes", self.name))
        })?;
        Self::new(self.name.clone(), self.dtype, shape, bytes)
    }
}
