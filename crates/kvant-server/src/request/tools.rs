//! `tools` and `tool_choice`: functions that a model may ask its client to call.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::request::custom::CustomTools;
use kvant_engine::ToolChoice;
use serde_json::{Value, json};

/// The longest name of a function.
const LONGEST_NAME: usize = 128;

/// What a client offers.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// As the model's template wants them, and as they came.
    pub definitions: Vec<Value>,
    /// Whether one has to be called.
    pub choice: ToolChoice,
    /// Those of them whose input is text.
    pub custom: CustomTools,
}

impl Tools {
    /// Reads `tools` and `tool_choice`; none where nothing may be called.
    pub fn read(fields: &mut Fields, most_bytes: usize) -> Result<Option<Self>, ApiError> {
        let (mut definitions, custom) = definitions(fields, most_bytes)?;
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
        let choice = match choice {
            None => ToolChoice::Auto,
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => ToolChoice::Auto,
                "none" => return Ok(None),
                "required" => ToolChoice::Required,
                other => {
                    let message =
                        format!("tool_choice is {other:?}; it must be auto, none, required or a function");
                    return Err(ApiError::field("tool_choice", message));
                }
            },
            Some(choice) => {
                let mut choice = fields.inside("tool_choice", choice)?;
                match choice.object("allowed_tools")? {
                    Some(allowed) => {
                        choice.ignore(&["type"]);
                        choice.end()?;
                        allow(allowed, &mut definitions)?
                    }
                    None => ToolChoice::Function(chosen(choice, &definitions)?),
                }
            }
        };
        Ok(Some(Self { definitions, choice, custom }))
    }
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// Reads `mode` and `tools` of `allowed_tools`: others are not offered.
pub fn allow(mut allowed: Fields, definitions: &mut Vec<Value>) -> Result<ToolChoice, ApiError> {
    let place = allowed.name("mode");
    let choice = match allowed.text("mode")?.as_deref() {
        None | Some("auto") => ToolChoice::Auto,
        Some("required") => ToolChoice::Required,
        Some(other) => {
            return Err(ApiError::field(
                &place,
                format!("{place} is {other:?}; it must be auto or required"),
            ));
        }
    };
    let place = allowed.name("tools");
    let mut names = Vec::new();
    for tool in allowed.array("tools")?.unwrap_or_default() {
        let inside = [&tool, &tool["function"], &tool["custom"]];
        let name = inside.into_iter().find_map(|tool| tool["name"].as_str()).unwrap_or_default();
        match definitions.iter().any(|tool| name_of(tool) == name) {
            true => names.push(name.to_owned()),
            false => {
                let message = format!("{place} names {name:?}, which is not among the tools");
                return Err(ApiError::field(&place, message));
            }
        }
    }
    allowed.ignore(&["type"]);
    allowed.end()?;
    if names.is_empty() {
        return Err(ApiError::field(&place, format!("{place} must name at least one tool")));
    }
    definitions.retain(|tool| names.iter().any(|name| name == name_of(tool)));
    Ok(choice)
}

fn definitions(fields: &mut Fields, most_bytes: usize) -> Result<(Vec<Value>, CustomTools), ApiError> {
    let mut custom = CustomTools::default();
    let mut tools = match fields.take("tools") {
        None => return Ok((Vec::new(), custom)),
        Some(Value::Array(tools)) => tools,
        Some(other) => return Err(fields.wrong("tools", "an array", &other)),
    };
    if tools.iter().map(|tool| tool.to_string().len()).sum::<usize>() > most_bytes {
        return Err(ApiError::field("tools", format!("tools are larger than {most_bytes} bytes")));
    }
    for (index, tool) in tools.iter_mut().enumerate() {
        let place = format!("tools[{index}]");
        if tool["type"] == "custom" {
            let mut own = fields.inside(&format!("{place}.custom"), tool["custom"].take())?;
            *tool = json!({"type": "function", "function": custom.read(&mut own)?});
            own.end()?;
        }
        if tool["type"] != "function" {
            return Err(ApiError::field(&place, format!("{place} must have the type function")));
        }
        check_function(&place, &tool["function"])?;
    }
    Ok((tools, custom))
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

/// The function that `{"type": "function", "function": {"name": …}}` names; of a custom tool both are called `custom`.
fn chosen(mut choice: Fields, definitions: &[Value]) -> Result<String, ApiError> {
    let kind = match choice.text("type")?.as_deref() {
        Some("function") => "function",
        Some("custom") => "custom",
        _ => {
            let message = "tool_choice.type must be function, custom or allowed_tools";
            return Err(ApiError::field("tool_choice.type", message));
        }
    };
    let missing =
        || ApiError::field("tool_choice.function.name", "tool_choice must name a function, as function.name");
    let mut function = choice.object(kind)?.ok_or_else(missing)?;
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
        Tools::read(&mut fields, 1000)
    }

    fn tool(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}})
    }

    #[test]
    fn choices_are_understood() {
        let with = |choice: Value| json!({"tools": [tool("a"), tool("b")], "tool_choice": choice});
        let choice = |choice: Value| read(with(choice)).unwrap().unwrap().choice;
        assert_eq!(read(json!({})), Ok(None));
        assert_eq!(read(json!({"tools": [], "tool_choice": "auto"})), Ok(None));
        assert_eq!(read(with(json!("none"))), Ok(None));
        assert_eq!((choice(json!("auto")), choice(Value::Null)), (ToolChoice::Auto, ToolChoice::Auto));
        assert_eq!(read(with(json!("auto"))).unwrap().unwrap().definitions.len(), 2);
        assert_eq!(choice(json!("required")), ToolChoice::Required);
        let named = choice(json!({"type": "function", "function": {"name": "b"}}));
        assert_eq!(named, ToolChoice::Function("b".into()));
    }

    #[test]
    fn allowed_tools_are_the_only_ones_offered() {
        let all = json!([tool("a"), tool("b"), {"type": "custom", "custom": {"name": "c"}}]);
        let allowed = |mode: &str, names: &[&str]| {
            let tools: Vec<Value> =
                names.iter().map(|name| json!({"type": "function", "function": {"name": name}})).collect();
            let choice = json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
            read(json!({"tools": all, "tool_choice": choice}))
        };
        let some = allowed("required", &["b", "c"]).unwrap().unwrap();
        assert_eq!(some.definitions.iter().map(name_of).collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(some.choice, ToolChoice::Required);
        assert_eq!(allowed("auto", &["a"]).unwrap().unwrap().choice, ToolChoice::Auto);
        for (wrong, words) in [
            (allowed("auto", &["d"]), "\"d\""),
            (allowed("auto", &[]), "at least one"),
            (allowed("maybe", &["a"]), "maybe"),
        ] {
            assert!(wrong.unwrap_err().message().contains(words), "{words}");
        }
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
