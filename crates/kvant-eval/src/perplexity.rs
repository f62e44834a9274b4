//! Perplexity: e to the mean nll over many windows.

use crate::error::EvalError;
use crate::estimate::Estimate;
use crate::token_nll::{PassLimits, token_nll};
use crate::windows::Windows;
use kvant_codec::KvSpec;
use kvant_engine::KvCache;
use kvant_model::Model;

/// Where a measurement stands after a window.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Windows done.
    pub done: usize,
    /// Windows in all.
    pub windows: usize,
    /// The estimate so far.
    pub so_far: Estimate,
}

/// Refuses windows longer than the model was made for, where its file says: beyond that a perplexity measures
/// the extrapolation and not the model.
///
/// # Errors
/// [`EvalError::ContextTooLong`].
pub fn check_context(model: &Model, ctx: usize) -> Result<(), EvalError> {
    match model.context() {
        Some(limit) if ctx > limit => Err(EvalError::ContextTooLong { ctx, limit }),
        _ => Ok(()),
    }
}

/// Runs every window through the model, each with a cache of its own that keeps keys and values as `kv` says,
/// and tells `progress` after each.
///
/// # Errors
/// If no cache keeps what `kv` says, the windows are beyond the model, or the logits are no finite numbers.
pub fn perplexity(
    model: &Model,
    windows: &Windows,
    kv: &KvSpec,
    limits: PassLimits,
    progress: &mut dyn FnMut(Progress),
) -> Result<Estimate, EvalError> {
    check_context(model, windows.ctx())?;
    let mut so_far = Estimate::default();
    for (number, window) in windows.iter().enumerate() {
        let mut held = KvCache::in_arena(kv, model.slots(), windows.ctx(), model.store())?;
        so_far.extend(token_nll(model, held.sequence_mut(), (number, window), windows.targets(), limits)?);
        progress(Progress { done: number + 1, windows: windows.chunks(), so_far });
    }
    Ok(so_far)
}
