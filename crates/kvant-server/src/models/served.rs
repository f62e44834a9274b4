//! A model that is loaded.

use super::adapters::Adapters;
use crate::constraints::Constraints;
use crate::error::ApiError;
use kvant_engine::grammar::Grammar;
use kvant_engine::scheduler::Handle;
use kvant_engine::{AdapterMix, Constraint, Interrupt, Prompts, SamplingParams};
use std::sync::Arc;

/// A model that is loaded.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Its scheduler.
    pub handle: Handle,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplingParams,
    /// Its LoRA adapters.
    pub adapters: Arc<Adapters>,
    /// For answers that are kept to a grammar.
    constraints: Arc<Constraints>,
    /// The model, where this is how one request sees it, and what that runs with.
    seen: Option<(Arc<Served>, AdapterMix)>,
}

impl Served {
    pub fn new(name: String, handle: Handle, sampling: SamplingParams) -> Self {
        let adapters = Arc::new(Adapters::of(handle.engine()));
        Self { name, handle, sampling, adapters, constraints: Arc::default(), seen: None }
    }

    /// The model as one request sees it, which calls it so and has adapters of its own. It stays loaded meanwhile.
    pub fn with(self: &Arc<Self>, name: &str, mix: AdapterMix) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            handle: self.handle.clone(),
            sampling: self.sampling.clone(),
            adapters: Arc::clone(&self.adapters),
            constraints: Arc::clone(&self.constraints),
            seen: Some((Arc::clone(self), mix)),
        })
    }

    /// What it is called among the models.
    pub fn model_name(&self) -> &str {
        self.seen.as_ref().map_or(&self.name, |(model, _)| model.model_name())
    }

    /// Whether a request has named its adapters.
    pub fn has_own_adapters(&self) -> bool {
        self.seen.is_some()
    }

    /// What a request runs with.
    pub fn mix(&self) -> AdapterMix {
        self.seen.as_ref().map_or_else(|| self.adapters.usual(), |(_, mix)| mix.clone())
    }

    /// Constraints for `count` answers, where a grammar is asked for. Takes a moment.
    pub fn constraints(
        &self,
        grammar: Option<&Grammar>,
        count: usize,
        interrupt: &Interrupt,
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let Some(grammar) = grammar else { return Ok(Vec::new()) };
        self.constraints.make(self.handle.engine().tokenizer(), grammar, count, interrupt)
    }

    /// Makes prompts that its context has room for.
    pub fn prompts(&self) -> Prompts<'_> {
        self.handle.engine().prompts(self.handle.context())
    }
}
