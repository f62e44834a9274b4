//! From grammars that requests ask for to constraints on answers.

use crate::error::ApiError;
use kvant_engine::grammar::Grammar;
use kvant_engine::{Constraint, Interrupt};
use kvant_text::tokenizer::Tokenizer;

#[cfg(feature = "grammar")]
mod compiled {
    use super::*;
    use kvant_engine::grammar::{GrammarCompiler, GrammarError};
    use std::sync::OnceLock;

    /// Made when it is first needed: it takes a moment and some memory.
    #[derive(Default)]
    pub struct Constraints(OnceLock<Result<GrammarCompiler, GrammarError>>);

    impl Constraints {
        /// Constraints for `count` answers. Takes a moment.
        pub fn make(
            &self,
            tokenizer: &Tokenizer,
            grammar: &Grammar,
            count: usize,
            interrupt: &Interrupt,
        ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
            let compiler = self.0.get_or_init(|| GrammarCompiler::new(tokenizer)).as_ref();
            let compiled = compiler
                .map_err(GrammarError::clone)
                .and_then(|found| found.compile_until(grammar, interrupt));
            let first = compiled.map_err(|error| {
                ApiError::field(
                    "response_format",
                    format!("the requested answer format cannot be followed: {error}"),
                )
            })?;
            Ok((0..count).map(|_| Box::new(first.clone()) as Box<dyn Constraint>).collect())
        }
    }
}

#[cfg(feature = "grammar")]
pub use compiled::Constraints;

/// There are none: this server was built without grammars.
#[cfg(not(feature = "grammar"))]
#[derive(Default)]
pub struct Constraints(());

#[cfg(not(feature = "grammar"))]
impl Constraints {
    /// Refuses every grammar: no request is answered as if it had asked for less.
    pub fn make(
        &self,
        _: &Tokenizer,
        _: &Grammar,
        _: usize,
        _: &Interrupt,
    ) -> Result<Vec<Box<dyn Constraint>>, ApiError> {
        let message = "this server was built without grammars: it cannot enforce a format or a tool call";
        Err(ApiError::field("response_format", message).code("unsupported_parameter"))
    }
}
