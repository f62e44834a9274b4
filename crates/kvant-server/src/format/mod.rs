//! Formats that answers are kept to: JSON, JSON of a schema, the words of a grammar.

mod vocabulary;

pub use vocabulary::Vocabulary;

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::{Constraint, ConstraintError};
use llguidance::Matcher;
use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

/// What an answer has to be.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// JSON of this schema.
    Schema(Value),
    /// Words of a grammar in Lark's notation.
    Lark(String),
    /// Words of a regular expression.
    Regex(String),
}

impl Format {
    /// Reads `response_format`; none where any text will do.
    pub fn read(fields: &mut Fields, most_bytes: usize) -> Result<Option<Self>, ApiError> {
        let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
        let kind = format.text("type")?;
        let found = match kind.as_deref() {
            Some("text") => None,
            Some("json_object") => Some(Self::Schema(json!({"type": "object"}))),
            Some("json_schema") => Some(Self::Schema(schema(&mut format)?)),
            Some("grammar") => Some(grammar(&mut format)?),
            other => {
                let message = format!(
                    "response_format.type is {:?}; it must be text, json_object, json_schema or grammar",
                    other.unwrap_or("missing")
                );
                return Err(ApiError::field("response_format.type", message));
            }
        };
        format.end()?;
        match found {
            Some(format) if format.bytes() > most_bytes => {
                let message = format!("response_format is larger than {most_bytes} bytes");
                Err(ApiError::field("response_format", message))
            }
            found => Ok(found),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Schema(schema) => schema.to_string().len(),
            Self::Lark(text) | Self::Regex(text) => text.len(),
        }
    }

    /// The grammar of it.
    fn grammar(&self) -> TopLevelGrammar {
        match self {
            Self::Schema(schema) => TopLevelGrammar::from_json_schema(written_plainly(schema.clone())),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
        }
    }

    /// Rules for `count` answers of this format.
    pub fn rules(&self, vocabulary: &Vocabulary, count: usize) -> Result<Vec<Rule>, ApiError> {
        let first = vocabulary.matcher(self.grammar()).map_err(|message| {
            ApiError::field("response_format", format!("response_format cannot be followed: {message}"))
        })?;
        Ok((0..count).map(|_| Rule(first.deep_clone())).collect())
    }
}

/// A schema whose texts have one space after commas and colons, as people write them: where any white space may come, small
/// models write nothing else. What a client says about that is not its business.
pub fn written_plainly(mut schema: Value) -> Value {
    if let Value::Object(fields) = &mut schema {
        let plain = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
        fields.insert("x-guidance".into(), plain);
    }
    schema
}

fn schema(format: &mut Fields) -> Result<Value, ApiError> {
    const NAME: &str = "response_format.json_schema";
    let missing = |name: &str| ApiError::field(name, format!("{name} is required"));
    let mut description = format.object("json_schema")?.ok_or_else(|| missing(NAME))?;
    // What it is called and what it is for; every schema is followed strictly.
    description.ignore(&["name", "description", "strict"]);
    let schema = description.take("schema").ok_or_else(|| missing("response_format.json_schema.schema"))?;
    if !schema.is_object() {
        return Err(description.wrong("schema", "an object", &schema));
    }
    description.end()?;
    Ok(schema)
}

fn grammar(format: &mut Fields) -> Result<Format, ApiError> {
    let syntax = format.text("syntax")?;
    let definition = format.text("definition")?.ok_or_else(|| {
        let name = "response_format.definition";
        ApiError::field(name, format!("{name} is required"))
    })?;
    match syntax.as_deref() {
        Some("lark") => Ok(Format::Lark(definition)),
        Some("regex") => Ok(Format::Regex(definition)),
        other => {
            let message = format!("response_format.syntax is {other:?}; it must be lark or regex");
            Err(ApiError::field("response_format.syntax", message))
        }
    }
}

/// A format on its way through one answer.
pub struct Rule(Matcher);

impl Constraint for Rule {
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
