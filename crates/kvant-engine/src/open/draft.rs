//! The draft model of `--speculate FILE`.

use super::OpenOptions;
use super::context::default_context;
use super::error::OpenError;
use super::plans::Plans;
use crate::engine::Engine;
use crate::estimate::weight_bytes;
use crate::kv;
use crate::speculation::{DraftModel, Speculate};
use kvant_cache::{Arena, ArenaOptions, Policy};
use kvant_model::{Checkpoint, Description, LoadError};
use std::sync::Arc;

/// A draft model before it is loaded.
pub(super) struct Draft {
    checkpoint: Checkpoint,
    policy: Policy,
    /// The most tokens of a text that it reads.
    context: usize,
    /// Bytes of keys and values of one such text: the sequences of all texts together take no more.
    cache: usize,
}

impl Draft {
    /// What is asked for beside a model of this description; none where no draft is.
    pub fn of(options: &OpenOptions, target: &Description) -> Result<Option<Self>, OpenError> {
        let Some(Speculate::Draft(path)) = &options.speculate else { return Ok(None) };
        let checkpoint = Checkpoint::open(path)?;
        let description = Description::of(&checkpoint)?;
        let policy = Plans::new(&checkpoint).choose(None, &description)?.policy;
        let longest = options.context.unwrap_or_else(|| default_context(target));
        let context = default_context(&description).min(longest);
        let cache = kv::memory(&policy, &description.slots, context)?;
        Ok(Some(Self { checkpoint, policy, context, cache }))
    }

    /// Bytes that it takes beside the model.
    pub fn bytes(&self, options: &OpenOptions) -> Result<u64, OpenError> {
        Ok(weight_bytes(&self.checkpoint, options.weights)? + self.cache as u64)
    }

    /// Loads it beside a model, whose threads it computes on.
    pub fn load(self, options: &OpenOptions, target: &Engine) -> Result<DraftModel, OpenError> {
        if target.model().device_store().is_some() {
            let device = target.device();
            return Err(LoadError::unsupported(format!(
                "a draft model beside a model on {device}: drafts run on CPUs alone; use --speculate suffix, or --device cpu"
            ))
            .into());
        }
        let engine = Engine::load_on(target.pool().clone(), &self.checkpoint, options.load_options())?;
        let store = Arena::with(ArenaOptions { cap: Some(self.cache), pinned: options.pinned }).into();
        let words = (target.tokenizer(), target.model().vocabulary());
        let engine = Arc::new(engine.without_speculation());
        Ok(DraftModel::new(engine, (self.policy, self.context, store), words)?)
    }
}
