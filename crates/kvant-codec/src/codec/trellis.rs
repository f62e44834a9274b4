//! `trellis{b}`: trellis codes along tokens, with a leaky prediction and slim logarithmic scales. [The module of its
//! kernels](crate::trellis) says how and why; keys lie in the model's basis and values are rotated by an SRHT.
//!
//! b is the number of bits on average, with up to two decimals: of keys the page shares them out among groups of four channels, of
//! values rows of sixteen channels have the next whole number above or below. `trellis3` takes 3.12 bits/value at d = 64.
//! `klt{b}:trellis` are such keys in a plan's basis.

use super::family::{Build, Calibration, Family, Options};
use super::{
    KernelReport, PageCodec, check_sums, decoded_accumulate, decoded_scores, dimension, finish_sums,
};
use crate::error::{BuildError, CodecError, not_finite, size, whole};
use crate::format::{
    BasisFormat, PageFormat, PageSize, QUAD, ROW, Rotation, Side, TRELLIS_TOKENS, TrellisFormat,
};
use crate::kernel::{self, Accumulator, Pages, Query};
use crate::quant::allocation::Budget;
use crate::transform::Basis;
use crate::trellis::{self, TrellisKernels};
use kvant_simd::{LANES, Tier};
use std::sync::Arc;

/// `trellis{b}`, with a fraction of bits.
pub(crate) const TRELLIS: Family = Family {
    name: "trellis",
    bits: None,
    shown: &[0],
    formula: "along tokens: ŷ = ρ·ŷ' + s·level(last 8 bits of codes), codes by Viterbi; log scales; values after an SRHT",
    source: "trellis-coded quantisation (Marcellin and Fischer 1990) with a bit-shift window (QTIP, Tseng et al. 2024)",
    defaults: Options { page: PageSize::P128, budget: Budget::hundredths(300), ..Options::PLAIN },
    accepts: &["mean"],
    build: |build| {
        dimension(build.dim)?;
        let rotation = match build.side {
            Side::Key => Rotation::Identity,
            Side::Value => Rotation::Srht,
        };
        new(build, Basis::new(rotation, build.dim, 0))
    },
};

/// The most bits a code has on average.
const MOST_BITS: f64 = 6.0;

struct TrellisCodec {
    format: Arc<TrellisFormat>,
    basis: Basis,
    /// Tells its own queries from those of other codecs.
    id: u64,
    tier: Tier,
    kernels: &'static TrellisKernels,
    /// Of packed codecs, for the way back to the model's basis.
    packed: &'static kernel::Kernels,
}

/// `klt{b}:trellis`: keys in a plan's basis.
pub(super) fn planned(build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    let refuse = |reason| BuildError::Combination { spec: build.spec.to_string(), reason };
    let options = build.options();
    if build.side == Side::Value {
        return Err(refuse("trellis codes of values have a rotation of their own; use v=trellis3"));
    }
    if options.page != PageSize::P128 || options.scales != Options::PLAIN.scales {
        return Err(refuse(
            "trellis pages have 128 tokens and scales of their own: leave out pages and scales",
        ));
    }
    let dense = build.calibration.basis.clone();
    let dense =
        dense.ok_or_else(|| BuildError::Uncalibrated { spec: build.spec.to_string(), part: "a basis" })?;
    if dense.dim() != build.dim {
        let reason = "it is of another dimension".to_owned();
        return Err(BuildError::Calibration { spec: build.spec.to_string(), part: "basis", reason });
    }
    new(build, Basis::dense(dense))
}

fn new(build: &Build<'_>, mut basis: Basis) -> Result<Box<dyn PageCodec>, BuildError> {
    let spec = || build.spec.to_string();
    dimension(build.dim)?;
    let (dim, side, bits) = (build.dim, build.side, build.options().budget.bits());
    if bits > MOST_BITS {
        let reason = "trellis codes have at most 6 bits on average; klt and ch go up to 8";
        return Err(BuildError::Combination { spec: spec(), reason });
    }
    if build.options().mean {
        let Calibration { mean, .. } = build.calibration;
        let mean = mean.as_ref().ok_or_else(|| BuildError::Uncalibrated { spec: spec(), part: "a mean" })?;
        basis = basis.with_mean(mean).ok_or_else(|| BuildError::Calibration {
            spec: spec(),
            part: "mean",
            reason: "it must be one finite number per channel".to_owned(),
        })?;
    }
    let total = |groups: usize| (bits * groups as f64 + 1e-9) as usize;
    let (quad_bits, widths) = match side {
        Side::Key => (total(dim.div_ceil(QUAD)), Vec::new()),
        Side::Value => (0, row_widths(dim.div_ceil(ROW), total(dim.div_ceil(ROW)))),
    };
    let description: BasisFormat = basis.format().clone();
    let format = TrellisFormat { side, dim, tokens: TRELLIS_TOKENS, quad_bits, widths, basis: description };
    Ok(Box::new(TrellisCodec {
        format: Arc::new(format),
        basis,
        id: Query::owner(),
        tier: build.tier,
        kernels: TrellisKernels::of(build.tier),
        packed: kernel::Kernels::of(build.tier),
    }))
}

/// Whole numbers whose sum is `total`, the larger first.
fn row_widths(rows: usize, total: usize) -> Vec<u8> {
    (0..rows).map(|row| (total / rows + usize::from(row < total % rows)) as u8).collect()
}

impl TrellisCodec {
    /// Whether queries are moved into the basis; of values scores are by decoding.
    fn scores_codes(&self) -> bool {
        self.format.side == Side::Key
    }
}

impl PageCodec for TrellisCodec {
    fn side(&self) -> Side {
        self.format.side
    }

    fn dim(&self) -> usize {
        self.format.dim
    }

    fn page_tokens(&self) -> usize {
        self.format.tokens
    }

    fn page_bytes(&self) -> usize {
        self.format.bytes()
    }

    fn kernels(&self) -> KernelReport {
        let (scores, accumulate) = match self.format.side {
            Side::Key => (self.tier.name(), "decode"),
            Side::Value => ("decode", self.tier.name()),
        };
        KernelReport { encode: self.tier.name(), scores, accumulate }
    }

    fn format(&self) -> Option<PageFormat> {
        Some(PageFormat::Trellis(Arc::clone(&self.format)))
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        let dim = self.format.dim;
        size("rows", rows.len(), TRELLIS_TOKENS * dim)?;
        size("page", page.len(), self.page_bytes())?;
        if let Some(error) = not_finite(rows, dim) {
            return Err(error);
        }
        let mut moved = rows.to_vec();
        self.basis.apply(&mut moved, self.tier)?;
        if not_finite(&moved, dim).is_some() {
            return Err(CodecError::OutOfRange { format: "8-bit logarithmic" });
        }
        let stride = dim.next_multiple_of(LANES);
        let mut y = vec![0.0; TRELLIS_TOKENS * stride];
        for (y, row) in y.chunks_exact_mut(stride).zip(moved.chunks_exact(dim)) {
            y[..dim].copy_from_slice(row);
        }
        trellis::encode(&self.format, self.kernels, &y, stride, page)
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        size("rows", rows.len(), TRELLIS_TOKENS * self.format.dim)?;
        trellis::decode(&self.format, page, rows);
        self.basis.undo(rows, self.tier)
    }

    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        let dim = self.format.dim;
        let heads = whole("queries", queries.len(), dim)?;
        if !self.scores_codes() {
            query.copy(heads, dim, queries);
            return Ok(());
        }
        let means =
            queries.chunks_exact(dim).map(|q| self.basis.mean().iter().zip(q).map(|(m, q)| m * q).sum());
        let means: Vec<f32> = means.collect();
        let moved = self.basis.moved_queries(queries, self.tier)?;
        let parts = query.split(self.id, dim, &moved, 1);
        parts[0].copy(heads, 1, &means);
        Ok(())
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        if !self.scores_codes() {
            return decoded_scores(self, query, page, scores);
        }
        let ([_], true) = (query.parts(), query.fits(self.format.dim, self.id)) else {
            return Err(CodecError::Unprepared);
        };
        size("page", page.len(), self.page_bytes())?;
        size("scores", scores.len(), query.heads() * TRELLIS_TOKENS)?;
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.scores)(&self.format, query, Pages::new(page, next), scores.as_mut_ptr()) };
        Ok(())
    }

    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        if self.format.side == Side::Key {
            return decoded_accumulate(self, weights, page, sums);
        }
        check_sums(self, weights, page, sums)?;
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.sums)(&self.format, weights.as_ptr(), Pages::new(page, next), sums) };
        Ok(())
    }

    fn finish(&self, sums: &Accumulator, out: &mut [f32]) -> Result<(), CodecError> {
        finish_sums(self, self.packed, &self.basis, sums, out)
    }
}
