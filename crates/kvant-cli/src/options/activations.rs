//! The flag that says what activations are rounded to.

use clap::ValueEnum;
use kvant_engine::ActivationType;

/// Types activations can have in products with weights.
#[derive(Clone, Copy, ValueEnum)]
pub enum Activations {
    /// 8-bit integers with a scale for every 32, for the fast kernels
    Int8,
    /// Single precision: slower; the reference for quality
    F32,
}

impl Activations {
    /// As the loader calls it.
    pub fn kind(self) -> ActivationType {
        match self {
            Self::Int8 => ActivationType::Int8,
            Self::F32 => ActivationType::F32,
        }
    }

    /// As the flag calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::F32 => "f32",
        }
    }
}
