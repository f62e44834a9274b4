//! Element types of weight tensors, and the arithmetic of how many bytes they take.
//!
//! Every type is a *block* type: `block_len` consecutive values of a row share `block_bytes` bytes. Plain
//! numbers are blocks of one. A block never crosses the end of a row, so a row whose length is not a multiple
//! of the block length cannot exist in that type.

use std::fmt;

/// How the values of a tensor are stored. The block formats are described in [`crate::quant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(non_camel_case_types, reason = "the formats are known by these names")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a single.
    BF16,
    /// 8-bit floats with four bits of exponent, whose scales lie in a tensor of their own ([`crate::Scales`]).
    F8_E4M3,
    /// Pairs of 4-bit floats with two bits of exponent, whose scales lie in a tensor of their own: MXFP4 in two halves, as Hugging
    /// Face checkpoints have it.
    F4_E2M1,
    /// 8-bit unsigned integers (scales as exponents of two, not weights).
    U8,
    /// 32-bit signed integers (index tables, not weights).
    I32,
    /// 64-bit signed integers (index tables, not weights).
    I64,
    /// 32 × 4 bits, scale.
    Q4_0,
    /// 32 × 4 bits, scale and minimum.
    Q4_1,
    /// 32 × 5 bits, scale.
    Q5_0,
    /// 32 × 5 bits, scale and minimum.
    Q5_1,
    /// 32 × 8 bits, scale.
    Q8_0,
    /// 256 × 2 bits in 16 groups with 4-bit scales and minima.
    Q2_K,
    /// 256 × 3 bits in 16 groups with 6-bit scales.
    Q3_K,
    /// 256 × 4 bits in 8 groups with 6-bit scales and minima.
    Q4_K,
    /// 256 × 5 bits in 8 groups with 6-bit scales and minima.
    Q5_K,
    /// 256 × 6 bits in 16 groups with 8-bit scales.
    Q6_K,
    /// 256 × 8 bits, f32 scale and group sums.
    Q8_K,
    /// 32 × 4 bits through a fixed table of 16 levels.
    IQ4_NL,
    /// 256 × 4 bits through the same table, 8 groups with 6-bit scales.
    IQ4_XS,
    /// 256 values in 64 points of a codebook of 512 four-dimensional points, with signs, 8 groups with 4-bit scales.
    IQ3_S,
    /// 256 values in 64 points of a codebook of 256 four-dimensional points, with signs, 8 groups with 4-bit scales.
    IQ3_XXS,
    /// 256 values in 32 points of a codebook of 1024 eight-dimensional points, with signs, 16 groups with 4-bit scales.
    IQ2_S,
    /// 256 values in 32 points of a codebook of 512 eight-dimensional points, with signs, 16 groups with 4-bit scales.
    IQ2_XS,
    /// 256 values in 32 points of a codebook of 256 eight-dimensional points, with signs.
    IQ2_XXS,
    /// 32 × 4-bit floats, a power of two as scale.
    MXFP4,
    /// 64 × 4-bit floats, 4 groups with an 8-bit float as scale.
    NVFP4,
    /// kvant's own: 32 × 8 bits, f16 scale; made on load by [`crate::quant::quantize_tensor`].
    Int8G32,
    /// kvant's own: 32 × 4 bits, f16 scale by the signed maximum; made on load.
    Int4G32,
    /// kvant's own: 32 × 8 bits, an f16 scale for every 16.
    Int8G16,
    /// kvant's own: 64 × 8 bits, f16 scale.
    Int8G64,
    /// kvant's own: 32 × 4 bits, an f16 scale by the signed maximum for every 16.
    Int4G16,
    /// kvant's own: 64 × 4 bits, f16 scale by the signed maximum.
    Int4G64,
}

impl DType {
    /// Every type, in the order they are documented.
    pub const ALL: [DType; 34] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F8_E4M3,
        DType::F4_E2M1,
        DType::U8,
        DType::I32,
        DType::I64,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2_K,
        DType::Q3_K,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::Q8_K,
        DType::IQ4_NL,
        DType::IQ4_XS,
        DType::IQ3_S,
        DType::IQ3_XXS,
        DType::IQ2_S,
        DType::IQ2_XS,
        DType::IQ2_XXS,
        DType::MXFP4,
        DType::NVFP4,
        DType::Int8G32,
        DType::Int4G32,
        DType::Int8G16,
        DType::Int8G64,
        DType::Int4G16,
        DType::Int4G64,
    ];

    /// Values per block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::F8_E4M3 => 1,
            Self::U8 | Self::I32 | Self::I64 => 1,
            Self::F4_E2M1 => 2,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::MXFP4 | Self::Int8G32 | Self::Int4G32 | Self::Int8G16 | Self::Int4G16 => 32,
            Self::NVFP4 | Self::Int8G64 | Self::Int4G64 => 64,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::Q8_K => 256,
            Self::IQ4_XS | Self::IQ3_S | Self::IQ3_XXS | Self::IQ2_S | Self::IQ2_XS | Self::IQ2_XXS => 256,
        }
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F8_E4M3 | Self::F4_E2M1 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::Q4_0 | Self::IQ4_NL | Self::Int4G32 => 18,
            Self::Q4_1 | Self::Int4G16 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 | Self::Int8G32 | Self::Int4G64 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
            Self::Q8_K => 292,
            Self::IQ4_XS => 136,
            Self::IQ3_S => 110,
            Self::IQ3_XXS => 98,
            Self::IQ2_S => 82,
            Self::IQ2_XS => 74,
            Self::IQ2_XXS => 66,
            Self::MXFP4 => 17,
            Self::NVFP4 | Self::Int8G16 => 36,
            Self::Int8G64 => 66,
        }
    }

    /// The name as model files and people write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F8_E4M3 => "F8_E4M3",
            Self::F4_E2M1 => "F4_E2M1",
            Self::U8 => "U8",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2_K => "Q2_K",
            Self::Q3_K => "Q3_K",
            Self::Q4_K => "Q4_K",
            Self::Q5_K => "Q5_K",
            Self::Q6_K => "Q6_K",
            Self::Q8_K => "Q8_K",
            Self::IQ4_NL => "IQ4_NL",
            Self::IQ4_XS => "IQ4_XS",
            Self::IQ3_S => "IQ3_S",
            Self::IQ3_XXS => "IQ3_XXS",
            Self::IQ2_S => "IQ2_S",
            Self::IQ2_XS => "IQ2_XS",
            Self::IQ2_XXS => "IQ2_XXS",
            Self::MXFP4 => "MXFP4",
            Self::NVFP4 => "NVFP4",
            Self::Int8G32 => "int8g32",
            Self::Int4G32 => "int4g32",
            Self::Int8G16 => "int8g16",
            Self::Int8G64 => "int8g64",
            Self::Int4G16 => "int4g16",
            Self::Int4G64 => "int4g64",
        }
    }

    /// Values under one scale of kvant's own types; zero for the others.
    pub const fn own_group(self) -> usize {
        match self {
            Self::Int8G16 | Self::Int4G16 => 16,
            Self::Int8G32 | Self::Int4G32 => 32,
            Self::Int8G64 | Self::Int4G64 => 64,
            _ => 0,
        }
    }

    /// kvant's own type of codes of 4 or 8 bits with a scale for `group` of them; none for other widths and groups.
    pub fn own(bits: usize, group: usize) -> Option<DType> {
        let wide = |dtype: DType| matches!(dtype, Self::Int8G16 | Self::Int8G32 | Self::Int8G64);
        let fits = |dtype: &DType| dtype.own_group() == group && bits == if wide(*dtype) { 8 } else { 4 };
        Self::ALL.into_iter().filter(|dtype| dtype.own_group() > 0).find(fits)
    }

    /// True for the types of tables, which hold no weights.
    pub const fn is_integer(self) -> bool {
        matches!(self, Self::U8 | Self::I32 | Self::I64)
    }

    /// Bits per value, scales and all.
    pub fn bits_per_value(self) -> f64 {
        8.0 * self.block_bytes() as f64 / self.block_len() as f64
    }

    /// Bytes of a row of `columns` values; `None` when blocks do not fill it or the count overflows.
    pub const fn row_bytes(self, columns: usize) -> Option<usize> {
        if !columns.is_multiple_of(self.block_len()) {
            return None;
        }
        (columns / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bytes of a tensor of `shape` (outermost first; the last entry is the row length). `None` as for rows.
    pub fn tensor_bytes(self, shape: &[usize]) -> Option<usize> {
        let (&columns, outer) = shape.split_last().unwrap_or((&1, &[]));
        let rows = outer.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))?;
        // The element count must fit as well, so that later index arithmetic cannot wrap.
        rows.checked_mul(columns)?;
        rows.checked_mul(self.row_bytes(columns)?)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
