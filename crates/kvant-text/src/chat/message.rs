//! One turn of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One turn: who speaks and what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// What is said; none for a turn that only calls tools.
    pub content: Option<String>,
    /// Further fields as the template sees them: `name`, `tool_calls`, `tool_call_id`, …
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Message {
    /// A turn of text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(content.into()), fields: Map::new() }
    }

    /// An assistant's turn that calls tools, in OpenAI's form. Arguments that arrive as the text of a JSON
    /// object, as that form has it, become the object: templates write them as JSON themselves.
    pub fn calling(content: Option<String>, mut calls: Vec<Value>) -> Self {
        for call in &mut calls {
            let arguments = match call.get_mut("function") {
                Some(function) => function.get_mut("arguments"),
                None => call.get_mut("arguments"),
            };
            if let Some(arguments) = arguments
                && let Some(Value::Object(parsed)) =
                    arguments.as_str().and_then(|text| serde_json::from_str(text).ok())
            {
                *arguments = Value::Object(parsed);
            }
        }
        Self { role: "assistant".into(), content, fields: Map::new() }.with("tool_calls", Value::Array(calls))
    }

    /// The same turn with one more field.
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::Message;
    use serde_json::json;

    #[test]
    fn arguments_given_as_text_become_an_object() {
        let call = |arguments| json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        let calls =
            vec![call(json!("{\"b\": 1, \"a\": [2]}")), call(json!("not json")), call(json!({"c": 3}))];
        let message = Message::calling(None, calls);
        let arguments = |i: usize| &message.fields["tool_calls"][i]["function"]["arguments"];
        assert_eq!(arguments(0).to_string(), r#"{"b":1,"a":[2]}"#);
        assert_eq!(arguments(1), "not json");
        assert_eq!(arguments(2), &json!({"c": 3}));
    }
}
