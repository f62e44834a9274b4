//! What answers are kept to: OpenAI's `response_format`, and llama.cpp's `grammar` and `json_schema`.

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::grammar::Grammar;
use serde_json::Value;

/// Reads whichever of them there is; none where any text will do.
pub fn answer_format(fields: &mut Fields, most_bytes: usize) -> Result<Option<Grammar>, ApiError> {
    let grammar = written_grammar(fields, most_bytes)?;
    let schema = match fields.take("json_schema") {
        None => None,
        Some(schema @ Value::Object(_)) => {
            Some(bounded(Grammar::JsonSchema(schema), most_bytes, "json_schema")?)
        }
        Some(other) => return Err(fields.wrong("json_schema", "an object", &other)),
    };
    let all = [
        ("grammar", grammar),
        ("json_schema", schema),
        ("response_format", response_format(fields, most_bytes)?),
    ];
    let mut given = all.into_iter().filter_map(|(name, found)| found.map(|found| (name, found)));
    match (given.next(), given.next()) {
        (Some((first, _)), Some((second, _))) => {
            let message = format!("{first} and {second} may not be given together: an answer has one format");
            Err(ApiError::field(first, message))
        }
        (first, _) => Ok(first.map(|(_, found)| found)),
    }
}

/// `grammar`: GBNF, or Lark's notation.
fn written_grammar(fields: &mut Fields, most_bytes: usize) -> Result<Option<Grammar>, ApiError> {
    let Some(text) = fields.text("grammar")?.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    // Before it is read, which makes it longer.
    bounded(Grammar::Lark(text.clone()), most_bytes, "grammar")?;
    let wrong = |error| ApiError::field("grammar", format!("grammar cannot be read: {error}"));
    Grammar::written(text).map(Some).map_err(wrong)
}

fn response_format(fields: &mut Fields, most_bytes: usize) -> Result<Option<Grammar>, ApiError> {
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
        Some("gbnf") => Grammar::gbnf(&definition).map_err(|error| {
            let name = "response_format.definition";
            ApiError::field(name, format!("{name} cannot be read: {error}"))
        }),
        other => {
            let message = format!("response_format.syntax is {other:?}; it must be lark, gbnf or regex");
            Err(ApiError::field("response_format.syntax", message))
        }
    }
}
