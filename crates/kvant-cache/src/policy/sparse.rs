//! The threshold below which values are not read.

use std::fmt;
use std::str::FromStr;

/// A share between 0 and 1: the values of a page in which no token has this share of the largest weight are left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SparseV(f32);

// No number between 0 and 1 is NaN.
impl Eq for SparseV {}

/// A text or number that is no such share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no threshold for values: a share of the largest weight, above 0 and below 1, is needed, such as 1e-4"
)]
pub struct SparseVError {
    text: String,
}

impl SparseV {
    /// The share.
    pub fn get(self) -> f32 {
        self.0
    }
}

impl TryFrom<f32> for SparseV {
    type Error = SparseVError;

    fn try_from(share: f32) -> Result<SparseV, SparseVError> {
        match share > 0.0 && share < 1.0 {
            true => Ok(SparseV(share)),
            false => Err(SparseVError { text: share.to_string() }),
        }
    }
}

impl FromStr for SparseV {
    type Err = SparseVError;

    fn from_str(text: &str) -> Result<SparseV, SparseVError> {
        let wrong = || SparseVError { text: text.to_owned() };
        let number: f32 = text.parse().map_err(|_| wrong())?;
        SparseV::try_from(number).map_err(|_| wrong())
    }
}

impl fmt::Display for SparseV {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:e}", self.0)
    }
}
