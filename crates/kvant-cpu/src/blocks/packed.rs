//! Fast products: weights packed for the machine and activations in bytes, or plain weights as they are.

use crate::blocks::{Activations, Multiply};
use kvant_model::error::{LoadError, Result};
use kvant_model::{DType, Tensor};
use kvant_simd::Tier;
use kvant_weights::{Layout, Matrix, Number, multiply_dense};

/// How weights of a type are multiplied, with activations in bytes where that is possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKernel {
    /// Packed for the machine, with activations rounded to bytes.
    Packed,
    /// Plain numbers where they lie, with f32 activations.
    Dense,
    /// Unpacked to f32 for every product: right, and slow.
    Unpacked,
}

impl WeightKernel {
    /// That of a type.
    pub fn of(dtype: DType) -> Self {
        match (Packed::layout(dtype), Dense::number(dtype)) {
            (Some(_), _) => Self::Packed,
            (None, Some(_)) => Self::Dense,
            (None, None) => Self::Unpacked,
        }
    }
}

/// The product of weights in a block type that has kernels with activations rounded to bytes.
pub struct Packed {
    matrix: Matrix,
}

impl Packed {
    /// The layout of a type's blocks, if there are kernels for it.
    pub fn layout(dtype: DType) -> Option<Layout> {
        Some(match dtype {
            DType::Q4_0 | DType::Int4G32 => Layout::Q4_0,
            DType::Int4G16 => Layout::Int4G16,
            DType::Int4G64 => Layout::Int4G64,
            DType::Int8G16 => Layout::Int8G16,
            DType::Int8G64 => Layout::Int8G64,
            DType::Q4_1 => Layout::Q4_1,
            DType::Q5_0 => Layout::Q5_0,
            DType::Q5_1 => Layout::Q5_1,
            DType::Q8_0 | DType::Int8G32 => Layout::Q8_0,
            DType::Q4_K => Layout::Q4K,
            DType::Q5_K => Layout::Q5K,
            DType::Q6_K => Layout::Q6K,
            DType::Q2_K => Layout::Q2K,
            DType::Q3_K => Layout::Q3K,
            DType::IQ4_NL => Layout::IQ4NL,
            DType::IQ4_XS => Layout::IQ4XS,
            // Codes and scales of a checkpoint are joined to MXFP4 when a matrix is read.
            DType::MXFP4 | DType::F4_E2M1 => Layout::MXFP4,
            _ => return None,
        })
    }

    /// Packs `weight`, `(outputs, inputs)`; its pages of a mapped file are given back.
    pub fn new(tier: Tier, layout: Layout, weight: &Tensor) -> Result<Self> {
        let matrix = Matrix::pack(tier, layout, weight.rows(), weight.columns(), weight.bytes())
            .map_err(|e| LoadError::mismatch(format!("tensor {:?}: {e}", weight.name())))?;
        weight.bytes().release();
        Ok(Self { matrix })
    }
}

impl Multiply for Packed {
    fn inputs(&self) -> usize {
        self.matrix.columns()
    }

    fn outputs(&self) -> usize {
        self.matrix.rows()
    }

    fn bytes(&self) -> &[u8] {
        self.matrix.bytes()
    }

    fn multiply(&self, x: &Activations) -> Activations {
        let mut out = Activations::unset(x.tokens(), self.outputs());
        self.matrix.multiply(x.quantised(self.matrix.tier()), out.data_mut());
        out
    }

    fn packed(&self) -> Option<&Matrix> {
        Some(&self.matrix)
    }
}

/// The product of weights that are plain numbers with f32 activations.
pub struct Dense {
    tier: Tier,
    number: Number,
    weight: Tensor, // (outputs, inputs)
}

impl Dense {
    /// The number type, if a type is one.
    pub fn number(dtype: DType) -> Option<Number> {
        Some(match dtype {
            DType::F32 => Number::F32,
            DType::F16 => Number::F16,
            DType::BF16 => Number::BF16,
            _ => return None,
        })
    }

    /// A product over `weight`, `(outputs, inputs)`, where it lies.
    pub fn new(tier: Tier, number: Number, weight: Tensor) -> Self {
        Self { tier, number, weight }
    }
}

impl Multiply for Dense {
    fn inputs(&self) -> usize {
        self.weight.columns()
    }

    fn outputs(&self) -> usize {
        self.weight.rows()
    }

    fn bytes(&self) -> &[u8] {
        self.weight.bytes()
    }

    fn multiply(&self, x: &Activations) -> Activations {
        let mut out = Activations::unset(x.tokens(), self.outputs());
        let weights = self.weight.bytes();
        multiply_dense(self.tier, self.number, weights, self.inputs(), x.data(), out.data_mut());
        out
    }
}
