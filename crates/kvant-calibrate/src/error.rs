//! What keeps a basis from being found.

/// Why there is no calibration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// Too few vectors were seen.
    #[error("{seen} vectors of {dim} channels were seen, and at least {dim} are needed; give a longer text")]
    TooFew {
        /// Vectors seen.
        seen: u64,
        /// Channels.
        dim: usize,
    },
    /// A number is NaN or infinite, or all of them are zero.
    #[error("the {what} seen are not finite numbers, or nothing but zeros: the model or the text is damaged")]
    Degenerate {
        /// Which vectors.
        what: &'static str,
    },
    /// The eigenvalues of a matrix were not found.
    #[error("the eigenvalues of the {what} were not found")]
    Eigen {
        /// Whose.
        what: &'static str,
    },
    /// A codec that nothing can be learned for.
    #[error("nothing can be learned for `{spec}`: {reason}")]
    Unlearnable {
        /// The codec.
        spec: String,
        /// Why not.
        reason: &'static str,
    },
    /// What was found does not hold in f32.
    #[error("the basis does not survive rounding to f32: {0}")]
    Rounding(#[from] kvant_codec::DenseError),
}
