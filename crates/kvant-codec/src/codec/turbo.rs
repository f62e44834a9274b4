//! `turbo{b}`: TurboQuant for inner products. b − 1 bits go to the codec of least square error, `tq{b−1}`, and one bit to
//! a [sign sketch](super::sketch) of what that left over:
//!
//! x̂ = x̃ + s·Rᵀ·sign(R(x − x̃)), x̃ = tq(x).
//!
//! The first part alone shrinks every inner product; with the second they are right on average, at the price of its
//! noise. A page is the two pages one after the other, and a score the sum of two scores, so both run from packed bytes.
//! b bits and two scales per token: `turbo3` takes 3.25 bits/value at d = 128, 3.5 at 64. On real keys its scores are further
//! off than the biased ones of `tq{b}`, which takes a scale less.
//!
//! Sums of values decode: their error is what counts, not their bias, and `tq{b}` has the smaller one.

use super::family::{Build, Family, Options, Scaling};
use super::{CodecSpec, Compound, KernelReport, PageCodec, scalar, sketch};
use crate::error::{BuildError, CodecError, size, whole};
use crate::format::{Rotation, Side};
use crate::kernel::Query;
use crate::quant::Rule;

/// `turbo{b}`.
pub(crate) const TURBO: Family = Family {
    name: "turbo",
    bits: Some(2..=5),
    shown: &[3, 4],
    formula: "tq with b − 1 bits, then signs of a random rotation of the residual with its norm: unbiased inner products",
    source: "TurboQuant (Zandieh et al. 2025), inner-product part",
    defaults: Options {
        rotation: Rotation::Srht,
        scaling: Scaling::Token,
        rule: Rule::LloydMax,
        ..Options::PLAIN
    },
    accepts: &["rotation", "scales", "page", "seed"],
    build,
};

struct TurboCodec {
    /// `tq` of the vectors.
    coarse: Box<dyn PageCodec>,
    /// `qjl1` of what it leaves over.
    sketch: Box<dyn PageCodec>,
    id: u64,
}

fn build(build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    let options = *build.options();
    let coarse = CodecSpec { family: &scalar::TQ, bits: build.spec.bits - 1, options };
    let sketch = CodecSpec {
        family: &sketch::QJL,
        bits: 1,
        options: Options {
            scales: options.scales,
            page: options.page,
            // Another seed, because the two rotations must know nothing of each other.
            seed: !options.seed,
            ..sketch::QJL.defaults
        },
    };
    Ok(Box::new(TurboCodec {
        coarse: (coarse.family.build)(&Build { spec: &coarse, ..*build })?,
        sketch: (sketch.family.build)(&Build { spec: &sketch, ..*build })?,
        id: Query::owner(),
    }))
}

impl TurboCodec {
    /// The two pages of a page; of what is not one of ours, two empty ones.
    fn split<'a>(&self, page: &'a [u8]) -> (&'a [u8], &'a [u8]) {
        page.split_at_checked(self.coarse.page_bytes()).unwrap_or_default()
    }
}

impl PageCodec for TurboCodec {
    fn side(&self) -> Side {
        self.coarse.side()
    }

    fn dim(&self) -> usize {
        self.coarse.dim()
    }

    fn page_tokens(&self) -> usize {
        self.coarse.page_tokens()
    }

    fn page_bytes(&self) -> usize {
        self.coarse.page_bytes() + self.sketch.page_bytes()
    }

    fn kernels(&self) -> KernelReport {
        KernelReport { accumulate: "decode", ..self.coarse.kernels() }
    }

    fn compound(&self) -> Option<Compound<'_>> {
        Some(Compound::Sum([&*self.coarse, &*self.sketch]))
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        let (coarse, sketch) = page.split_at_mut(self.coarse.page_bytes());
        self.coarse.encode(rows, coarse)?;
        let mut residual = vec![0.0; rows.len()];
        self.coarse.decode(coarse, &mut residual)?;
        residual.iter_mut().zip(rows).for_each(|(r, x)| *r = x - *r);
        self.sketch.encode(&residual, sketch)
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        let (coarse, sketch) = self.split(page);
        self.coarse.decode(coarse, rows)?;
        let mut residual = vec![0.0; rows.len()];
        self.sketch.decode(sketch, &mut residual)?;
        rows.iter_mut().zip(residual).for_each(|(x, r)| *x += r);
        Ok(())
    }

    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        whole("queries", queries.len(), self.dim())?;
        let parts = query.split(self.id, self.dim(), queries, 2);
        self.coarse.prepare(queries, &mut parts[0])?;
        self.sketch.prepare(queries, &mut parts[1])
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        let ([coarse, sketch], true) = (query.parts(), query.fits(self.dim(), self.id)) else {
            return Err(CodecError::Unprepared);
        };
        size("page", page.len(), self.page_bytes())?;
        let ((page, residual), (next, next_residual)) = (self.split(page), self.split(next));
        self.coarse.scores_ahead(coarse, page, next, scores)?;
        let mut more = vec![0.0; scores.len()];
        self.sketch.scores_ahead(sketch, residual, next_residual, &mut more)?;
        scores.iter_mut().zip(more).for_each(|(score, more)| *score += more);
        Ok(())
    }
}
