//! Where a cache loses what it loses: errors layer by layer.
//!
//! One window goes through the model with the exact cache, and what every layer appends and asks is written down
//! ([`Capture`]). Then each cache in question gets the same keys, values and queries, layer by layer: what it makes of them
//! shows the error of that layer alone, not what earlier ones handed on.
//!
//! An error of keys matters by what it does to scores. With α the factor of scores, a score q·k is off by α q·(k − k̂)
//! nats; what all keys have in common of it, softmax does not see, so it is taken off per query. Beside it stands the size
//! that scores could have, α‖q‖‖k‖: a cache whose error is a fixed share of that is harmless where it is 5 nats and fatal
//! where it is 500.

mod capture;
mod errors;
mod statistics;

pub use capture::Capture;
pub use errors::LayerErrors;
pub use statistics::{LayerStatistics, LoudChannel};

use crate::error::EvalError;
use crate::token_nll::{PassLimits, check_ids};
use kvant_cache::Mode;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Chunk, Model, Pass};
use serde::Serialize;

/// Tokens that are looked at: what is written down of them stays in memory.
pub const MOST_TOKENS: usize = 1024;

/// All layers of a model, and what caches make of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerViews {
    /// What the layers are like, whatever the cache.
    pub layers: Vec<LayerStatistics>,
    /// What caches lose, in the order they were given.
    pub caches: Vec<CacheView>,
}

/// One cache over all layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CacheView {
    /// The cache.
    pub spec: String,
    /// One for each layer.
    pub layers: Vec<LayerErrors>,
}

/// Looks at the first [`MOST_TOKENS`] of a window, layer by layer.
///
/// # Errors
/// If the model refuses the window, or keys and values cannot be kept that way.
pub fn layer_views(
    model: &Model,
    window: &[u32],
    caches: &[Policy],
    mode: Mode,
    limits: PassLimits,
) -> Result<LayerViews, EvalError> {
    let window = &window[..window.len().min(MOST_TOKENS)];
    check_ids(model, window)?;
    let exact: Policy = "f32".parse().expect("a spec of the grammar");
    let mut cache = KvCache::in_arena(exact, model.slots(), window.len(), model.store())?;
    let mut capture = Capture::new(model.slots());
    for tokens in window.chunks(limits.tokens.max(1)) {
        let chunk = [Chunk::new(tokens, 0..0)];
        model.forward(Pass::new(&chunk).watched(&mut capture), &mut [cache.sequence_mut()])?;
    }
    let captured = capture.into_slots();
    let layers = captured.iter().map(|slot| LayerStatistics::of(slot.layer, slot)).collect();
    let view = |policy: &Policy| {
        let spec = policy.to_string();
        let mut policy = policy.clone();
        policy.rule.mode = mode;
        let layers = errors::measure(&captured, &policy)?;
        Ok(CacheView { spec, layers })
    };
    Ok(LayerViews { layers, caches: caches.iter().map(view).collect::<Result<_, EvalError>>()? })
}
