//! How the coded pages of a side are made: as the codec says it, in the shape that kernels are built from.

use kvant_codec::format::{BasisFormat, ExactFormat, PackedFormat, TrellisFormat};
use kvant_codec::{Compound, PageCodec, PageFormat, ScaleFormat, Side};
use std::sync::Arc;

/// The pages of a codec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Coding {
    /// Plain numbers.
    Exact(ExactFormat),
    /// Codes under scales.
    Packed(Arc<PackedFormat>),
    /// Trellis codes.
    Trellis(Arc<TrellisFormat>),
    /// The first token, then codes of differences.
    Delta(Arc<DeltaPages>),
    /// Radii and angles.
    Polar(Arc<PolarPages>),
    /// Codes of vectors, then codes of what they leave over.
    Sum(Arc<[PackedFormat; 2]>),
}

/// Pages of `delta`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaPages {
    /// Where differences lie from the page's start on, and the basis of everything.
    pub differences: PackedFormat,
    /// How the first token is stored.
    pub first: ScaleFormat,
}

/// Pages of `polar`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PolarPages {
    pub side: Side,
    pub dim: usize,
    pub tokens: usize,
    pub bytes: usize,
    pub radii: ScaleFormat,
    /// Bits of an angle, by level.
    pub bits: [usize; 4],
    /// Cosine and sine of every code's angle, by level.
    pub book: [Vec<[f32; 2]>; 4],
    pub basis: BasisFormat,
}

/// Channels under one radius.
pub(crate) const POLAR_BLOCK: usize = 16;

impl PolarPages {
    pub(crate) fn blocks(&self) -> usize {
        self.dim.div_ceil(POLAR_BLOCK)
    }

    /// Where the bits of a level begin in a block's, and after the last how many there are.
    pub(crate) fn level_starts(&self) -> [usize; 5] {
        let mut starts = [0; 5];
        for level in 0..4 {
            starts[level + 1] = starts[level] + (POLAR_BLOCK >> (level + 1)) * self.bits[level];
        }
        starts
    }

    /// Bytes of all radii, which angles follow.
    pub(crate) fn radius_bytes(&self) -> usize {
        self.tokens * self.blocks() * self.radii.bytes()
    }
}

/// Of a codec whose format says nothing that kernels know.
const UNKNOWN: &str = "a codec whose pages are neither codes under scales nor made of such does not run";

impl Coding {
    /// Of a codec.
    ///
    /// # Errors
    /// Says what kernels do not know.
    pub(crate) fn of(codec: &dyn PageCodec) -> Result<Coding, String> {
        match codec.format() {
            Some(PageFormat::Exact(format)) => return Ok(Coding::Exact(format)),
            Some(PageFormat::Packed(format)) => return Ok(Coding::Packed(format)),
            Some(PageFormat::Trellis(format)) => return Ok(Coding::Trellis(format)),
            None => {}
        }
        let packed = |codec: &dyn PageCodec| match codec.format() {
            Some(PageFormat::Packed(format)) => Ok(format),
            _ => Err(UNKNOWN.to_owned()),
        };
        match codec.compound() {
            Some(Compound::Delta { first, differences, basis, .. }) => {
                let before = codec.dim() * first.bytes();
                if !before.is_multiple_of(4) {
                    return Err(format!("first tokens of {} channels that end within a word", codec.dim()));
                }
                let mut differences = moved(&*packed(differences)?, before);
                differences.basis = basis.clone();
                Ok(Coding::Delta(Arc::new(DeltaPages { differences, first })))
            }
            Some(Compound::Sum([coarse, rest])) => {
                let (before, coarse, rest) = (coarse.page_bytes(), packed(coarse)?, packed(rest)?);
                Ok(Coding::Sum(Arc::new([coarse.as_ref().clone(), moved(&rest, before)])))
            }
            Some(Compound::Polar { bits, radii, book, basis }) => {
                let bits = usize::from(bits);
                Ok(Coding::Polar(Arc::new(PolarPages {
                    side: codec.side(),
                    dim: codec.dim(),
                    tokens: codec.page_tokens(),
                    bytes: codec.page_bytes(),
                    radii,
                    bits: [bits, bits - 2, bits - 2, bits - 2],
                    book: book.clone(),
                    basis: basis.clone(),
                })))
            }
            _ => Err(UNKNOWN.to_owned()),
        }
    }

    pub(crate) fn tokens(&self) -> usize {
        match self {
            Coding::Exact(format) => format.tokens,
            Coding::Packed(format) => format.tokens,
            Coding::Trellis(format) => format.tokens,
            Coding::Delta(format) => format.differences.tokens,
            Coding::Polar(format) => format.tokens,
            Coding::Sum(parts) => parts[0].tokens,
        }
    }

    pub(crate) fn dim(&self) -> usize {
        match self {
            Coding::Exact(format) => format.dim,
            Coding::Packed(format) => format.dim,
            Coding::Trellis(format) => format.dim,
            Coding::Delta(format) => format.differences.dim,
            Coding::Polar(format) => format.dim,
            Coding::Sum(parts) => parts[0].dim,
        }
    }

    /// Bytes of a page.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Coding::Exact(format) => format.bytes(),
            Coding::Packed(format) => format.bytes,
            Coding::Trellis(format) => format.bytes(),
            Coding::Delta(format) => format.differences.bytes,
            Coding::Polar(format) => format.bytes,
            Coding::Sum(parts) => parts[1].bytes,
        }
    }

    /// The basis of pages that are not plain numbers, and whether they differ from another's in nothing else.
    pub(crate) fn basis_like<'a>(&'a self, other: &Coding) -> (Option<&'a BasisFormat>, bool) {
        match (self, other) {
            (Coding::Trellis(own), Coding::Trellis(other)) => {
                let mut like = own.as_ref().clone();
                like.basis.clone_from(&other.basis);
                (Some(&own.basis), like == **other)
            }
            (Coding::Delta(own), Coding::Delta(other)) => (Some(&own.differences.basis), own == other),
            (Coding::Polar(own), Coding::Polar(other)) => (Some(&own.basis), own == other),
            _ => (None, self == other),
        }
    }

    /// Whether a token's numbers depend on those of the tokens before it in its page.
    pub(crate) fn is_along_tokens(&self) -> bool {
        matches!(self, Coding::Trellis(_) | Coding::Delta(_))
    }
}

/// The same format where a page begins so many bytes later.
fn moved(format: &PackedFormat, bytes: usize) -> PackedFormat {
    let mut moved = format.clone();
    moved.bytes += bytes;
    let arrays =
        [&mut moved.channel_scale, &mut moved.channel_zero, &mut moved.token_scale, &mut moved.token_zero];
    for range in arrays.into_iter().flatten() {
        *range = range.start + bytes..range.end + bytes;
    }
    moved.spans.iter_mut().for_each(|span| span.codes += bytes);
    moved
}
