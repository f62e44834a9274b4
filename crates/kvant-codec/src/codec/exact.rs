//! Codecs that keep every number: `f32`, `f16` and `bf16`. The baseline that everything is compared with, so its
//! kernels get the same care.
//!
//! Keys lie channel by channel (tokens in the lanes, no horizontal sums), values token by token.

use super::family::{Build, Family, Options};
use super::{Accumulator, KernelReport, PageCodec, Query, dimension, not_finite, size};
use crate::error::{BuildError, CodecError};
use crate::kernel::{ExactShape, Kernels, Pages};
use crate::page::Side;
use half::{bf16, f16};
use kvant_simd::Tier;

/// The stored number format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    Bf16,
}

impl Element {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F16 | Element::Bf16 => 2,
        }
    }

    fn max(self) -> (f32, &'static str) {
        match self {
            Element::F32 => (f32::MAX, "f32"),
            // Above this, rounding to nearest gives infinity.
            Element::F16 => (65519.996, "f16"),
            Element::Bf16 => (f32::from_bits(0x7F7F_7FFF), "bf16"),
        }
    }

    fn read(self, bytes: &[u8], index: usize) -> f32 {
        let half = || u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
        match self {
            Element::F32 => f32::from_le_bytes(std::array::from_fn(|i| bytes[4 * index + i])),
            Element::F16 => f16::from_bits(half()).to_f32(),
            Element::Bf16 => bf16::from_bits(half()).to_f32(),
        }
    }
}

/// `f32`: 32 bits per value.
pub(crate) const F32: Family = family("f32", "every number as it is", |build| exact(Element::F32, build));
/// `f16`: 16 bits per value.
pub(crate) const F16: Family =
    family("f16", "IEEE binary16, rounded to nearest", |build| exact(Element::F16, build));
/// `bf16`: 16 bits per value.
pub(crate) const BF16: Family =
    family("bf16", "bfloat16, rounded to nearest", |build| exact(Element::Bf16, build));

const fn family(name: &'static str, formula: &'static str, build: super::family::BuildFn) -> Family {
    Family {
        name,
        bits: None,
        formula,
        source: "IEEE 754",
        defaults: Options::PLAIN,
        accepts: &["page"],
        build,
    }
}

fn exact(element: Element, build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    dimension(build.dim)?;
    let shape = ExactShape {
        element,
        dim: build.dim,
        tokens: build.options().page.tokens(),
        transposed: build.side == Side::Key,
    };
    Ok(Box::new(ExactCodec { side: build.side, shape, tier: build.tier, kernels: Kernels::of(build.tier) }))
}

struct ExactCodec {
    side: Side,
    shape: ExactShape,
    tier: Tier,
    kernels: &'static Kernels,
}

impl PageCodec for ExactCodec {
    fn side(&self) -> Side {
        self.side
    }

    fn dim(&self) -> usize {
        self.shape.dim
    }

    fn page_tokens(&self) -> usize {
        self.shape.tokens
    }

    fn page_bytes(&self) -> usize {
        self.shape.tokens * self.shape.dim * self.shape.element.bytes()
    }

    fn kernels(&self) -> KernelReport {
        KernelReport::packed(self.side, self.tier)
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        size("rows", rows.len(), self.shape.tokens * self.shape.dim)?;
        size("page", page.len(), self.page_bytes())?;
        let (max, format) = self.shape.element.max();
        // SAFETY: the table belongs to this CPU.
        let largest = unsafe { (self.kernels.extent)(rows) };
        if largest.is_nan() || largest > max {
            return Err(not_finite(rows, self.shape.dim).unwrap_or(CodecError::OutOfRange { format }));
        }
        // SAFETY: both sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.exact_encode)(&self.shape, rows.as_ptr(), page.as_mut_ptr()) };
        Ok(())
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        let ExactShape { element, dim, tokens, transposed } = self.shape;
        size("page", page.len(), self.page_bytes())?;
        size("rows", rows.len(), tokens * dim)?;
        for (t, row) in rows.chunks_exact_mut(dim).enumerate() {
            for (c, x) in row.iter_mut().enumerate() {
                *x = element.read(page, if transposed { c * tokens + t } else { t * dim + c });
            }
        }
        Ok(())
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        if self.side == Side::Value {
            return super::decoded_scores(self, query, page, scores);
        }
        if !query.fits(self.shape.dim, Query::MODEL) {
            return Err(CodecError::Unprepared);
        }
        size("page", page.len(), self.page_bytes())?;
        size("scores", scores.len(), query.heads() * self.shape.tokens)?;
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe {
            (self.kernels.exact_scores)(&self.shape, query, Pages::new(page, next), scores.as_mut_ptr())
        };
        Ok(())
    }

    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        if self.side == Side::Key {
            return super::decoded_accumulate(self, weights, page, sums);
        }
        size("page", page.len(), self.page_bytes())?;
        size("weights", weights.len(), sums.heads() * self.shape.tokens)?;
        if !sums.fits(self.shape.dim) {
            return Err(CodecError::ForeignSums { heads: sums.heads(), dim: self.shape.dim });
        }
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe {
            (self.kernels.exact_accumulate)(&self.shape, weights.as_ptr(), Pages::new(page, next), sums)
        };
        Ok(())
    }
}
