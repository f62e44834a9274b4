//! Custom tools: called with a text in place of JSON.
//!
//! Models are taught to call functions. So a custom tool is offered as a function of one parameter, its `input`, and a call of it is
//! written as its protocol writes calls of custom tools.

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::tools::ToolCall;
use serde_json::{Value, json};

/// The names of a request's custom tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CustomTools(Vec<String>);

impl CustomTools {
    /// Reads a custom tool, and remembers its name; the function that stands for it.
    pub fn read(&mut self, tool: &mut Fields) -> Result<Value, ApiError> {
        let name = tool.text("name")?.unwrap_or_default();
        let mut description = tool.text("description")?.unwrap_or_default();
        let mut input = json!({"type": "string"});
        if let Some(format) = tool.object("format")? {
            match Format::read(format)? {
                Format::Text => {}
                Format::Regex(pattern) => input["pattern"] = format!("^(?:{pattern})$").into(),
                Format::Lark(grammar) => {
                    // A grammar within a grammar cannot be kept to: the model is told of it.
                    tool.notes().ignored(tool.name("format"));
                    description.push_str("\n\nThe input follows this Lark grammar:\n");
                    description.push_str(&grammar);
                }
            }
        }
        let parameters = json!({
            "type": "object", "properties": {"input": input}, "required": ["input"], "additionalProperties": false,
        });
        self.0.push(name.clone());
        Ok(json!({"name": name, "description": description.trim(), "parameters": parameters}))
    }

    /// The input of a call, where it calls one of these.
    pub fn input(&self, call: &ToolCall) -> Option<String> {
        if !self.0.contains(&call.name) {
            return None;
        }
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        // A model that was not kept to the parameters may have written anything.
        Some(arguments["input"].as_str().map_or_else(|| call.arguments.clone(), str::to_owned))
    }
}

/// The arguments of the function that stands for a custom tool, as a turn of before has them.
pub fn arguments(input: &str) -> Value {
    json!({"input": input})
}

enum Format {
    Text,
    Regex(String),
    Lark(String),
}

impl Format {
    /// Reads `{"type": "grammar", "syntax": …, "definition": …}`, where chats have the last two inside of `grammar`.
    fn read(mut format: Fields) -> Result<Self, ApiError> {
        let place = format.name("type");
        let kind = format.text("type")?;
        match kind.as_deref() {
            None | Some("text") => {
                format.end()?;
                return Ok(Self::Text);
            }
            Some("grammar") => {}
            Some(other) => {
                let message = format!("{place} is {other:?}; it must be text or grammar");
                return Err(ApiError::field(place, message));
            }
        }
        let mut grammar = match format.object("grammar")? {
            Some(inside) => {
                format.end()?;
                inside
            }
            None => format,
        };
        let (place, syntax) = (grammar.name("syntax"), grammar.text("syntax")?);
        let missing = || {
            let name = place.replace("syntax", "definition");
            ApiError::field(&name, format!("{name} is required"))
        };
        let definition = grammar.text("definition")?.ok_or_else(missing)?;
        grammar.end()?;
        match syntax.as_deref() {
            Some("regex") => Ok(Self::Regex(definition)),
            Some("lark") => Ok(Self::Lark(definition)),
            other => {
                let found = other.unwrap_or("missing");
                Err(ApiError::field(&place, format!("{place} is {found:?}; it must be regex or lark")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;

    #[test]
    fn a_custom_tool_is_a_function_of_one_text() {
        let mut custom = CustomTools::default();
        let mut read = |body: Value| {
            let notes = Notes::default();
            let mut fields = Fields::parse(body.to_string().as_bytes(), &notes).unwrap();
            (custom.read(&mut fields), notes.header())
        };
        let (plain, _) = read(json!({"name": "shell", "description": "Runs it."}));
        let plain = plain.unwrap();
        assert_eq!((&plain["name"], &plain["description"]), (&json!("shell"), &json!("Runs it.")));
        assert_eq!(plain["parameters"]["properties"]["input"], json!({"type": "string"}));
        let format = json!({"type": "grammar", "syntax": "regex", "definition": "a+|b"});
        let (pattern, _) = read(json!({"name": "r", "format": format}));
        assert_eq!(pattern.unwrap()["parameters"]["properties"]["input"]["pattern"], "^(?:a+|b)$");
        let format = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: \"x\""}});
        let (lark, named) = read(json!({"name": "patch", "format": format}));
        assert!(lark.unwrap()["description"].as_str().unwrap().ends_with("start: \"x\""));
        assert_eq!(named.unwrap(), "format");
        let (wrong, _) =
            read(json!({"name": "x", "format": {"type": "grammar", "syntax": "yacc", "definition": ""}}));
        assert!(wrong.unwrap_err().message().contains("regex or lark"));
        let call = |name: &str, arguments: &str| ToolCall { name: name.into(), arguments: arguments.into() };
        assert_eq!(custom.input(&call("shell", "{\"input\": \"ls\"}")).as_deref(), Some("ls"));
        assert_eq!(custom.input(&call("shell", "ls")).as_deref(), Some("ls"));
        assert_eq!(custom.input(&call("other", "{\"input\": \"ls\"}")), None);
    }
}
