//! How models write calls. Each was taught its own way, which its chat template shows.

use crate::format::{Format, written_plainly};
use serde_json::{Value, json};

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, once or several times: Hermes, Qwen, SmolLM.
    Tagged,
    /// The whole answer is `{"name": …, "parameters": {…}}`: Llama 3.
    Bare,
}

impl Style {
    /// Before a call.
    pub const OPEN: &str = "<tool_call>";
    /// After it.
    pub const CLOSE: &str = "</tool_call>";

    /// The way of the model that has this template; none if it knows no tools, or only ways that we do not.
    pub fn of(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            None
        } else if template.contains(Self::OPEN) {
            Some(Self::Tagged)
        } else if template.contains("\"parameters\":") {
            Some(Self::Bare)
        } else {
            None
        }
    }

    /// What a call's arguments are called.
    pub fn arguments(self) -> &'static str {
        match self {
            Self::Tagged => "arguments",
            Self::Bare => "parameters",
        }
    }

    /// A call of one of these functions, and nothing else.
    pub fn format(self, functions: &[&Value]) -> Format {
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
            Self::Bare => Format::Schema(schema),
            Self::Tagged => {
                let (open, close) = (Self::OPEN, Self::CLOSE);
                let schema = written_plainly(schema);
                Format::Lark(format!("start: \"{open}\\n\" call \"\\n{close}\"\ncall: %json {schema}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Style;

    #[test]
    fn templates_show_their_way() {
        let template = |name: &str| {
            let data =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/data/chat");
            std::fs::read_to_string(data.join(name)).unwrap()
        };
        assert_eq!(Style::of(&template("qwen2.5.jinja")), Some(Style::Tagged));
        assert_eq!(Style::of(&template("tinyllama.jinja")), None);
        let llama = "{% if tools %}Respond as {\"name\": function name, \"parameters\": …}{% endif %}";
        assert_eq!(Style::of(llama), Some(Style::Bare));
    }
}
