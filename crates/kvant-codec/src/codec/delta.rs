//! `delta{b}`: every key as its difference from the one before. The first token of a page is kept as scales are kept
//! (f16), and from there
//!
//! δ_t = k_t − k̂_{t−1}, k̂_t = k̂_{t−1} + δ̂_t,
//!
//! with δ̂ the signed-maximum rule of `max{b}` per token and group. The loop is closed: differences are taken from what was
//! decoded, so errors do not add up. q·k̂_t = q·k̂_{t−1} + q·δ̂_t, so that scores are running sums of the scores of a page of
//! differences, from its packed bytes; the query is rounded once for all of them, so its rounding does not add up either.
//! Row 0 of that page codes what rounding took from the first token. b + 0.75 bits/value: 0.5 for the scales of groups of
//! 32, 0.25 for a first token among 64. Differences of keys lack the channels that are large in every token, which a scale
//! per token cannot serve; a scale per channel (`ch`) serves them better still, and in fewer bits.
//!
//! Sums of values decode: an old difference is part of every later value, and its weight the sum of all of theirs.

use super::family::{Build, Family, GroupSize, Options, Scaling};
use super::{CodecSpec, Compound, KernelReport, PageCodec, scalar};
use crate::error::{BuildError, CodecError, not_finite, size, whole};
use crate::format::{Rotation, ScaleFormat, Side};
use crate::kernel::Query;
use crate::quant::{Levels, Rule};
use crate::transform::Basis;
use kvant_simd::Tier;

/// `delta{b}`.
pub(crate) const DELTA: Family = Family {
    name: "delta",
    bits: Some(2..=8),
    shown: &[3, 4],
    formula: "first token of a page exact, then x_t − x̂_{t−1} per token and group: s = x*/−2^(b−1)",
    source: "quant.cpp delta keys",
    defaults: Options { rule: Rule::SignedMax, ..Options::PLAIN },
    accepts: &["rotation", "scaling", "scales", "page", "seed"],
    build,
};

struct DeltaCodec {
    /// Pages of differences, in the rotated basis.
    differences: Box<dyn PageCodec>,
    basis: Basis,
    levels: Levels,
    /// Channels that share a token's scale.
    group: usize,
    format: ScaleFormat,
    tier: Tier,
    id: u64,
}

fn build(build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    let options = *build.options();
    let group = match options.scaling {
        Scaling::Group(group) => GroupSize::channels(group),
        Scaling::Token => build.dim,
        Scaling::Channel | Scaling::ChannelGroup(_) => {
            let reason =
                "a difference is coded before the page's channels are known; use token, g16, g32 or g64";
            return Err(BuildError::Combination { spec: build.spec.to_string(), reason });
        }
    };
    let inner = CodecSpec {
        family: &scalar::MAX,
        bits: build.spec.bits,
        options: Options { rotation: Rotation::Identity, ..options },
    };
    let differences = (inner.family.build)(&Build { spec: &inner, ..*build })?;
    options.rotation.serves(build.dim)?;
    Ok(Box::new(DeltaCodec {
        differences,
        basis: Basis::new(options.rotation, build.dim, options.seed),
        levels: Levels::new(options.rule, build.spec.bits, group),
        group,
        format: options.scales,
        tier: build.tier,
        id: Query::owner(),
    }))
}

impl DeltaCodec {
    fn frame_bytes(&self) -> usize {
        self.dim() * self.format.bytes()
    }

    fn frame(&self, bytes: &[u8]) -> Vec<f32> {
        (0..self.dim()).map(|c| self.format.read(bytes, c)).collect()
    }

    /// What a difference will be decoded to, in the encoder's arithmetic.
    fn rounded(&self, difference: &[f32], decoded: &mut [f32]) {
        let (centre, (bottom, top)) = (self.levels.centre() as f32, self.levels.range());
        for (x, decoded) in difference.chunks(self.group).zip(decoded.chunks_mut(self.group)) {
            let (low, high) = x.iter().fold((x[0], x[0]), |(low, high), x| (x.min(low), x.max(high)));
            let extreme = if -low > high { low } else { high };
            let mut stored = [0; 4];
            self.format.write(&mut stored, 0, extreme / self.levels.divisor());
            let scale = self.format.read(&stored, 0);
            let inverse = if scale.abs() > f32::MIN_POSITIVE { 1.0 / scale } else { 0.0 };
            for (x, decoded) in x.iter().zip(decoded) {
                let code = x.mul_add(inverse, centre).clamp(bottom, top).round_ties_even();
                *decoded = (code - centre) * scale;
            }
        }
    }
}

impl PageCodec for DeltaCodec {
    fn side(&self) -> Side {
        self.differences.side()
    }

    fn dim(&self) -> usize {
        self.basis.dim()
    }

    fn page_tokens(&self) -> usize {
        self.differences.page_tokens()
    }

    fn page_bytes(&self) -> usize {
        self.frame_bytes() + self.differences.page_bytes()
    }

    fn kernels(&self) -> KernelReport {
        KernelReport { accumulate: "decode", ..self.differences.kernels() }
    }

    fn compound(&self) -> Option<Compound<'_>> {
        let (first, basis) = (self.format, self.basis.format());
        Some(Compound::Delta { first, differences: &*self.differences, group: self.group, basis })
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        let dim = self.dim();
        size("rows", rows.len(), self.page_tokens() * dim)?;
        size("page", page.len(), self.page_bytes())?;
        if let Some(error) = not_finite(rows, dim) {
            return Err(error);
        }
        let mut rotated = rows.to_vec();
        self.basis.apply(&mut rotated, self.tier)?;
        let (frame, differences) = page.split_at_mut(self.frame_bytes());
        for (c, x) in rotated[..dim].iter().enumerate() {
            if x.is_nan() || x.abs() > self.format.max() {
                return Err(CodecError::OutOfRange { format: self.format.name() });
            }
            self.format.write(frame, c, *x);
        }
        let mut decoded = self.frame(frame);
        let mut step = vec![0.0; dim];
        for row in rotated.chunks_exact_mut(dim) {
            row.iter_mut().zip(&decoded).for_each(|(x, before)| *x -= before);
            self.rounded(row, &mut step);
            decoded.iter_mut().zip(&step).for_each(|(x, step)| *x += step);
        }
        // The rows are finite: what is not has grown beyond f32 on its way into the basis.
        let too_large = |_| CodecError::OutOfRange { format: self.format.name() };
        self.differences.encode(&rotated, differences).map_err(too_large)
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.page_bytes())?;
        let (frame, differences) = page.split_at(self.frame_bytes());
        self.differences.decode(differences, rows)?;
        let mut before = self.frame(frame);
        for row in rows.chunks_exact_mut(self.dim()) {
            row.iter_mut().zip(&before).for_each(|(x, before)| *x += before);
            before.copy_from_slice(row);
        }
        self.basis.undo(rows, self.tier)
    }

    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        whole("queries", queries.len(), self.dim())?;
        let mut rotated = queries.to_vec();
        self.basis.apply(&mut rotated, self.tier)?;
        let parts = query.split(self.id, self.dim(), &rotated, 1);
        self.differences.prepare(&rotated, &mut parts[0])
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        let ([differences], true) = (query.parts(), query.fits(self.dim(), self.id)) else {
            return Err(CodecError::Unprepared);
        };
        size("page", page.len(), self.page_bytes())?;
        let (frame, page) = page.split_at(self.frame_bytes());
        let next = next.get(self.frame_bytes()..).unwrap_or_default();
        self.differences.scores_ahead(differences, page, next, scores)?;
        let frame = self.frame(frame);
        for (head, scores) in scores.chunks_exact_mut(self.page_tokens()).enumerate() {
            let mut sum: f32 = query.floats(head).iter().zip(&frame).map(|(q, k)| q * k).sum();
            for score in scores {
                sum += *score;
                *score = sum;
            }
        }
        Ok(())
    }
}
