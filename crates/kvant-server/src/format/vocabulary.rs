//! A model's tokens as grammars see them.

use kvant_model::tokenizer::{TokenKind, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use std::sync::{Arc, OnceLock};

/// Made when it is first needed: it takes a moment and some memory.
#[derive(Default)]
pub struct Vocabulary(OnceLock<Result<ParserFactory, String>>);

impl Vocabulary {
    /// Gets it ready.
    pub fn prepare(&self, tokenizer: &Tokenizer) {
        self.0.get_or_init(|| factory(tokenizer));
    }

    /// What follows a grammar.
    ///
    /// # Errors
    /// If the grammar cannot be followed, or it was not prepared.
    pub(super) fn matcher(&self, grammar: TopLevelGrammar) -> Result<Matcher, String> {
        let factory = match self.0.get() {
            Some(Ok(factory)) => factory,
            Some(Err(message)) => return Err(message.clone()),
            None => return Err("the vocabulary is not ready".into()),
        };
        factory.create_parser(grammar).map(|parser| Matcher::new(Ok(parser))).map_err(|e| e.to_string())
    }
}

fn factory(tokenizer: &Tokenizer) -> Result<ParserFactory, String> {
    let ends = tokenizer.end_of_generation();
    let Some(&end) = ends.first() else { return Err("this model has no token that ends a text".into()) };
    let count = tokenizer.vocab_len() as u32;
    let words: Vec<Vec<u8>> = (0..count).map(|id| word(tokenizer, id)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(count, end), &words).with_eos_tokens(ends);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
    factory.quiet();
    Ok(factory)
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
