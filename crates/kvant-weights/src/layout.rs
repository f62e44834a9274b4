//! The block types of model files that have kernels here.

use std::fmt;

/// How a file packs the weights of a row into blocks. The formulas stand in `kvant-model`'s `quant` module; here
/// only the places of the bits matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// 32 nibbles around 8, an f16 scale.
    Q4_0,
    /// 32 nibbles, an f16 scale and minimum.
    Q4_1,
    /// 32 five-bit codes around 16, an f16 scale.
    Q5_0,
    /// 32 five-bit codes, an f16 scale and minimum.
    Q5_1,
    /// 32 signed bytes, an f16 scale.
    Q8_0,
    /// 256 nibbles, six-bit scales and minima for every 32 under two f16.
    Q4K,
    /// 256 five-bit codes, six-bit scales and minima for every 32 under two f16.
    Q5K,
    /// 256 six-bit codes around 32, signed byte scales for every 16 under an f16.
    Q6K,
    /// 256 two-bit codes, four-bit scales and minima for every 16 under two f16.
    Q2K,
    /// 256 three-bit codes around 4, six-bit scales around 32 for every 16 under an f16.
    Q3K,
    /// 32 nibbles, each the number of one of sixteen levels, an f16 scale.
    IQ4NL,
    /// 256 nibbles, each the number of one of sixteen levels, six-bit scales around 32 for every 32 under an f16.
    IQ4XS,
    /// 32 four-bit floats, a power of two as scale.
    MXFP4,
    /// 32 nibbles around 8, an f16 scale for every 16. No file of others has it.
    Int4G16,
    /// 64 nibbles around 8, an f16 scale. No file of others has it.
    Int4G64,
    /// 32 signed bytes, an f16 scale for every 16. No file of others has it.
    Int8G16,
    /// 64 signed bytes, an f16 scale. No file of others has it.
    Int8G64,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 17] = [
        Layout::Q4_0,
        Layout::Q4_1,
        Layout::Q5_0,
        Layout::Q5_1,
        Layout::Q8_0,
        Layout::Q4K,
        Layout::Q5K,
        Layout::Q6K,
        Layout::Q2K,
        Layout::Q3K,
        Layout::IQ4NL,
        Layout::IQ4XS,
        Layout::MXFP4,
        Layout::Int4G16,
        Layout::Int4G64,
        Layout::Int8G16,
        Layout::Int8G64,
    ];

    /// Weights in a block.
    pub fn block_len(self) -> usize {
        match self {
            Layout::Q4_0 | Layout::Q4_1 | Layout::Q5_0 | Layout::Q5_1 | Layout::Q8_0 => 32,
            Layout::IQ4NL | Layout::MXFP4 | Layout::Int4G16 | Layout::Int8G16 => 32,
            Layout::Int4G64 | Layout::Int8G64 => 64,
            Layout::Q2K | Layout::Q3K | Layout::Q4K | Layout::Q5K | Layout::Q6K | Layout::IQ4XS => 256,
        }
    }

    /// Bytes of a block in the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Layout::Q4_0 => 18,
            Layout::Q4_1 => 20,
            Layout::Q5_0 => 22,
            Layout::Q5_1 => 24,
            Layout::Q8_0 => 34,
            Layout::Q4K => 144,
            Layout::Q5K => 176,
            Layout::Q6K => 210,
            Layout::Q2K => 84,
            Layout::Q3K => 110,
            Layout::IQ4NL => 18,
            Layout::IQ4XS => 136,
            Layout::MXFP4 => 17,
            Layout::Int4G16 => 20,
            Layout::Int4G64 => 34,
            Layout::Int8G16 => 36,
            Layout::Int8G64 => 66,
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Q4_0 => "Q4_0",
            Layout::Q4_1 => "Q4_1",
            Layout::Q5_0 => "Q5_0",
            Layout::Q5_1 => "Q5_1",
            Layout::Q8_0 => "Q8_0",
            Layout::Q4K => "Q4_K",
            Layout::Q5K => "Q5_K",
            Layout::Q6K => "Q6_K",
            Layout::Q2K => "Q2_K",
            Layout::Q3K => "Q3_K",
            Layout::IQ4NL => "IQ4_NL",
            Layout::IQ4XS => "IQ4_XS",
            Layout::MXFP4 => "MXFP4",
            Layout::Int4G16 => "int4g16",
            Layout::Int4G64 => "int4g64",
            Layout::Int8G16 => "int8g16",
            Layout::Int8G64 => "int8g64",
        })
    }
}
