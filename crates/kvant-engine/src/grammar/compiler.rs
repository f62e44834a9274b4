//! From grammars to masks over a model's vocabulary.

use super::{Grammar, bounds, with_fixed_whitespace};
use crate::constraint::{Constraint, ConstraintError};
use kvant_model::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;
use std::thread;

/// Stack of a thread that compiles: the compiler takes at most some 30 KB for a level, and [`bounds`] say how many levels there are.
/// Memory is only taken for what is touched, and given back when the thread ends.
const STACK: usize = 256 << 20;

/// A grammar that cannot be followed, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub(super) String);

/// Makes constraints for the texts of one vocabulary.
pub struct GrammarCompiler(ParserFactory);

impl GrammarCompiler {
    /// For models with this tokenizer.
    ///
    /// # Errors
    /// If no token of it ends a text: a text that has to end where its grammar does could not.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, GrammarError> {
        let ends = tokenizer.end_of_generation();
        let Some(&end) = ends.first() else {
            return Err(GrammarError("this model has no token that ends a text".into()));
        };
        let count = tokenizer.vocab_len() as u32;
        let words: Vec<Vec<u8>> = (0..count).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(count, end), &words).with_eos_tokens(ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        Ok(Self(factory))
    }

    /// A constraint at the beginning of a text.
    ///
    /// # Errors
    /// If the schema, grammar or expression is not valid, is beyond a bound (of bytes, rules, levels, properties, alternatives), or
    /// uses what is not supported; remote references are not.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarConstraint, GrammarError> {
        on_large_stack(|| {
            bounds::check(grammar)?;
            self.compile_here(grammar)
        })?
    }

    /// The same on this thread.
    fn compile_here(&self, grammar: &Grammar) -> Result<GrammarConstraint, GrammarError> {
        let grammar = match grammar {
            Grammar::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(with_fixed_whitespace(schema.clone()))
            }
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Grammar::Regex(text) => TopLevelGrammar::from_regex(text),
        };
        let parser = self.0.create_parser(grammar).map_err(refused)?;
        Ok(GrammarConstraint(Matcher::new(Ok(parser))))
    }
}

/// Does work that calls itself deeply.
fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, GrammarError> {
    let thread = thread::Builder::new().name("kvant-grammar".into()).stack_size(STACK);
    thread::scope(|scope| {
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| GrammarError(format!("there is no thread to compile it on: {error}")))?;
        thread.join().map_err(|_| GrammarError("the compiler has failed; this is a bug".into()))
    })
}

fn refused(error: impl std::fmt::Display) -> GrammarError {
    GrammarError(error.to_string())
}

/// A token's bytes; what is no text is marked, so that no text can be taken for it.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let marked = || {
        let name = tokenizer.token_bytes(id).unwrap_or_default();
        [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
    };
    match tokenizer.kind(id) {
        Some(TokenKind::Control | TokenKind::Unknown) | None => marked(),
        Some(_) => tokenizer.text_bytes(id).map(<[u8]>::to_vec).unwrap_or_else(|_| marked()),
    }
}

/// A grammar on its way through one text.
pub struct GrammarConstraint(Matcher);

/// A constraint of its own for another text, as far along as this one is.
impl Clone for GrammarConstraint {
    fn clone(&self) -> Self {
        Self(self.0.deep_clone())
    }
}

impl Constraint for GrammarConstraint {
    fn allow(&mut self, logits: &mut [f32]) -> Result<(), ConstraintError> {
        let allowed = self.0.compute_mask_or_eos().map_err(|e| ConstraintError(e.to_string()))?;
        for (token, logit) in logits.iter_mut().enumerate() {
            // Logits may be padded beyond the vocabulary.
            if token >= allowed.len() || !allowed.get(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        if self.0.is_stopped() {
            // Only the end of the text was allowed.
            return Ok(());
        }
        self.0.consume_token(token).map_err(|e| ConstraintError(e.to_string()))
    }
}
