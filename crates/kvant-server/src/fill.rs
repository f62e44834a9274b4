//! Fill in the middle: what belongs between two texts, with the tokens that a model was taught it with.

use crate::error::ApiError;
use crate::models::Served;
use kvant_engine::Engine;
use kvant_text::tokenizer::{EncodeOptions, TokenKind, Tokenizer};

/// Names of the tokens before the text before, before the text after, and before what belongs between. Code models know one set.
const NAMES: [[&str; 3]; 6] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// Codestral's, which has the text after first and nothing before what belongs between.
const SUFFIX_FIRST: [&str; 2] = ["[SUFFIX]", "[PREFIX]"];

/// Separates files of a repository, where a model knows it.
const FILE: [&str; 2] = ["<|file_sep|>", "<file_sep>"];

/// The tokens of a model.
pub struct FillTokens {
    order: Order,
    file: Option<u32>,
}

enum Order {
    PrefixFirst([u32; 3]),
    SuffixFirst([u32; 2]),
}

impl FillTokens {
    /// Those of a model.
    ///
    /// # Errors
    /// If it was not taught to fill.
    pub fn of(engine: &Engine) -> Result<Self, ApiError> {
        let tokenizer = engine.tokenizer();
        let all =
            |names: &[&str]| names.iter().map(|name| token(tokenizer, name)).collect::<Option<Vec<u32>>>();
        let three = NAMES.iter().find_map(|names| all(names)?.try_into().ok()).map(Order::PrefixFirst);
        let two = || all(&SUFFIX_FIRST)?.try_into().ok().map(Order::SuffixFirst);
        let order = three.or_else(two).ok_or_else(|| {
            let message = "this model has no fill-in-the-middle tokens; use a code model that has them";
            ApiError::field("suffix", message).code("unsupported_parameter")
        })?;
        Ok(Self { order, file: FILE.iter().find_map(|name| token(tokenizer, name)) })
    }

    /// The prompt for what belongs between two texts.
    pub fn prompt(&self, served: &Served, before: &str, after: &str) -> Result<Vec<u32>, ApiError> {
        self.prompt_with(served, &[], before, after)
    }

    /// The same after other files, by name.
    pub fn prompt_with(
        &self,
        served: &Served,
        files: &[(String, String)],
        before: &str,
        after: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let within = served.prompts();
        let encode = |text: &str| within.encode(text, EncodeOptions::default()).map_err(ApiError::from);
        let mut ids = served.handle.engine().tokenizer().prefix().to_vec();
        for (name, text) in files {
            ids.extend(self.file);
            ids.extend(encode(&format!("{name}\n{text}\n"))?);
        }
        if !files.is_empty() {
            ids.extend(self.file);
        }
        match self.order {
            Order::PrefixFirst([prefix, suffix, middle]) => {
                ids.push(prefix);
                ids.extend(encode(before)?);
                ids.push(suffix);
                ids.extend(encode(after)?);
                ids.push(middle);
            }
            Order::SuffixFirst([suffix, prefix]) => {
                ids.push(suffix);
                ids.extend(encode(after)?);
                ids.push(prefix);
                ids.extend(encode(before)?);
            }
        }
        Ok(ids)
    }
}

/// A token of structure by its name.
fn token(tokenizer: &Tokenizer, name: &str) -> Option<u32> {
    let is_whole =
        |id: &u32| matches!(tokenizer.kind(*id), Some(TokenKind::Control | TokenKind::UserDefined));
    let count = u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
    let named = |id: &u32| tokenizer.token_bytes(*id).is_ok_and(|bytes| bytes == name.as_bytes());
    (0..count).filter(is_whole).find(named)
}
