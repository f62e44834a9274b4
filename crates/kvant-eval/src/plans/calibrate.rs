//! One pass over a text, and what follows from it for every head.

use super::learning::{self, LearnedTransforms};
use crate::error::EvalError;
use crate::windows::{Score, Windows};
use kvant_cache::plan::{self, ENDS_ROTATION, Plan, PlannedSlot};
use kvant_cache::snapshot::Signature;
use kvant_calibrate::{CalibrationError, Positions, Statistics, planned_head};
use kvant_codec::{KvSpec, Tier, TierError};
use kvant_engine::{KvCache, KvUnsupported, PREFILL_CHUNK, Policy};
use kvant_model::{Chunk, ForwardError, Model, Pass};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use std::sync::Arc;

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// Signature of the checkpoint.
    pub model: Signature,
    /// How keys and values will be kept.
    pub policy: &'a Policy,
    /// What the text is, in a few words.
    pub text: &'a str,
    /// Codecs for whose keys, values or both something is to be learned; usually none.
    pub learn: &'a [KvSpec],
    /// Where the ranges of channels are taken from.
    pub ranges: Positions,
    /// Positions that windows are spread over: the context in which the plan shall hold. Nothing but the first where it is not
    /// longer than a window, or the model has embeddings for positions.
    pub reach: usize,
}

/// How far a calibration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Tokens read.
    Read(usize),
    /// Layers for which everything is learned.
    Learned(usize),
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text cannot be read by the model.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A basis was not found.
    #[error("kv head {head} of layer {layer}: {source}")]
    Head {
        /// Which layer.
        layer: usize,
        /// Which kv head.
        head: usize,
        /// Why.
        source: CalibrationError,
    },
    /// A codec that nothing can be learned for.
    #[error(transparent)]
    Learning(CalibrationError),
    /// The plan cannot be put together.
    #[error(transparent)]
    Plan(#[from] plan::PlanError),
    /// A policy that this plan has no numbers for.
    #[error(transparent)]
    Kv(#[from] KvUnsupported),
    /// An instruction set that was asked for is not there.
    #[error(transparent)]
    Tier(#[from] TierError),
}

/// Windows of a text to calibrate on: as many of `ctx` tokens as there are in `tokens` of it.
///
/// # Errors
/// If the text is shorter than a window, or cannot be tokenised.
pub fn calibration_windows(
    tokenizer: &Tokenizer,
    text: &str,
    ctx: usize,
    tokens: usize,
) -> Result<Windows, EvalError> {
    let ids = tokenizer.encode(text, EncodeOptions::default())?;
    let there = tokenizer.prefix().len() + ids.len();
    if there < ctx {
        return Err(EvalError::CalibrationTextTooShort { tokens: there, window: ctx });
    }
    Windows::of_ids(tokenizer.prefix(), &ids, ctx, (tokens.min(there) / ctx).max(1), Score::All)
}

/// Runs every window through the model, each a sequence of its own, and makes the plan. `progress` is told how far it is.
/// What is held besides the model is four d×d matrices a kv head, a sample of keys and values where something is to be learned, and
/// the exact cache of a window.
///
/// # Errors
/// If the model cannot read the text, the text is too short, or the policy asks for something that is not found.
pub fn calibrate(
    model: &Model,
    request: PlanRequest<'_>,
    windows: &Windows,
    progress: &mut dyn FnMut(Progress),
) -> Result<Plan, PlanError> {
    let PlanRequest { model: signature, policy, text, learn, ranges, reach } = request;
    let transforms = LearnedTransforms::of(learn).map_err(PlanError::Learning)?;
    let slots = model.slots();
    let statistics = Statistics::new(slots, policy.rule.sinks, ENDS_ROTATION, Tier::select()?);
    let statistics = statistics.with_extents(ranges);
    let mut statistics = if transforms.is_empty() {
        statistics
    } else {
        statistics.with_samples(learning::SAMPLE, learning::SEED)
    };
    let mut read = 0;
    let room = if model.position_limit().is_none() { reach.saturating_sub(windows.ctx()) } else { 0 };
    for (number, window) in windows.into_iter().enumerate() {
        let offset = room * number / (windows.chunks() - 1).max(1);
        let mut cache = KvCache::reference(slots, window.len() + offset)?;
        for tokens in window.chunks(PREFILL_CHUNK) {
            // As if so many positions came before the first. What rotary embeddings make of a text is the same anywhere, but keys
            // and queries are turned farther: their slow channels, which hardly move over a short text, come round.
            let positions: Vec<usize> = (cache.len() + offset..).take(tokens.len()).collect();
            let chunk = [Chunk::new(tokens, 0..0).at(kvant_model::Positions::Each(&positions))];
            model.forward(Pass::new(&chunk).watched(&mut statistics), &mut [cache.sequence_mut()])?;
            read += tokens.len();
            progress(Progress::Read(read));
        }
    }
    for slot in slots.kv_slots() {
        for weights in model.output_weights(slot) {
            statistics.read_by(slot, weights.data(), weights.tokens());
        }
    }
    let mut planned_slots = Vec::with_capacity(slots.len());
    for (slot, heads) in statistics.slots().iter().enumerate() {
        let layer = slots.get(slot).map_or(slot, |slot| slot.layer);
        let mut planned = PlannedSlot { key_dim: 0, value_dim: 0, heads: Vec::with_capacity(heads.len()) };
        for (head, seen) in heads.iter().enumerate() {
            (planned.key_dim, planned.value_dim) = (seen.keys.dim(), seen.values.dim());
            planned.heads.push(planned_head(seen).map_err(|source| PlanError::Head {
                layer,
                head,
                source,
            })?);
        }
        let learned = transforms.learn(heads, &mut planned.heads);
        learned.map_err(|(head, source)| PlanError::Head { layer, head, source })?;
        if !transforms.is_empty() {
            progress(Progress::Learned(slot + 1));
        }
        planned_slots.push(planned);
    }
    let spread = if room > 0 { format!(" at positions up to {reach}") } else { String::new() };
    let made = format!("from {read} tokens of {text}{spread}{}{}", of_ranges(ranges), transforms.told());
    let plan = Plan::new(signature, policy.clone(), &made, planned_slots)?;
    let plan = Arc::new(plan);
    KvCache::new(plan.with(policy), slots, 1)?;
    Ok(Arc::unwrap_or_clone(plan))
}

fn of_ranges(ranges: Positions) -> String {
    match ranges {
        Positions::All => String::new(),
        Positions::First(count) => format!(", ranges of the first {count} positions"),
        Positions::Every(count) => format!(", ranges of one position in {count}"),
    }
}
