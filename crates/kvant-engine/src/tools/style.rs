//! How models write tool calls. Each was taught its own way, which its chat template shows.

use crate::grammar::{Grammar, with_fixed_whitespace};
use serde_json::{Value, json};

/// A way to write tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolStyle {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once or several times: Hermes, Qwen, SmolLM.
    Hermes,
    /// The whole answer is `{"name": …, "parameters": {…}}`: Llama 3.
    Llama3,
}

impl ToolStyle {
    /// Before a call.
    pub const OPEN: &str = "<tool_call>";
    /// After it.
    pub const CLOSE: &str = "</tool_call>";

    /// The way of the model that has this template; none if it knows no tools, or only ways that we do not.
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            None
        } else if template.contains(Self::OPEN) {
            Some(Self::Hermes)
        } else if template.contains("\"parameters\":") {
            Some(Self::Llama3)
        } else {
            None
        }
    }

    /// What a call's arguments are called.
    pub fn arguments(self) -> &'static str {
        match self {
            Self::Hermes => "arguments",
            Self::Llama3 => "parameters",
        }
    }

    /// A call of one of these functions, and nothing else. A function is an object with a `name` and, as a schema, its
    /// `parameters`.
    pub fn grammar(self, functions: &[&Value]) -> Grammar {
        let arguments = self.arguments();
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
        let schema = json!({"anyOf": functions.iter().map(call).collect::<Vec<Value>>()});
        match self {
            Self::Llama3 => Grammar::JsonSchema(schema),
            Self::Hermes => {
                let (open, close) = (Self::OPEN, Self::CLOSE);
                let schema = with_fixed_whitespace(schema);
                Grammar::Lark(format!("start: \"{open}\\n\" call \"\\n{close}\"\ncall: %json {schema}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ToolStyle;

    #[test]
    fn templates_show_their_way() {
        let template = |name: &str| {
            let data =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/data/chat");
            std::fs::read_to_string(data.join(name)).unwrap()
        };
        assert_eq!(ToolStyle::detect(&template("qwen2.5.jinja")), Some(ToolStyle::Hermes));
        assert_eq!(ToolStyle::detect(&template("tinyllama.jinja")), None);
        let llama = "{% if tools %}Respond as {\"name\": function name, \"parameters\": …}{% endif %}";
        assert_eq!(ToolStyle::detect(llama), Some(ToolStyle::Llama3));
    }
}
