//! The turns of a conversation as clients write them.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::request::custom;
use kvant_text::chat::Message;
use serde_json::{Value, json};

/// Reads `messages`, at least one and at most `most`.
pub fn messages(fields: &mut Fields, most: usize) -> Result<Vec<Message>, ApiError> {
    let items = match fields.take("messages") {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(fields.wrong("messages", "an array", &other)),
        None => return Err(ApiError::field("messages", "messages is required")),
    };
    if items.is_empty() || items.len() > most {
        let message = format!("messages has {} turns; it must have 1 to {most}", items.len());
        return Err(ApiError::field("messages", message));
    }
    items.into_iter().enumerate().map(|(index, item)| message(fields, index, item)).collect()
}

fn message(all: &Fields, index: usize, item: Value) -> Result<Message, ApiError> {
    let place = format!("messages[{index}]");
    let mut fields = all.inside(&place, item)?;
    let role = fields.text("role")?.ok_or_else(|| {
        let name = fields.name("role");
        ApiError::field(&name, format!("{name} is required"))
    })?;
    let content = content(&mut fields)?;
    let missing = || {
        let name = format!("{place}.content");
        ApiError::field(&name, format!("{name} is required"))
    };
    let mut message = match role.as_str() {
        "system" | "developer" => Message::new("system", content.ok_or_else(missing)?),
        "user" => Message::new("user", content.ok_or_else(missing)?),
        "assistant" => match calls(&mut fields)? {
            Some(calls) => thoughtful(Message::calling(content, calls), &mut fields)?,
            None => thoughtful(Message::new("assistant", content.ok_or_else(missing)?), &mut fields)?,
        },
        "tool" => {
            let id = fields.text("tool_call_id")?;
            let message = Message::new("tool", content.ok_or_else(missing)?);
            id.into_iter().fold(message, |message, id| message.with("tool_call_id", id))
        }
        other => {
            let name = fields.name("role");
            let message =
                format!("{name} is {other:?}; it must be system, developer, user, assistant or tool");
            return Err(ApiError::field(name, message));
        }
    };
    if let Some(name) = fields.text("name")? {
        message = message.with("name", name);
    }
    fields.refuse(&["audio", "function_call"])?;
    // What answers carry and clients send back.
    fields.ignore(&["annotations", "reasoning_content", "reasoning", "refusal", "cache_control"]);
    fields.end()?;
    Ok(message)
}

/// An assistant's turn with the reasoning that led to it, for templates that show it again.
fn thoughtful(message: Message, fields: &mut Fields) -> Result<Message, ApiError> {
    let other = fields.text("reasoning")?;
    let reasoning = fields.text("reasoning_content")?.or(other);
    Ok(reasoning.into_iter().fold(message, |message, text| message.with("reasoning_content", text)))
}

/// A string, or parts of text one after another.
fn content(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let name = fields.name("content");
    let parts = match fields.take("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text)),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(fields.wrong("content", "a string or an array of parts", &other)),
    };
    let mut whole = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{name}[{index}]");
        let mut part = fields.inside(&place, part)?;
        match part.text("type")?.as_deref() {
            Some("text") => {}
            other => {
                let found = other.unwrap_or("missing");
                let message = format!("{place}.type is {found:?}; this server reads text only");
                return Err(ApiError::field(format!("{place}.type"), message));
            }
        }
        let text = part
            .text("text")?
            .ok_or_else(|| ApiError::field(format!("{place}.text"), format!("{place}.text is required")))?;
        part.ignore(&["cache_control"]);
        part.end()?;
        whole.push(text);
    }
    Ok(Some(whole.join("\n")))
}

/// Calls as they came. A template that is given something else fails with words that help nobody.
fn calls(fields: &mut Fields) -> Result<Option<Vec<Value>>, ApiError> {
    let calls = match fields.take("tool_calls") {
        None => return Ok(None),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(fields.wrong("tool_calls", "an array of objects", &other)),
    };
    let as_function = |mut call: Value| {
        if call["type"] == "custom"
            && let (Some(name), Some(input)) =
                (call["custom"]["name"].as_str(), call["custom"]["input"].as_str())
        {
            let function = json!({"name": name, "arguments": custom::arguments(input)});
            call = json!({"id": call["id"], "type": "function", "function": function});
        }
        call
    };
    let calls: Vec<Value> = calls.into_iter().map(as_function).collect();
    let is_call = |call: &Value| {
        let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
        name.is_string() && (arguments.is_string() || arguments.is_object())
    };
    match calls.iter().position(|call| !is_call(call)) {
        None => Ok(Some(calls)),
        Some(index) => {
            let name = fields.name(&format!("tool_calls[{index}]"));
            let message = format!("{name} must have a function.name and function.arguments");
            Err(ApiError::field(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;

    fn read(text: &str) -> Result<Vec<Message>, ApiError> {
        messages(
            &mut Fields::parse(format!(r#"{{"messages": {text}}}"#).as_bytes(), &Notes::strict()).unwrap(),
            4,
        )
    }

    #[test]
    fn turns_of_every_kind_are_understood() {
        let turns = read(
            r#"[{"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
                {"role": "assistant", "content": null, "reasoning": "Hm.", "tool_calls":
                    [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "2", "reasoning_content": "nobody's"}]"#,
        )
        .unwrap();
        assert_eq!(turns[0], Message::new("system", "Be brief."));
        assert_eq!(turns[1], Message::new("user", "a\nb").with("name", "Ann"));
        assert_eq!((&turns[2].content, &turns[2].fields["reasoning_content"]), (&None, &"Hm.".into()));
        assert_eq!(turns[2].fields["tool_calls"][0]["function"]["arguments"]["x"], 1);
        assert_eq!(turns[3], Message::new("tool", "2").with("tool_call_id", "1"));
    }

    #[test]
    fn what_is_wrong_with_a_turn_is_named_with_its_place() {
        for (text, words) in [
            ("[]", "1 to 4"),
            (r#""hi""#, "must be an array"),
            (r#"["hi"]"#, "messages[0] must be an object"),
            (r#"[{"content": "x"}]"#, "messages[0].role is required"),
            (r#"[{"role": "user"}]"#, "messages[0].content is required"),
            (r#"[{"role": "alien", "content": "x"}]"#, "alien"),
            (r#"[{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]"#, "text only"),
            (r#"[{"role": "user", "content": "x", "mood": 1}]"#, "messages[0].mood"),
            (r#"[{"role": "assistant", "content": "x", "reasoning": 1}]"#, "messages[0].reasoning"),
            (r#"[{"role": "assistant", "tool_calls": "x"}]"#, "messages[0].tool_calls"),
            (r#"[{"role": "assistant", "tool_calls": [{"id": "1"}]}]"#, "messages[0].tool_calls[0]"),
        ] {
            let error = read(text).unwrap_err().body().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
