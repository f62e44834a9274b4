//! Grammars for answers that have to be a call.

use super::ToolStyle;
use crate::grammar::{Grammar, with_fixed_whitespace};
use serde_json::{Value, json};
use std::fmt::Write;

impl ToolStyle {
    /// A call of one of these functions, and nothing else. A function is an object with a `name` and, as a schema, its
    /// `parameters`. None for styles whose markers are control tokens in released vocabularies: those are understood, and never
    /// required.
    pub fn grammar(self, functions: &[&Value]) -> Option<Grammar> {
        let around = match self {
            Self::Llama3 => return Some(Grammar::JsonSchema(calls(functions, "parameters"))),
            Self::QwenXml => return Some(Grammar::Lark(QWEN.grammar(functions))),
            Self::Glm => return Some(Grammar::Lark(GLM.grammar(functions))),
            Self::Hermes => ("<tool_call>\\n", "\\n</tool_call>"),
            Self::Nemotron => ("<TOOLCALL>[", "]</TOOLCALL>"),
            Self::Hunyuan => ("<tool_calls>[", "]</tool_calls>"),
            Self::SeedOss
            | Self::Gemma4
            | Self::Lfm2
            | Self::Olmo3
            | Self::DeepSeek
            | Self::DeepSeekDsml
            | Self::MiniMax
            | Self::Mistral
            | Self::Granite3
            | Self::Harmony => return None,
        };
        let schema = with_fixed_whitespace(calls(functions, "arguments"));
        let (open, close) = around;
        Some(Grammar::Lark(format!("start: \"{open}\" call \"{close}\"\ncall: %json {schema}")))
    }
}

/// A call of any of them, with what its arguments are called.
fn calls(functions: &[&Value], arguments: &str) -> Value {
    let call = |function: &&Value| {
        let parameters = match &function["parameters"] {
            Value::Object(parameters) => Value::Object(parameters.clone()),
            _ => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        };
        json!({
            "type": "object",
            "properties": {"name": {"const": function["name"]}, arguments: parameters},
            "required": ["name", arguments],
            "additionalProperties": false,
        })
    };
    json!({"anyOf": functions.iter().map(call).collect::<Vec<Value>>()})
}

/// Calls with an element for each argument. `{}` stands for a name.
struct Elements {
    open: &'static str,
    key: &'static str,
    /// After a value; a regular expression as it stands.
    end: &'static str,
    close: &'static str,
}

const QWEN: Elements = Elements {
    open: "<tool_call>\n<function={}>\n",
    key: "<parameter={}>\n",
    end: "\n</parameter>\n",
    close: "</function>\n</tool_call>",
};

const GLM: Elements = Elements {
    open: "<tool_call>{}\n",
    key: "<arg_key>{}</arg_key>\n<arg_value>",
    end: "</arg_value>\n",
    close: "</tool_call>",
};

impl Elements {
    /// Arguments come in the order of the schema, those that are not required if at all. A text ends at the first `</`.
    fn grammar(&self, functions: &[&Value]) -> String {
        let names: Vec<String> = (0..functions.len()).map(|call| format!("call_{call}")).collect();
        let end = quoted(self.end);
        let pattern = self.end.replace('/', "\\/").replace('\n', "\\n");
        let mut rules = format!("start: {}\nTEXT: /([^<]|<[^\\/])*{pattern}/\n", names.join(" | "));
        for (call, function) in functions.iter().enumerate() {
            let parameters = &function["parameters"];
            let none = serde_json::Map::new();
            let required =
                |key: &String| parameters["required"].as_array().is_some_and(|all| all.contains(&json!(key)));
            let mut arguments = String::new();
            let mut values = String::new();
            for (at, (key, schema)) in
                parameters["properties"].as_object().unwrap_or(&none).iter().enumerate()
            {
                let may_lack = if required(key) { "" } else { "?" };
                // Writing to a string cannot fail.
                let _ = write!(arguments, " argument_{call}_{at}{may_lack}");
                let key = quoted(&self.key.replace("{}", key));
                let value = match texts_of(schema) {
                    Some(texts) if texts.is_empty() => "TEXT".to_owned(),
                    Some(texts) => format!("({}) {end}", texts.join(" | ")),
                    None => format!(
                        "value_{call}_{at} {end}\nvalue_{call}_{at}: %json {}",
                        within(schema, parameters)
                    ),
                };
                let _ = writeln!(values, "argument_{call}_{at}: {key} {value}");
            }
            let open = quoted(&self.open.replace("{}", function["name"].as_str().unwrap_or_default()));
            let _ = writeln!(rules, "call_{call}: {open}{arguments} {}", quoted(self.close));
            rules.push_str(&values);
        }
        rules
    }
}

/// The texts that a value may be, none of them for any; none where it is JSON.
fn texts_of(schema: &Value) -> Option<Vec<String>> {
    match (schema["enum"].as_array(), schema["type"].as_str()) {
        (Some(all), _) => all.iter().map(|value| value.as_str().map(quoted)).collect(),
        (None, Some("string")) => Some(Vec::new()),
        (None, _) => None,
    }
}

/// The schema of a parameter, with the definitions that it may refer to.
fn within(schema: &Value, parameters: &Value) -> Value {
    let mut schema = with_fixed_whitespace(schema.clone());
    if let Value::Object(fields) = &mut schema {
        for name in ["$defs", "definitions"] {
            fields.extend(parameters.get(name).map(|found| (name.to_owned(), found.clone())));
        }
    }
    schema
}

/// A text between quotes.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
