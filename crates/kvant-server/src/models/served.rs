//! A model that is loaded.

use crate::constraints::Constraints;
use crate::error::ApiError;
use kvant_engine::grammar::Grammar;
use kvant_engine::scheduler::Handle;
use kvant_engine::{Constraint, Interrupt, Prompts, SamplingParams};

/// A model that is loaded.
pub struct Served {
    /// What clients call it.
    pub name: String,
    /// Its scheduler.
    pub handle: Handle,
    /// How tokens are chosen where a request does not say.
    pub sampling: SamplingParams,
    /// For answers that are kept to a grammar.
    constraints: Constraints,
}

impl Served {
    pub fn new(name: String, handle: Handle, sampling: SamplingParams) -> Self {
        Self { name, handle, sampling, constraints: Constraints::default() }
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
