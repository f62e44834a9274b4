//! The page codec: six verbs over a page, and the table of families that implement them.
//!
//! Adding a codec is one file here (a [`Family`] constant and a [`PageCodec`]) and one line in [`FAMILIES`]. A change of
//! basis, a rule and a way to share scales are a codec already, with all its kernels: there the constant is enough. A
//! codec that only knows `encode` and `decode` is complete too: the other verbs have default bodies that decode a page
//! and say so in [`PageCodec::kernels`].

mod codec_spec;
mod compound;
mod decoded;
mod delta;
pub(crate) mod exact;
pub(crate) mod family;
mod non_linear;
mod normal_float;
pub(crate) mod option;
mod polar;
pub(crate) mod scalar;
mod sketch;
mod trellis;
mod turbo;
mod uniform;

pub use codec_spec::CodecSpec;
pub use compound::{AngleBook, Compound};
pub use decoded::DecodedCodec;
pub use exact::ExactCodec;
pub use family::{Build, BuildFn, Calibration, Family, GroupSize, Learned, Options, Scaling};

use crate::error::{BuildError, CodecError, size, whole};
use crate::format::{MAX_DIM, PageFormat, Side};
use crate::kernel::{Accumulator, Kernels, Query};
use crate::quant::Rule;
use crate::transform::Basis;
use kvant_simd::Tier;

/// Every family, in the order in which tables list them and the printer prefers them.
pub static FAMILIES: &[&Family] = &[
    &exact::F32,
    &exact::F16,
    &exact::BF16,
    &scalar::CH,
    &scalar::SYM,
    &scalar::MAX,
    &scalar::ASYM,
    &scalar::ROT,
    &scalar::SRHT,
    &scalar::SRFT,
    &scalar::TQ,
    &scalar::CHG,
    &scalar::KLT,
    &trellis::TRELLIS,
    &uniform::UNIFORM,
    &normal_float::NF,
    &non_linear::IQ,
    &sketch::QJL,
    &delta::DELTA,
    &turbo::TURBO,
    &polar::POLAR,
];

/// How a codec's verbs run, for people who ask why something is slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelReport {
    /// The instruction set, `plain` for portable code, or `decode` when the verb decodes whole pages.
    pub encode: &'static str,
    /// As above, for [`PageCodec::scores`].
    pub scores: &'static str,
    /// As above, for [`PageCodec::accumulate`].
    pub accumulate: &'static str,
}

/// How a codec of scalars makes codes: with the [format](PageCodec::format) of its pages, all that another encoder needs.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rounding {
    /// How scales and zeros are chosen.
    pub rule: Rule,
    /// Of rules with a table of levels: the scale for numbers of root mean square one, or of largest magnitude one.
    pub unit: f32,
}

/// A codec for pages of a fixed number of vectors of a fixed dimension.
///
/// Keys: `prepare` the queries of a group once per step, then `scores` per page. Values: `accumulate` weights per
/// page, then `finish` once per step. Latents are values that are scored too, from the same bytes. Every verb works on either
/// side; summing up keys is the one that decodes pages.
pub trait PageCodec: Send + Sync {
    /// Which side the layout serves.
    fn side(&self) -> Side;

    /// Channels of a vector.
    fn dim(&self) -> usize;

    /// Vectors in a page.
    fn page_tokens(&self) -> usize;

    /// Bytes of an encoded page, scales, zeros and padding included.
    fn page_bytes(&self) -> usize;

    /// What runs underneath.
    fn kernels(&self) -> KernelReport;

    /// What its pages look like, for whoever reads them without this crate's kernels: byte by byte in
    /// [`format`](crate::format). `None` for codecs whose pages are neither plain numbers nor codes under scales: of the
    /// families here `polar`, and `delta` and `turbo`, whose pages are made of others.
    fn format(&self) -> Option<PageFormat> {
        None
    }

    /// What its pages are made of, where [`PageCodec::format`] says nothing.
    fn compound(&self) -> Option<Compound<'_>> {
        None
    }

    /// How its codes are made. `None` for codecs that are not scalar quantisers.
    fn rounding(&self) -> Option<Rounding> {
        None
    }

    /// Encodes `rows`, (page_tokens, dim), into `page`.
    ///
    /// # Errors
    /// When a buffer has the wrong size, a number is NaN or infinite, or a scale is out of the stored format's range.
    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError>;

    /// Decodes `page` into `rows`, (page_tokens, dim). Any bytes decode to something; they need not be finite.
    ///
    /// # Errors
    /// When a buffer has the wrong size.
    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError>;

    /// Prepares queries, (heads, dim), for [`PageCodec::scores`].
    ///
    /// # Errors
    /// When `queries` is not a whole number of heads.
    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        query.copy(whole("queries", queries.len(), self.dim())?, self.dim(), queries);
        Ok(())
    }

    /// q·k of every head and token of the page into `scores`, (heads, page_tokens).
    ///
    /// # Errors
    /// When a buffer has the wrong size, or the query was not prepared by this codec.
    fn scores(&self, query: &Query, page: &[u8], scores: &mut [f32]) -> Result<(), CodecError> {
        self.scores_ahead(query, page, &[], scores)
    }

    /// [`PageCodec::scores`], with the page that will be asked for next, so that it is on its way; may be empty.
    ///
    /// # Errors
    /// As [`PageCodec::scores`].
    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        let _ = next;
        decoded_scores(self, query, page, scores)
    }

    /// Adds Σ w·v of the page to `sums`, for `weights`, (heads, page_tokens).
    ///
    /// # Errors
    /// When a buffer has the wrong size.
    fn accumulate(&self, weights: &[f32], page: &[u8], sums: &mut Accumulator) -> Result<(), CodecError> {
        self.accumulate_ahead(weights, page, &[], sums)
    }

    /// [`PageCodec::accumulate`], with the page that will be asked for next, so that it is on its way; may be empty.
    ///
    /// # Errors
    /// As [`PageCodec::accumulate`].
    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        let _ = next;
        decoded_accumulate(self, weights, page, sums)
    }

    /// Writes the sums, (heads, dim), in the model's basis.
    ///
    /// # Errors
    /// When `out` has the wrong size, or the sums are of another dimension.
    fn finish(&self, sums: &Accumulator, out: &mut [f32]) -> Result<(), CodecError> {
        if !sums.fits(self.dim()) {
            return Err(CodecError::ForeignSums { heads: sums.heads(), dim: self.dim() });
        }
        size("output", out.len(), sums.heads() * self.dim())?;
        for (head, out) in out.chunks_exact_mut(self.dim()).enumerate() {
            out.copy_from_slice(&sums.row(head)[..self.dim()]);
        }
        Ok(())
    }

    /// Bits per stored number, from the bytes really stored: 8 · bytes / (tokens · dim).
    fn bits_per_value(&self) -> f64 {
        8.0 * self.page_bytes() as f64 / (self.page_tokens() * self.dim()) as f64
    }
}

/// Whether weights, page and sums are of a codec's sizes.
pub(crate) fn check_sums<C: PageCodec + ?Sized>(
    codec: &C,
    weights: &[f32],
    page: &[u8],
    sums: &Accumulator,
) -> Result<(), CodecError> {
    size("page", page.len(), codec.page_bytes())?;
    size("weights", weights.len(), sums.heads() * codec.page_tokens())?;
    if sums.fits(codec.dim()) {
        Ok(())
    } else {
        Err(CodecError::ForeignSums { heads: sums.heads(), dim: codec.dim() })
    }
}

/// Writes sums, (heads, dim), in the model's basis: those of values are in the codec's, those of keys were decoded.
pub(crate) fn finish_sums<C: PageCodec + ?Sized>(
    codec: &C,
    kernels: &Kernels,
    basis: &Basis,
    sums: &Accumulator,
    out: &mut [f32],
) -> Result<(), CodecError> {
    let dim = codec.dim();
    size("output", out.len(), sums.heads() * dim)?;
    if !sums.fits(dim) {
        return Err(CodecError::ForeignSums { heads: sums.heads(), dim });
    }
    if codec.side() == Side::Key {
        for (head, out) in out.chunks_exact_mut(dim).enumerate() {
            out.copy_from_slice(&sums.row(head)[..dim]);
        }
        return Ok(());
    }
    // SAFETY: the size was checked and the table belongs to this CPU.
    unsafe { (kernels.finish)(basis, sums, out.as_mut_ptr()) };
    Ok(())
}

/// Scores by decoding the page: what a codec without a kernel does.
pub(crate) fn decoded_scores<C: PageCodec + ?Sized>(
    codec: &C,
    query: &Query,
    page: &[u8],
    scores: &mut [f32],
) -> Result<(), CodecError> {
    let (dim, tokens) = (codec.dim(), codec.page_tokens());
    if !query.fits(dim, Query::MODEL) {
        return Err(CodecError::Unprepared);
    }
    size("scores", scores.len(), query.heads() * tokens)?;
    let mut rows = vec![0.0; tokens * dim];
    codec.decode(page, &mut rows)?;
    for (head, scores) in scores.chunks_exact_mut(tokens).enumerate() {
        for (score, row) in scores.iter_mut().zip(rows.chunks_exact(dim)) {
            *score = query.floats(head).iter().zip(row).map(|(q, k)| q * k).sum();
        }
    }
    Ok(())
}

/// Sums by decoding the page, in the model's basis.
pub(crate) fn decoded_accumulate<C: PageCodec + ?Sized>(
    codec: &C,
    weights: &[f32],
    page: &[u8],
    sums: &mut Accumulator,
) -> Result<(), CodecError> {
    let (dim, tokens) = (codec.dim(), codec.page_tokens());
    size("weights", weights.len(), sums.heads() * tokens)?;
    if !sums.fits(dim) {
        return Err(CodecError::ForeignSums { heads: sums.heads(), dim });
    }
    let mut rows = vec![0.0; tokens * dim];
    codec.decode(page, &mut rows)?;
    for (head, weights) in weights.chunks_exact(tokens).enumerate() {
        for (weight, row) in weights.iter().zip(rows.chunks_exact(dim)) {
            sums.add_row(head, *weight, row);
        }
    }
    Ok(())
}

impl KernelReport {
    /// All verbs from packed bytes, except that nobody sums up keys: that is done by decoding.
    pub(crate) fn packed(side: Side, tier: Tier) -> KernelReport {
        let accumulate = match side {
            Side::Key => "decode",
            Side::Value => tier.name(),
        };
        KernelReport { encode: tier.name(), scores: tier.name(), accumulate }
    }
}

/// Refuses head dimensions that no kernel serves.
pub(crate) fn dimension(dim: usize) -> Result<(), BuildError> {
    if (1..=MAX_DIM).contains(&dim) {
        Ok(())
    } else {
        Err(BuildError::Dim { dim, reason: "1 to 1024 channels are supported" })
    }
}
