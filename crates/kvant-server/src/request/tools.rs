//! `tools` and `tool_choice`: functions that a model may ask its client to call.

use crate::error::ApiError;
use crate::fields::Fields;
use kvant_engine::grammar::Grammar;
use kvant_engine::tools::ToolStyle;
use serde_json::Value;

/// The longest name of a function.
const LONGEST_NAME: usize = 128;

/// What a client offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As the model's template wants them, and as they came.
    pub definitions: Vec<Value>,
    /// How the model writes calls; in the way that everybody knows, where its template knows none.
    pub style: ToolStyle,
    /// A call is wanted; of this function, where one is named.
    forced: Option<Option<String>>,
}

impl Tools {
    /// Reads `tools` and `tool_choice`; none where nothing may be called. `style` is the model's.
    pub fn read(
        fields: &mut Fields,
        style: Option<ToolStyle>,
        most_bytes: usize,
    ) -> Result<Option<Self>, ApiError> {
        let definitions = definitions(fields, most_bytes)?;
        let choice = fields.take("tool_choice");
        // One call or several: that is up to the model.
        fields.ignore(&["parallel_tool_calls"]);
        if definitions.is_empty() {
            let asks = |choice: &Value| !matches!(choice.as_str(), Some("auto" | "none"));
            return match choice.filter(asks) {
                Some(_) => {
                    Err(ApiError::field("tool_choice", "tool_choice asks for a tool, but there are none"))
                }
                None => Ok(None),
            };
        }
        let forced = match choice {
            None => None,
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => None,
                "none" => return Ok(None),
                "required" => Some(None),
                other => {
                    let message =
                        format!("tool_choice is {other:?}; it must be auto, none, required or a function");
                    return Err(ApiError::field("tool_choice", message));
                }
            },
            Some(choice) => Some(Some(chosen(fields, choice, &definitions)?)),
        };
        Ok(Some(Self::new(definitions, style, forced)))
    }

    /// These tools; `forced` where a call is wanted, of this function where one is named.
    pub fn new(definitions: Vec<Value>, style: Option<ToolStyle>, forced: Option<Option<String>>) -> Self {
        Self { definitions, style: style.unwrap_or(ToolStyle::Hermes), forced }
    }

    /// Whether a call is wanted.
    pub fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    /// What an answer has to be where a call is wanted.
    pub fn grammar(&self) -> Result<Option<Grammar>, ApiError> {
        let Some(wanted) = &self.forced else { return Ok(None) };
        let of_name = |tool: &&Value| wanted.as_deref().is_none_or(|name| name_of(tool) == name);
        let functions: Vec<&Value> =
            self.definitions.iter().filter(of_name).map(|tool| &tool["function"]).collect();
        let grammar = self.style.grammar(&functions).ok_or_else(|| {
            let message = "tool_choice cannot require a call of this model: the way it writes calls is understood, but \
                           cannot be forced; leave it at auto";
            ApiError::field("tool_choice", message).code("unsupported_parameter")
        })?;
        Ok(Some(grammar))
    }

    /// An answer that is a call of any tool, or keeps to a format.
    pub fn grammar_or(&self, format: &Grammar) -> Result<Grammar, ApiError> {
        let functions: Vec<&Value> = self.definitions.iter().map(|tool| &tool["function"]).collect();
        let either = self.style.grammar(&functions).and_then(|call| call.or(format));
        either.ok_or_else(|| {
            let message = "response_format cannot be combined with tools of this model: the way it writes calls is \
                           understood, but cannot be told from a format; leave out one of them";
            ApiError::field("response_format", message).code("unsupported_parameter")
        })
    }
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

fn definitions(fields: &mut Fields, most_bytes: usize) -> Result<Vec<Value>, ApiError> {
    let tools = match fields.take("tools") {
        None => return Ok(Vec::new()),
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(fields.wrong("tools", "an array", &other)),
    };
    if tools.iter().map(|tool| tool.to_string().len()).sum::<usize>() > most_bytes {
        return Err(ApiError::field("tools", format!("tools are larger than {most_bytes} bytes")));
    }
    for (index, tool) in tools.iter().enumerate() {
        let place = format!("tools[{index}]");
        if tool["type"] != "function" {
            return Err(ApiError::field(&place, format!("{place} must have the type function")));
        }
        check_function(&place, &tool["function"])?;
    }
    Ok(tools)
}

/// Whether a function has a name, and parameters that can be.
pub fn check_function(place: &str, function: &Value) -> Result<(), ApiError> {
    let wrong = |what: &str| Err(ApiError::field(place, format!("{place} {what}")));
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let name = function["name"].as_str().unwrap_or_default();
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(is_name) {
        return wrong("needs a function.name of letters, digits, _ and -");
    }
    let parameters = &function["parameters"];
    match parameters.is_null() || parameters.is_object() {
        true => Ok(()),
        false => wrong("must have an object as function.parameters"),
    }
}

/// The function that `{"type": "function", "function": {"name": …}}` names.
fn chosen(fields: &Fields, choice: Value, definitions: &[Value]) -> Result<String, ApiError> {
    let mut choice = fields.inside("tool_choice", choice)?;
    if choice.text("type")?.as_deref() != Some("function") {
        return Err(ApiError::field("tool_choice.type", "tool_choice.type must be function"));
    }
    let missing =
        || ApiError::field("tool_choice.function.name", "tool_choice must name a function, as function.name");
    let mut function = choice.object("function")?.ok_or_else(missing)?;
    let name = function.text("name")?.ok_or_else(missing)?;
    function.end()?;
    choice.end()?;
    match definitions.iter().any(|tool| name_of(tool) == name) {
        true => Ok(name),
        false => {
            let message = format!("tool_choice names the function {name:?}, which is not among the tools");
            Err(ApiError::field("tool_choice", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<Tools>, ApiError> {
        let mut fields = Fields::parse(body.to_string().as_bytes(), &Notes::strict()).unwrap();
        Tools::read(&mut fields, Some(ToolStyle::Hermes), 1000)
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices_are_understood() {
        let with = |choice: Value| json!({"tools": [tool("a"), tool("b")], "tool_choice": choice});
        let grammar = |choice: Value| read(with(choice)).unwrap().unwrap().grammar().unwrap();
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"tools": [], "tool_choice": "auto"})), Ok(None));
        assert_eq!(read(with(json!("none"))), Ok(None));
        assert_eq!((grammar(json!("auto")), grammar(Value::Null)), (None, None));
        assert_eq!(read(with(json!("auto"))).unwrap().unwrap().definitions.len(), 2);
        let named = Tools { style: ToolStyle::Mistral, ..read(with(json!("required"))).unwrap().unwrap() };
        assert!(named.grammar().unwrap_err().body().to_string().contains("cannot require"));
        let either = format!("{:?}", grammar(json!("required")));
        assert!(either.contains("\\\"a\\\"") && either.contains("\\\"b\\\""), "{either}");
        let only = format!("{:?}", grammar(json!({"type": "function", "function": {"name": "b"}})));
        assert!(!only.contains("\\\"a\\\"") && only.contains("\\\"b\\\""), "{only}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (body, words) in [
            (json!({"tools": "x"}), "an array"),
            (json!({"tools": [{"type": "web_search"}]}), "tools[0] must have the type function"),
            (json!({"tools": [tool("a b")]}), "tools[0] needs a function.name"),
            (json!({"tools": [tool(&"a".repeat(2000))]}), "larger than 1000"),
            (json!({"tools": [tool("a")], "tool_choice": "maybe"}), "maybe"),
            (json!({"tools": [tool("a")], "tool_choice": 3}), "must be an object"),
            (json!({"tools": [tool("a")], "tool_choice": {"function": {"name": "a"}}}), "tool_choice.type"),
            (json!({"tools": [tool("a")], "tool_choice": {"type": "function"}}), "must name a function"),
            (
                json!({"tools": [tool("a")], "tool_choice": {"type": "function", "function": {"name": "c"}}}),
                "\\\"c\\\"",
            ),
            (json!({"tool_choice": "required"}), "there are none"),
        ] {
            let error = read(body).unwrap_err().body().to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}
