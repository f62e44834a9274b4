//! Scalar quantisation: a change of basis, a rule, a way to share scales. One codec, many names.
//!
//! Everything here reconstructs x̂ = T⁻¹(s_c · (s_t·level(code) + z_t) + z_c) with some of the parts absent; what a
//! family fixes is which.

use super::family::{Build, Calibration, Family, GroupSize, Learned, Options, Scaling};
use super::{
    KernelReport, PageCodec, Rounding, check_sums, decoded_accumulate, dimension, finish_sums, trellis,
};
use crate::error::{BuildError, CodecError, not_finite, size, whole};
use crate::format::{Arrays, PackedFormat, PageFormat, PageSize, Rotation, Side, Widths};
use crate::kernel::{Accumulator, Kernels, MixedWidth, Pages, Query, decode_attention};
use crate::quant::allocation::Budget;
use crate::quant::{Levels, Rule};
use crate::transform::Basis;
use kvant_simd::{ROWS, Simd, Tier, with_tier};
use std::sync::Arc;

/// Every class of options.
pub(super) const ALL: &[&str] =
    &["rotation", "scaling", "rule", "scales", "page", "lambda", "mean", "balanced", "learned", "seed"];

/// What is missing where a plan was not trained for a spec.
const LEARNED_BASIS: &str = "a basis learned for it (with `--learn`)";
const LEARNED_SCALE: &str = "scales learned for it (with `--learn`)";

/// A family of this codec.
pub(super) const fn family(
    name: &'static str,
    bits: std::ops::RangeInclusive<u8>,
    shown: &'static [u8],
    formula: &'static str,
    source: &'static str,
    defaults: Options,
) -> Family {
    Family { name, bits: Some(bits), shown, formula, source, defaults, accepts: ALL, build }
}

/// `ch{b}`.
pub(crate) const CH: Family = family(
    "ch",
    1..=8,
    &[2, 4],
    "per channel over the page: z ≈ min, s ≈ (max − z)/(2^b − 1), fitted; code = round((x − z)/s)",
    "KIVI (Liu et al. 2024) keys, with fitted scales",
    Options { scaling: Scaling::Channel, rule: Rule::FittedRange, ..Options::PLAIN },
);
/// `rot{b}`.
pub(crate) const ROT: Family = family(
    "rot",
    2..=8,
    &[3, 4],
    "SRHT, then per token and group: s ≈ x*/−2^(b−1) for the number x* of largest magnitude, fitted",
    "QuaRot/llama.cpp rotation with q4_0's signed maximum, fitted",
    Options { rotation: Rotation::Srht, rule: Rule::FittedMax, ..Options::PLAIN },
);
/// `srht{b}`.
pub(crate) const SRHT: Family = family(
    "srht",
    2..=8,
    &[4],
    "SRHT, then per token and group: s = max|x|/(2^(b−1) − 1)",
    "QuaRot (Ashkboos et al. 2024)",
    Options { rotation: Rotation::Srht, ..Options::PLAIN },
);
/// `srft{b}`.
pub(crate) const SRFT: Family = family(
    "srft",
    2..=8,
    &[4, 8],
    "sign-randomised real-packed FFT, optional λ, then per token and group: s = max|x|/(2^(b−1) − 1)",
    "SRFT int4 cache paper",
    Options { rotation: Rotation::Srft, ..Options::PLAIN },
);
/// `sym{b}`.
pub(crate) const SYM: Family = family(
    "sym",
    2..=8,
    &[4],
    "per token and group: s = max|x|/(2^(b−1) − 1)",
    "Cactus; llama.cpp q8_0",
    Options::PLAIN,
);
/// `max{b}`.
pub(crate) const MAX: Family = family(
    "max",
    2..=8,
    &[4, 5],
    "per token and group: s = x*/−2^(b−1) for the number x* of largest magnitude",
    "llama.cpp q4_0, q5_0",
    Options { rule: Rule::SignedMax, ..Options::PLAIN },
);
/// `asym{b}`.
pub(crate) const ASYM: Family = family(
    "asym",
    1..=8,
    &[4, 5],
    "per token and group: z = min, s = (max − z)/(2^b − 1)",
    "KIVI values; mlx-lm; Open-TQ-Metal",
    Options { rule: Rule::Asymmetric, ..Options::PLAIN },
);
/// `tq{b}`.
pub(crate) const TQ: Family = family(
    "tq",
    1..=5,
    &[2, 3, 4],
    "SRHT, s = ‖x‖/√d per token, nearest Lloyd–Max level of the Gaussian (levels rounded to 1/127 of the largest)",
    "TurboQuant (Zandieh et al. 2025), MSE part; turboquant-mlx",
    Options { rotation: Rotation::Srht, scaling: Scaling::Token, rule: Rule::LloydMax, ..Options::PLAIN },
);
/// `chg{b}`.
pub(crate) const CHG: Family = family(
    "chg",
    2..=8,
    &[4],
    "per channel over the page: c = max|x|; then per token and group of x/c: s = max/(2^(b−1) − 1)",
    "two-level scaling",
    Options { scaling: Scaling::ChannelGroup(GroupSize::G32), ..Options::PLAIN },
);
/// `klt{b}`, with a fraction of bits: 4.25 on average.
pub(crate) const KLT: Family = Family {
    name: "klt",
    bits: None,
    shown: &[],
    formula: "y = B(x − μ) in the plan's basis, per-channel widths, per channel over the page: z ≈ min, s ≈ (max − z)/(2^b − 1), fitted",
    source: "attention-aware KLT, this project",
    defaults: Options {
        scaling: Scaling::Channel,
        rule: Rule::FittedRange,
        page: PageSize::P128,
        mean: true,
        budget: Budget::hundredths(425),
        ..Options::PLAIN
    },
    accepts: &["body", "scales", "page"],
    build: |build| if build.options().trellis { trellis::planned(build) } else { self::build(build) },
};

/// A scalar-quantised page codec.
struct ScalarCodec {
    format: Arc<PackedFormat>,
    /// The arithmetic of the format's basis.
    basis: Basis,
    /// One per span of the format.
    levels: Vec<Levels>,
    /// Keys of several widths whose channels alone have scales.
    joined: Option<MixedWidth>,
    /// Pages have the shape that a few heads are attended over by kernels of its own.
    few: bool,
    /// Tells its own queries from those of other codecs.
    id: u64,
    tier: Tier,
    kernels: &'static Kernels,
}

pub(super) fn build(build: &Build<'_>) -> Result<Box<dyn PageCodec>, BuildError> {
    let options = build.options();
    let (dim, side) = (build.dim, build.side);
    let refuse = |reason| BuildError::Combination { spec: build.spec.to_string(), reason };
    dimension(dim)?;
    options.rotation.serves(dim)?;
    if matches!(options.scaling, Scaling::ChannelGroup(_)) && options.rule.has_zero() {
        return Err(refuse(
            "channel × group scales leave no place for an asymmetric zero; use sym, max or lm",
        ));
    }
    if options.balanced && options.lambda {
        return Err(refuse(
            "λ belongs to the rotation alone, which a balanced basis comes before; use one of them",
        ));
    }
    if options.learned.is_some() && (options.balanced || options.lambda) {
        return Err(refuse("what is learned takes the place of λ and of a balanced basis; use one of them"));
    }
    let planned = std::ptr::eq(build.spec.family, &KLT) || build.spec.family.name == KLT.name;
    let widths = if planned {
        planned_widths(build)?
    } else {
        let bits = build.spec.bits;
        if !options.rule.widths().contains(&bits) {
            return Err(refuse("the rule is not defined at this width"));
        }
        vec![bits; dim.div_ceil(side.row())]
    };
    let group = match options.scaling {
        Scaling::Group(group) | Scaling::ChannelGroup(group) => group.channels(),
        Scaling::Token | Scaling::Channel => dim.next_multiple_of(side.row()),
    };
    let zeros = options.rule.has_zero();
    let per_channel = matches!(options.scaling, Scaling::Channel | Scaling::ChannelGroup(_));
    let per_token = options.scaling != Scaling::Channel;
    let arrays = Arrays {
        channel_scale: per_channel,
        channel_zero: zeros && !per_token,
        token_scale: per_token,
        token_zero: zeros && per_token,
    };
    let basis = basis(build, planned)?;
    let levels = |bits| Levels::new(options.rule, bits, dim);
    let widths = Widths { rows: &widths, meaning: &|bits| levels(bits).meaning };
    let (tokens, description) = (options.page.tokens(), basis.format().clone());
    let format = PackedFormat::new(side, tokens, group, widths, options.scales, arrays, description);
    let joins = side == Side::Key && planned && format.spans.len() > 1;
    let joined =
        joins.then(|| MixedWidth::new(&format.spans, with_tier!(build.tier, S => <S as Simd>::BYTE_CENTRE)));
    Ok(Box::new(ScalarCodec {
        few: match &joined {
            Some(_) => decode_attention::suits_mixed(&format),
            None => decode_attention::suit(&format),
        },
        levels: format.spans.iter().map(|span| levels(span.bits)).collect(),
        format: Arc::new(format),
        basis,
        joined,
        id: Query::owner(),
        tier: build.tier,
        kernels: Kernels::of(build.tier),
    }))
}

fn basis(build: &Build<'_>, planned: bool) -> Result<Basis, BuildError> {
    let options = build.options();
    let Calibration { mean, lambda, basis: dense, .. } = build.calibration;
    let missing = |part| BuildError::Uncalibrated { spec: build.spec.to_string(), part };
    let unfit = |part, reason: &str| BuildError::Calibration {
        spec: build.spec.to_string(),
        part,
        reason: reason.to_owned(),
    };
    let turned = matches!(options.learned, Some(Learned::Cayley | Learned::Householder));
    let mut basis = if planned || turned {
        let part = if turned { LEARNED_BASIS } else { "a basis" };
        let dense = dense.clone().ok_or_else(|| missing(part))?;
        if dense.dim() != build.dim {
            return Err(unfit("basis", "it is of another dimension"));
        }
        Basis::dense(dense)
    } else if options.balanced {
        let dense = dense.as_ref().ok_or_else(|| missing("a balanced basis"))?;
        if dense.dim() != build.dim {
            return Err(unfit("balanced basis", "it is of another dimension"));
        }
        Basis::new(options.rotation, build.dim, options.seed).after(dense, build.tier)
    } else {
        Basis::new(options.rotation, build.dim, options.seed)
    };
    let scaled = options.learned == Some(Learned::Scaled);
    if options.lambda || scaled {
        let part = if scaled { LEARNED_SCALE } else { "per-channel λ" };
        let lambda = lambda.as_ref().ok_or_else(|| missing(part))?;
        basis = basis
            .with_lambda(lambda)
            .ok_or_else(|| unfit("λ", "it must be one positive finite number per channel"))?;
    }
    if options.mean {
        let mean = mean.as_ref().ok_or_else(|| missing("a mean"))?;
        basis =
            basis.with_mean(mean).ok_or_else(|| unfit("mean", "it must be one finite number per channel"))?;
    }
    Ok(basis)
}

fn planned_widths(build: &Build<'_>) -> Result<Vec<u8>, BuildError> {
    let spec = || build.spec.to_string();
    let widths = build
        .calibration
        .widths
        .clone()
        .ok_or_else(|| BuildError::Uncalibrated { spec: spec(), part: "channel widths" })?;
    let rows = build.dim.div_ceil(build.side.row());
    let unfit = |reason: String| BuildError::Calibration { spec: spec(), part: "channel widths", reason };
    if widths.len() != rows {
        return Err(unfit(format!("{} widths given, {rows} needed", widths.len())));
    }
    if let Some(bits) = widths.iter().find(|bits| !matches!(bits, 0..=6 | 8)) {
        return Err(unfit(format!("{bits} bits; allowed are 0, 1, 2, 3, 4, 5, 6 and 8")));
    }
    if !widths.is_sorted_by(|a, b| a >= b) {
        return Err(unfit("they must not increase".to_owned()));
    }
    if widths.first().is_none_or(|bits| *bits == 0) {
        return Err(unfit("the first channels need at least one bit".to_owned()));
    }
    Ok(widths)
}

impl ScalarCodec {
    /// Whether so many heads have kernels of their own over these pages. Sixteen may fill the unit for blocks.
    fn are_few(&self, heads: usize) -> bool {
        self.few && heads < ROWS
    }
}

impl PageCodec for ScalarCodec {
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
        self.format.bytes
    }

    fn kernels(&self) -> KernelReport {
        KernelReport::packed(self.format.side, self.tier)
    }

    fn format(&self) -> Option<PageFormat> {
        Some(PageFormat::Packed(Arc::clone(&self.format)))
    }

    fn rounding(&self) -> Option<Rounding> {
        self.levels.first().map(|levels| Rounding { rule: levels.rule, unit: levels.unit })
    }

    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        size("rows", rows.len(), self.format.tokens * self.format.dim)?;
        size("page", page.len(), self.format.bytes)?;
        // SAFETY: both sizes were checked and the table belongs to this CPU.
        let largest = unsafe {
            (self.kernels.encode)(&self.format, &self.levels, &self.basis, rows.as_ptr(), page.as_mut_ptr())
        };
        if largest <= self.format.scales.max() {
            return Ok(());
        }
        Err(not_finite(rows, self.format.dim)
            .unwrap_or(CodecError::OutOfRange { format: self.format.scales.name() }))
    }

    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        size("page", page.len(), self.format.bytes)?;
        size("rows", rows.len(), self.format.tokens * self.format.dim)?;
        // SAFETY: both sizes were checked and the table belongs to this CPU.
        unsafe { (self.kernels.decode)(&self.format, &self.basis, page, rows.as_mut_ptr()) };
        Ok(())
    }

    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        whole("queries", queries.len(), self.format.dim)?;
        // SAFETY: `queries` is whole heads and the table belongs to this CPU.
        unsafe { (self.kernels.prepare)(&self.format, &self.basis, self.id, queries, query) };
        Ok(())
    }

    fn scores_ahead(
        &self,
        query: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        if !query.fits(self.format.dim, self.id) {
            return Err(CodecError::Unprepared);
        }
        size("page", page.len(), self.format.bytes)?;
        size("scores", scores.len(), query.heads() * self.format.tokens)?;
        // SAFETY: all sizes were checked and the table belongs to this CPU.
        unsafe {
            let (joined, pages, scores) = (self.joined.as_ref(), Pages::new(page, next), scores.as_mut_ptr());
            match self.format.side {
                Side::Key if self.are_few(query.heads()) => match joined {
                    Some(widths) => (self.kernels.mixed_scores)(&self.format, widths, query, pages, scores),
                    None => (self.kernels.decode_scores)(&self.format, query, pages, scores),
                },
                Side::Key => (self.kernels.scores)(&self.format, joined, query, pages, scores),
                Side::Value => (self.kernels.row_major_scores)(&self.format, query, pages, scores),
            }
        }
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
            let (weights, pages) = (weights.as_ptr(), Pages::new(page, next));
            if self.are_few(sums.heads()) {
                (self.kernels.few_sums)(&self.format, weights, pages, sums);
            } else {
                (self.kernels.accumulate)(&self.format, weights, pages, sums);
            }
        }
        Ok(())
    }

    fn finish(&self, sums: &Accumulator, out: &mut [f32]) -> Result<(), CodecError> {
        finish_sums(self, self.kernels, &self.basis, sums, out)
    }
}
