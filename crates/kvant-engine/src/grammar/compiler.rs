//! From grammars to masks over a model's vocabulary.

use super::constraint::GrammarConstraint;
use super::masks::{self, MaskThreads};
use super::{Grammar, bounds, with_fixed_whitespace};
use crate::interrupt::Interrupt;
use kvant_text::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher, ParserFactory};
use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

/// Stack of a thread that compiles: the compiler takes at most some 30 KB for a level, and [`bounds`] say how many levels there are.
/// Memory is only taken for what is touched, and given back when the thread ends.
pub(super) const STACK: usize = 256 << 20;

/// A grammar that cannot be followed, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GrammarError(pub(super) String);

/// Makes constraints for the texts of one vocabulary.
pub struct GrammarCompiler {
    factory: ParserFactory,
    threads: Arc<MaskThreads>,
}

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
        let environment: TokEnv = Arc::new(Interruptible(ApproximateTokEnv::new(trie)));
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        let threads = MaskThreads::new(masks::BUDGET)
            .map_err(|error| GrammarError(format!("there are no threads to follow grammars on: {error}")))?;
        Ok(Self { factory, threads: Arc::new(threads) })
    }

    /// A constraint at the beginning of a text.
    ///
    /// # Errors
    /// If the schema, grammar or expression is not valid, is beyond a bound (of bytes, rules, levels, properties, alternatives), or
    /// uses what is not supported; remote references are not.
    pub fn compile(&self, grammar: &Grammar) -> Result<GrammarConstraint, GrammarError> {
        self.compile_until(grammar, &Interrupt::default())
    }

    /// The same, broken off when the interrupt is set. That is looked at between parts of the work, of which each is bounded.
    ///
    /// # Errors
    /// As [`GrammarCompiler::compile`], and if it was broken off.
    pub fn compile_until(
        &self,
        grammar: &Grammar,
        interrupt: &Interrupt,
    ) -> Result<GrammarConstraint, GrammarError> {
        let compiled = on_large_stack(|| {
            bounds::check(grammar)?;
            INTERRUPT.set(Some(interrupt.clone()));
            self.compile_here(grammar)
        })?;
        compiled.map_err(|error| match interrupt.is_set() {
            true => GrammarError("it was not compiled in time; simplify it".into()),
            false => error,
        })
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
        let parser = self.factory.create_parser(grammar).map_err(refused)?;
        Ok(GrammarConstraint::new(Matcher::new(Ok(parser)), Arc::clone(&self.threads)))
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

thread_local! {
    /// Of what this thread compiles.
    static INTERRUPT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// A vocabulary that the compiler is asked for again and again: where it is broken off.
struct Interruptible(ApproximateTokEnv);

impl TokenizerEnv for Interruptible {
    fn tok_trie(&self) -> &TokTrie {
        let is_set = INTERRUPT.with_borrow(|interrupt| interrupt.as_ref().is_some_and(Interrupt::is_set));
        if is_set {
            // Caught where the compiler is entered, without a message: it has no other way out.
            std::panic::resume_unwind(Box::new("interrupted"));
        }
        self.0.tok_trie()
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.0.tokenize_bytes(bytes)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.0.tokenize_is_canonical()
    }
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
