//! Constrained decoding: texts that are JSON of a schema, match a regular expression or follow a grammar.
//!
//! A [`Grammar`] says what a text has to be. A [`GrammarCompiler`] knows a model's tokens and turns a grammar into a
//! [`GrammarConstraint`], which masks the logits before every token: the sampler chooses among what keeps the text
//! valid, so every text that ends is valid, whatever the model would have said.
//!
//! ```no_run
//! # #[cfg(feature = "grammar")] {
//! use kvant_engine::grammar::{Grammar, GrammarCompiler};
//! use kvant_engine::{Constraint, Engine, LoadOptions};
//! use kvant_model::Checkpoint;
//!
//! let engine = Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?;
//! let compiler = GrammarCompiler::new(engine.tokenizer())?;
//! let schema = serde_json::json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
//! let constraint: Box<dyn Constraint> = Box::new(compiler.compile(&Grammar::JsonSchema(schema))?);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A compiler is made once per vocabulary (some 100 ms and a trie of all tokens), a constraint once per text; constraints
//! that are not used yet can be cloned.
//!
//! What a grammar says is plain data. What follows it is [llguidance](https://github.com/guidance-ai/llguidance), behind the
//! feature `grammar`.

#[cfg(feature = "grammar")]
mod bounds;
#[cfg(feature = "grammar")]
mod compiler;
#[cfg(feature = "grammar")]
mod constraint;
mod gbnf;
#[cfg(feature = "grammar")]
mod masks;

#[cfg(feature = "grammar")]
pub use compiler::{GrammarCompiler, GrammarError};
#[cfg(feature = "grammar")]
pub use constraint::GrammarConstraint;
pub use gbnf::GbnfError;

use serde_json::{Value, json};

/// What a text has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// JSON that is valid under this schema, written with one space after commas and colons.
    JsonSchema(Value),
    /// A text of a grammar in Lark's notation, as llguidance understands it; `%json` embeds a schema.
    Lark(String),
    /// A text that a regular expression matches as a whole.
    Regex(String),
}

impl Grammar {
    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({"type": "object"}))
    }

    /// A text of a grammar in GBNF, llama.cpp's notation: a text begins with the rule `root`.
    ///
    /// # Errors
    /// If the grammar is not valid, or uses tokens, which are not supported.
    pub fn gbnf(text: &str) -> Result<Self, GbnfError> {
        gbnf::to_lark(text).map(Self::Lark)
    }

    /// A grammar in the notation that it is written in: rules of GBNF have `::=`, rules of Lark a colon.
    ///
    /// # Errors
    /// As [`Grammar::gbnf`].
    pub fn written(text: String) -> Result<Self, GbnfError> {
        match text.contains("::=") {
            true => Self::gbnf(&text),
            // llama.cpp's own mark for Lark's notation.
            false => Ok(Self::Lark(text.strip_prefix("%llguidance").map_or(text.clone(), |rest| {
                rest.split_once('\n').map_or("", |(_, rules)| rules).to_owned()
            }))),
        }
    }

    /// A text of this grammar or of another one; none where the other has rules of its own, whose names may be ours.
    pub fn or(&self, other: &Self) -> Option<Self> {
        let schema = |schema: &Value| format!("%json {}", with_fixed_whitespace(schema.clone()));
        let first = match self {
            Self::JsonSchema(value) => format!("first: {}", schema(value)),
            Self::Lark(rules) => format!("first:{}", rules.strip_prefix("start:")?),
            Self::Regex(_) => return None,
        };
        let second = match other {
            Self::JsonSchema(value) => schema(value),
            Self::Lark(_) | Self::Regex(_) => return None,
        };
        Some(Self::Lark(format!("start: first | second\nsecond: {second}\n{first}")))
    }
}

/// A schema whose texts have one space after commas and colons, as people write them: where any white space may come, small
/// models write nothing else. What a schema says about that itself is overruled.
pub(crate) fn with_fixed_whitespace(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        let fixed = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        fields.insert("x-guidance".into(), fixed);
    }
    schema
}
