//! Choices made when a model is loaded.

use kvant_model::DType;

/// How weights are kept and multiplied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Packs the weights of linear layers that the file holds as plain numbers into
    /// [`DType::Int8G32`] or [`DType::Int4G32`]; `None` takes them as they are.
    pub weights: Option<DType>,
    /// What activations are rounded to before products.
    pub activations: ActivationType,
    /// Pins the matrices of linear layers and the token table in memory; loading fails where the system does not
    /// allow it.
    pub lock: bool,
    /// Loads the head that guesses further tokens (MTP) as well, where the file has one.
    pub mtp: bool,
}

impl LoadOptions {
    /// Nothing is packed, converted or copied: for looking at a model rather than running it.
    pub const AS_STORED: Self =
        Self { weights: None, activations: ActivationType::F32, lock: false, mtp: false };
}

/// The numbers that weights are multiplied with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ActivationType {
    /// Signed bytes with a scale for every 32, where the weights' type has kernels for that; f32 elsewhere.
    #[default]
    Int8,
    /// f32 everywhere: the reference for questions of quality.
    F32,
}
