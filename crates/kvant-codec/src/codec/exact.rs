//! Codecs that keep every number: `f32`, `f16` and `bf16`. The baseline that everything is compared with, so its
//! kernels get the same care.
//!
//! Keys lie channel by channel (tokens in the lanes, no horizontal sums), values token by token.
//!
//! They are also what a cache keeps the rows in that are not encoded yet: [`ExactCodec::write`] fills a page token by
//! token, and the verbs read it like any other.

use super::family::{Build, BuildFn, Family, Options};
use super::{CodecSpec, KernelReport, PageCodec, check_sums, decoded_accumulate, dimension};
use crate::error::{BuildError, CodecError, not_finite, size};
use crate::format::{Element, ExactFormat, PageFormat, PageSize, Side};
use crate::kernel::{Accumulator, Kernels, Pages, Query};
use kvant_simd::Tier;

impl Element {
    /// The format that a spec keeps every number in; `None` for codecs that do not.
    pub fn of(spec: &CodecSpec) -> Option<Element> {
        [(&F32, Element::F32), (&F16, Element::F16), (&BF16, Element::Bf16)]
            .into_iter()
            .find_map(|(family, element)| (family.name == spec.family.name).then_some(element))
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

const fn family(name: &'static str, formula: &'static str, build: BuildFn) -> Family {
    Family {
        name,
        bits: None,
        shown: &[0],
        formula,
        source: "IEEE 754",
        defaults: Options::PLAIN,
        accepts: &["page"],
        build,
    }
}

fn exact(element: Element, build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    Ok(Box::new(ExactCodec::new(element, build.options().page, build.side, build.dim, build.tier)?))
}

/// Pages of plain numbers, which can be filled token by token.
#[derive(Clone)]
pub struct ExactCodec {
    format: ExactFormat,
    tier: Tier,
    kernels: &'static Kernels,
}

impl ExactCodec {
    /// Pages of one number format.
    ///
    /// # Errors
    /// When the dimension is not supported.
    ///
    /// # Panics
    /// When this CPU does not have the tier: ask [`Tier::is_available`] first.
    pub fn new(
        element: Element,
        page: PageSize,
        side: Side,
        dim: usize,
        tier: Tier,
    ) -> Result<ExactCodec, BuildError> {
        dimension(dim)?;
        let format = ExactFormat { side, dim, tokens: page.tokens(), element };
        Ok(ExactCodec { format, tier, kernels: Kernels::of(tier) })
    }

    /// The number format.
    pub fn element(&self) -> Element {
        self.format.element
    }

    /// Writes `count` vectors into the page from its token `first` on. Vector i is the `dim` numbers at i · `stride` of
    /// `rows`; numbers beyond [`Element::largest`] become infinite.
    ///
    /// # Errors
    /// When they do not fit the page, or `rows` ends before the last of them.
    pub fn write(
        &self,
        rows: &[f32],
        stride: usize,
        first: usize,
        count: usize,
        page: &mut [u8],
    ) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        let ExactFormat { dim, tokens, .. } = self.format;
        if count == 0 {
            return Ok(());
        }
        let end = first.saturating_add(count);
        if end > tokens {
            return Err(CodecError::Size { what: "tokens", got: end, want: tokens });
        }
        let want = (count - 1).saturating_mul(stride).saturating_add(dim);
        if rows.len() < want {
            return Err(CodecError::Size { what: "rows", got: rows.len(), want });
        }
        // SAFETY: rows and tokens were checked to exist, and the table belongs to this CPU.
        unsafe {
            (self.kernels.exact_write)(&self.format, rows.as_ptr(), stride, first..end, page.as_mut_ptr())
        };
        Ok(())
    }
}

impl PageCodec for ExactCodec {
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
        KernelReport::packed(self.format.side, self.tier)
    }

    fn format(&self) -> Option<PageFormat> {
        Some(PageFormat::Exact(self.format))
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        size("rows", rows.len(), self.format.tokens * self.format.dim)?;
        size("page", page.len(), self.page_bytes())?;
        let element = self.format.element;
        // SAFETY: the table belongs to this CPU.
        let largest = unsafe { (self.kernels.extent)(rows) };
        if largest.is_nan() || largest > element.largest() {
            let too_large = CodecError::OutOfRange { format: element.name() };
            return Err(not_finite(rows, self.format.dim).unwrap_or(too_large));
        }
        // SAFETY: both sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.exact_encode)(&self.format, rows.as_ptr(), page.as_mut_ptr()) };
        Ok(())
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        size("rows", rows.len(), self.format.tokens * self.format.dim)?;
        // SAFETY: both sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.exact_decode)(&self.format, page.as_ptr(), rows.as_mut_ptr()) };
        Ok(())
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        if !query.fits(self.format.dim, Query::MODEL) {
            return Err(CodecError::Unprepared);
        }
        size("page", page.len(), self.page_bytes())?;
        size("scores", scores.len(), query.heads() * self.format.tokens)?;
        let kernel = match self.format.side {
            Side::Key => self.kernels.exact_scores,
            Side::Value => self.kernels.exact_turned_scores,
        };
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe { kernel(&self.format, query, Pages::new(page, next), scores.as_mut_ptr()) };
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
        unsafe {
            (self.kernels.exact_accumulate)(&self.format, weights.as_ptr(), Pages::new(page, next), sums)
        };
        Ok(())
    }
}
