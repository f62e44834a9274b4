//! What can go wrong, in words that say what, where and what to do.

/// A verb was given something it cannot work with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// A buffer of the wrong length.
    #[error("{what}: got {got} elements, this codec needs {want}")]
    Size {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it should have.
        want: usize,
    },
    /// Not a whole number of heads.
    #[error("{what}: {got} numbers are no whole number of heads of {dim} channels")]
    NotWhole {
        /// Which buffer.
        what: &'static str,
        /// Its length.
        got: usize,
        /// Channels per head.
        dim: usize,
    },
    /// NaN or infinity among the numbers to encode.
    #[error("token {token} of the page, channel {channel} is {value}: only finite numbers can be encoded")]
    NotFinite {
        /// Token within the page.
        token: usize,
        /// Channel.
        channel: usize,
        /// The number.
        value: f32,
    },
    /// A scale, zero or number beyond what the stored format can hold.
    #[error(
        "numbers of this page are too large for {format} storage; use f32 scales (option `s32`) or the f32 codec"
    )]
    OutOfRange {
        /// The format.
        format: &'static str,
    },
    /// The query was prepared by another codec, or not at all.
    #[error("the query was not prepared by this codec: call prepare first")]
    Unprepared,
    /// The sums belong to another codec.
    #[error("the sums were made for another head dimension: make them with Accumulator::new({heads}, {dim})")]
    ForeignSums {
        /// Query heads.
        heads: usize,
        /// Channels of this codec.
        dim: usize,
    },
}

/// A spec that parses but cannot be built for this head.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A head dimension that the codec cannot serve.
    #[error("head dimension {dim}: {reason}")]
    Dim {
        /// The dimension.
        dim: usize,
        /// Why not.
        reason: &'static str,
    },
    /// The spec asks for something only a plan can give.
    #[error("`{spec}` needs {part} from a plan, and none was given; `kvant calibrate` makes one")]
    Uncalibrated {
        /// The spec.
        spec: String,
        /// What is missing.
        part: &'static str,
    },
    /// A plan's numbers that do not fit.
    #[error("the plan's {part} does not fit `{spec}`: {reason}")]
    Calibration {
        /// The spec.
        spec: String,
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Parts that exclude each other.
    #[error("`{spec}`: {reason}")]
    Combination {
        /// The spec.
        spec: String,
        /// Why they exclude each other.
        reason: &'static str,
    },
    /// The forced instruction set cannot run here.
    #[error(transparent)]
    Tier(#[from] kvant_simd::TierError),
}

/// Refuses a buffer of the wrong length.
pub(crate) fn size(what: &'static str, got: usize, want: usize) -> Result<(), CodecError> {
    if got == want { Ok(()) } else { Err(CodecError::Size { what, got, want }) }
}

/// How many whole heads `got` numbers are.
pub(crate) fn whole(what: &'static str, got: usize, dim: usize) -> Result<usize, CodecError> {
    if got.is_multiple_of(dim) { Ok(got / dim) } else { Err(CodecError::NotWhole { what, got, dim }) }
}

/// The first number that is NaN or infinite, as an error.
pub(crate) fn not_finite(rows: &[f32], dim: usize) -> Option<CodecError> {
    // All of them without a jump: vectors can do that, and nearly always there is nothing to look for.
    if !rows.iter().fold(false, |found, x| found | !x.is_finite()) {
        return None;
    }
    let at = rows.iter().position(|x| !x.is_finite())?;
    Some(CodecError::NotFinite { token: at / dim, channel: at % dim, value: rows[at] })
}
