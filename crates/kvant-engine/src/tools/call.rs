//! A tool call, and what may be called.

use serde_json::{Map, Value};

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// Its arguments, as the text of a JSON object.
    pub arguments: String,
}

/// The functions that a reply may call, with the types of their parameters.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolSet {
    /// By name; `parameters` is a JSON schema, or null.
    functions: Vec<(String, Value)>,
}

impl ToolSet {
    /// From definitions in OpenAI's form, `{"type": "function", "function": {"name": …, "parameters": …}}`, or functions alone.
    pub fn new(definitions: &[Value]) -> Self {
        let function = |definition: &Value| {
            let function = definition.get("function").unwrap_or(definition);
            Some((function["name"].as_str()?.to_owned(), function["parameters"].clone()))
        };
        Self { functions: definitions.iter().filter_map(function).collect() }
    }

    /// True where nothing can be called.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Whether there is a function of this name.
    pub fn has(&self, name: &str) -> bool {
        self.functions.iter().any(|(known, _)| known == name)
    }

    /// A call, if there is such a function.
    pub(crate) fn call(&self, name: &str, arguments: Value) -> Option<ToolCall> {
        let arguments = match arguments {
            Value::String(text) => text,
            Value::Null => "{}".to_owned(),
            arguments => arguments.to_string(),
        };
        self.has(name).then(|| ToolCall { name: name.to_owned(), arguments })
    }

    /// A call whose arguments have been read one by one.
    pub(crate) fn call_with(&self, name: &str, arguments: Map<String, Value>) -> Option<ToolCall> {
        self.call(name, Value::Object(arguments))
    }

    /// An argument that was written without quotes: text where the schema wants a string, JSON (or Python's `True`, `False`,
    /// `None`) where it wants something else. Where the schema says nothing, JSON if it is JSON.
    pub(crate) fn argument(&self, function: &str, parameter: &str, text: &str) -> Value {
        let schema = self.functions.iter().find(|(name, _)| name == function);
        let kind =
            schema.map_or(&Value::Null, |(_, parameters)| &parameters["properties"][parameter]["type"]);
        let as_text = || Value::String(text.to_owned());
        if kind == "string" {
            return as_text();
        }
        match text.trim() {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            "None" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| as_text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ToolSet;
    use serde_json::json;

    #[test]
    fn arguments_get_the_type_of_their_parameter() {
        let parameters =
            json!({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}});
        let tools =
            ToolSet::new(&[json!({"type": "function", "function": {"name": "f", "parameters": parameters}})]);
        assert_eq!(tools.argument("f", "s", "12"), json!("12"));
        assert_eq!(tools.argument("f", "n", " 12\n"), json!(12));
        assert_eq!(tools.argument("f", "n", "many"), json!("many"));
        assert_eq!(tools.argument("f", "other", "[1, 2]"), json!([1, 2]));
        assert_eq!(
            (tools.argument("f", "n", "True"), tools.argument("f", "n", "None")),
            (json!(true), json!(null))
        );
        assert!(tools.has("f") && !tools.has("g") && !tools.is_empty());
        assert_eq!(tools.call("g", json!({})), None);
    }
}
