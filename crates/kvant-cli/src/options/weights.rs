//! The flag that says what plain weights are packed to.

use clap::ValueEnum;
use kvant_model::DType;

/// Types weights can be packed to.
#[derive(Clone, Copy, ValueEnum)]
pub enum Weights {
    /// 8 bits in groups of 32
    Int8,
    /// 4 bits in groups of 32
    Int4,
}

impl Weights {
    /// The type of packed weights.
    pub fn dtype(self) -> DType {
        match self {
            Self::Int8 => DType::Int8G32,
            Self::Int4 => DType::Int4G32,
        }
    }
}
