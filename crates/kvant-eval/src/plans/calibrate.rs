//! One pass over a text, and what follows from it for every head.

use crate::error::EvalError;
use crate::windows::{Score, Windows};
use kvant_cache::plan::{self, ENDS_ROTATION, Findings, Klt, Plan, PlannedEntry, PlannedHead};
use kvant_cache::snapshot::Signature;
use kvant_calibrate::{CalibrationError, HeadStatistics, Moments, Observed, Statistics, basis};
use kvant_codec::{Tier, TierError};
use kvant_engine::{KvCache, KvUnsupported, PREFILL_CHUNK, Policy};
use kvant_model::blocks::Chunk;
use kvant_model::cache::ExactCache;
use kvant_model::tokenizer::{EncodeOptions, Tokenizer};
use kvant_model::{ForwardError, Model};
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
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The text cannot be read by the model.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A basis was not found.
    #[error("kv head {head} of layer {entry}: {source}")]
    Head {
        /// Which layer.
        entry: usize,
        /// Which kv head.
        head: usize,
        /// Why.
        source: CalibrationError,
    },
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
    Windows::of_ids(tokenizer.prefix(), &ids, ctx, (there.min(tokens) / ctx).max(1), Score::All)
}

/// Runs every window through the model, each a sequence of its own, and makes the plan. `progress` is told the tokens read so far.
/// What is held besides the model is three d×d matrices a kv head and the exact cache of a window.
///
/// # Errors
/// If the model cannot read the text, the text is too short, or the policy asks for something that is not found.
pub fn calibrate(
    model: &Model,
    request: PlanRequest<'_>,
    windows: &Windows,
    progress: &mut dyn FnMut(usize),
) -> Result<Plan, PlanError> {
    let PlanRequest { model: signature, policy, text } = request;
    let states = model.states();
    let mut statistics = Statistics::new(states, policy.rule.sinks, ENDS_ROTATION, Tier::select()?);
    let mut read = 0;
    for window in windows {
        let mut cache = Observed::new(ExactCache::<f32>::new(states, window.len()), &mut statistics);
        for tokens in window.chunks(PREFILL_CHUNK) {
            model.forward(&mut [Chunk { tokens, cache: &mut cache, wanted: 0..0 }])?;
            read += tokens.len();
            progress(read);
        }
    }
    let mut entries = Vec::with_capacity(states.len());
    for (entry, heads) in statistics.entries().iter().enumerate() {
        let mut planned = PlannedEntry { key_dim: 0, value_dim: 0, heads: Vec::with_capacity(heads.len()) };
        for (head, seen) in heads.iter().enumerate() {
            (planned.key_dim, planned.value_dim) = (seen.keys.dim(), seen.values.dim());
            planned.heads.push(of_head(seen).map_err(|source| PlanError::Head { entry, head, source })?);
        }
        entries.push(planned);
    }
    let plan = Plan::new(signature, policy.clone(), &format!("from {read} tokens of {text}"), entries)?;
    let plan = Arc::new(plan);
    KvCache::new(plan.with(policy), states, 1)?;
    Ok(Arc::unwrap_or_clone(plan))
}

fn of_head(seen: &HeadStatistics) -> Result<PlannedHead, CalibrationError> {
    let HeadStatistics { keys, queries, values, key_extent, value_extent } = seen;
    let basis::Klt { basis: dense, variances } = basis::klt(keys, queries)?;
    let variances = variances.into_iter().map(|x| x as f32).collect();
    let mean = |moments: &Moments, what| basis::mean(moments, what).map(Some);
    Ok(PlannedHead {
        key: Findings {
            mean: mean(keys, "keys")?,
            ends: key_extent.ends(),
            klt: Some(Klt { basis: Arc::new(dense), variances }),
            balanced: Some(basis::balanced(keys, queries)?.matrix().to_vec()),
        },
        value: Findings { mean: mean(values, "values")?, ends: value_extent.ends(), ..Findings::default() },
    })
}
