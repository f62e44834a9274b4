//! `response_format`: what answers are kept to.

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::grammar::Grammar;
use serde_json::Value;

/// Reads `response_format`; none where any text will do.
pub fn response_format(fields: &mut Fields, most_bytes: usize) -> Result<Option<Grammar>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.text("type")?;
    let found = match kind.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Grammar::json_object()),
        Some("json_schema") => Some(Grammar::JsonSchema(schema(&mut format)?)),
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
    found.map(|grammar| bounded(grammar, most_bytes, "response_format")).transpose()
}

/// A grammar that is not too large.
pub fn bounded(grammar: Grammar, most_bytes: usize, name: &str) -> Result<Grammar, ApiError> {
    match bytes(&grammar) > most_bytes {
        true => Err(ApiError::field(name, format!("{name} is larger than {most_bytes} bytes"))),
        false => Ok(grammar),
    }
}

fn bytes(grammar: &Grammar) -> usize {
    match grammar {
        Grammar::JsonSchema(schema) => schema.to_string().len(),
        Grammar::Lark(text) | Grammar::Regex(text) => text.len(),
    }
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

fn grammar(format: &mut Fields) -> Result<Grammar, ApiError> {
    let syntax = format.text("syntax")?;
    let definition = format.text("definition")?.ok_or_else(|| {
        let name = "response_format.definition";
        ApiError::field(name, format!("{name} is required"))
    })?;
    match syntax.as_deref() {
        Some("lark") => Ok(Grammar::Lark(definition)),
        Some("regex") => Ok(Grammar::Regex(definition)),
        other => {
            let message = format!("response_format.syntax is {other:?}; it must be lark or regex");
            Err(ApiError::field("response_format.syntax", message))
        }
    }
}
