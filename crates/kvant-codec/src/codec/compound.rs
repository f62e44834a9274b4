//! What a page is made of where its [`PageFormat`](crate::PageFormat) does not say it: for whoever reads and writes pages without this crate's kernels.

use super::PageCodec;
use crate::format::{BasisFormat, ScaleFormat};

/// Cosine and sine of every code's angle, by level.
pub type AngleBook = [Vec<[f32; 2]>; 4];

/// Pages that are made of others, or of angles.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Compound<'a> {
    /// `delta`: the first token, a number of the format `first` for each channel, then a page of `differences`, each from what the token before
    /// was decoded to; the first one's from `first`. All of it lies in `basis`, and the differences' own basis is the identity.
    Delta {
        /// How the first token is stored.
        first: ScaleFormat,
        /// Signed maxima, a scale for each token and group.
        differences: &'a dyn PageCodec,
        /// Channels of a group.
        group: usize,
        /// The basis of all numbers.
        basis: &'a BasisFormat,
    },
    /// `turbo`: a page of vectors, then one of what it leaves over; what both decode to is added.
    Sum([&'a dyn PageCodec; 2]),
    /// `polar`: the radii of all tokens and blocks of 16 channels, then for each of these 8 angles of `bits` bits and 4, 2 and 1 of two bits fewer, the
    /// lowest bits first.
    Polar {
        /// Of an angle of the first level.
        bits: u8,
        /// How radii are stored.
        radii: ScaleFormat,
        /// The directions of codes, by level.
        book: &'a AngleBook,
        /// The basis of all numbers.
        basis: &'a BasisFormat,
    },
}
