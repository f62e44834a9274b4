//! Texts as clients give them: written, or as tokens.

use crate::error::ApiError;
use crate::fields::{Fields, whole};
use kvant_engine::{Engine, Prompts};
use serde_json::Value;

/// A text, or its tokens.
pub enum Prompt {
    /// As people read it.
    Text(String),
    /// As the model does.
    Tokens(Vec<u32>),
}

impl Prompt {
    /// As people read it.
    pub fn text(&self, engine: &Engine) -> Result<String, ApiError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Tokens(tokens) => {
                engine.tokenizer().decode(tokens).map_err(|e| ApiError::field("prompt", e.to_string()))
            }
        }
    }

    /// As the model does.
    pub fn tokens(self, within: Prompts<'_>) -> Result<Vec<u32>, ApiError> {
        match self {
            Self::Text(text) => Ok(within.text(&text)?),
            Self::Tokens(tokens) => Ok(tokens),
        }
    }
}

/// A text, several, the tokens of one, or those of several.
pub fn prompts(fields: &mut Fields, name: &str) -> Result<Vec<Prompt>, ApiError> {
    const WANTED: &str = "a string, an array of strings, or one or several arrays of token ids";
    let value = fields.take(name).ok_or_else(|| ApiError::field(name, format!("{name} is required")))?;
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(fields.wrong(name, WANTED, &other)),
    };
    let ids = |items: &[Value]| -> Result<Prompt, ApiError> {
        let ids: Option<Vec<u32>> = items.iter().map(whole).collect();
        ids.map(Prompt::Tokens)
            .ok_or_else(|| ApiError::field(name, format!("{name}: not token ids of this model")))
    };
    if items.iter().any(Value::is_number) {
        return Ok(vec![ids(&items)?]);
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) => ids(&items),
        other => Err(fields.wrong(name, WANTED, &other)),
    };
    items.into_iter().map(one).collect()
}
