//! The items of a conversation in the words of `/v1/responses`.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::request::custom;
use kvant_text::chat::Message;
use serde_json::{Value, json};

/// The items of `input` as they were sent, each with a name: those of a response that has one are named after it.
pub fn items_of(fields: &Fields, response: &str) -> Vec<Value> {
    let items = match fields.peek("input") {
        Some(Value::String(text)) => {
            let content = json!([{"type": "input_text", "text": text}]);
            vec![json!({"type": "message", "role": "user", "status": "completed", "content": content})]
        }
        Some(Value::Array(items)) => items.clone(),
        _ => Vec::new(),
    };
    let named = |(number, mut item): (usize, Value)| {
        if let Some(fields) = item.as_object_mut() {
            if !fields.get("id").is_some_and(Value::is_string) {
                fields.insert("id".into(), format!("in_{response}_{number}").into());
            }
            fields.entry("type").or_insert_with(|| "message".into());
        }
        item
    };
    items.into_iter().enumerate().map(named).collect()
}

/// Reads `input`: a text, or items.
pub fn input(fields: &mut Fields, most: usize) -> Result<Vec<Message>, ApiError> {
    let items = match fields.take("input") {
        None => return Err(ApiError::field("input", "input is required")),
        Some(Value::String(text)) => return Ok(vec![Message::new("user", text)]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(fields.wrong("input", "a string or an array of items", &other)),
    };
    if items.is_empty() || items.len() > most {
        let message = format!("input has {} items; it must have 1 to {most}", items.len());
        return Err(ApiError::field("input", message));
    }
    let mut reader = Reader::default();
    for (index, item) in items.into_iter().enumerate() {
        reader.item(fields, index, item)?;
    }
    reader.close();
    Ok(reader.messages)
}

/// Puts items together: reasoning, text and calls of one turn come apart in this protocol.
#[derive(Default)]
struct Reader {
    messages: Vec<Message>,
    reasoning: String,
    text: Option<String>,
    calls: Vec<Value>,
}

impl Reader {
    /// Ends the assistant's turn, if there is one.
    fn close(&mut self) {
        let (text, calls) = (self.text.take(), std::mem::take(&mut self.calls));
        let reasoning = std::mem::take(&mut self.reasoning);
        let message = match (calls.is_empty(), text) {
            (false, text) => Message::calling(text, calls),
            (true, Some(text)) => Message::new("assistant", text),
            // Reasoning that led to nothing is nothing to go on from.
            (true, None) => return,
        };
        self.messages.push(match reasoning.is_empty() {
            true => message,
            false => message.with("reasoning_content", reasoning),
        });
    }

    fn item(&mut self, fields: &Fields, index: usize, item: Value) -> Result<(), ApiError> {
        let place = format!("input[{index}]");
        let mut item = fields.inside(&place, item)?;
        let kind = item.text("type")?;
        let required = |item: &mut Fields, name: &str| {
            let missing =
                || ApiError::field(format!("{place}.{name}"), format!("{place}.{name} is required"));
            item.text(name)?.ok_or_else(missing)
        };
        match kind.as_deref() {
            None | Some("message") => {
                let role = required(&mut item, "role")?;
                let text = content(&mut item, "content")?;
                match role.as_str() {
                    "assistant" => {
                        let said = self.text.get_or_insert_default();
                        if !said.is_empty() {
                            said.push('\n');
                        }
                        said.push_str(&text);
                    }
                    "user" | "system" | "developer" => {
                        self.close();
                        let role = if role == "user" { "user" } else { "system" };
                        self.messages.push(Message::new(role, text));
                    }
                    other => {
                        let message = format!(
                            "{place}.role is {other:?}; it must be user, assistant, system or developer"
                        );
                        return Err(ApiError::field(format!("{place}.role"), message));
                    }
                }
            }
            Some("function_call") => {
                let (name, arguments) = (required(&mut item, "name")?, required(&mut item, "arguments")?);
                let id = required(&mut item, "call_id")?;
                let function = json!({"name": name, "arguments": arguments});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            Some("custom_tool_call") => {
                let (name, input) = (required(&mut item, "name")?, required(&mut item, "input")?);
                let id = required(&mut item, "call_id")?;
                let function = json!({"name": name, "arguments": custom::arguments(&input)});
                self.calls.push(json!({"id": id, "type": "function", "function": function}));
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let id = required(&mut item, "call_id")?;
                let text = content(&mut item, "output")?;
                self.close();
                self.messages.push(Message::new("tool", text).with("tool_call_id", id));
            }
            Some("reasoning") => {
                for list in ["content", "summary"] {
                    if self.reasoning.is_empty() {
                        self.reasoning = content(&mut item, list)?;
                    }
                }
            }
            Some(other) => {
                // What a server of OpenAI's ran itself, or what came of it.
                fields.notes().ignored(format!("{place} ({other})"));
                return Ok(());
            }
        }
        item.ignore(&["id", "status", "phase", "encrypted_content", "content", "summary"]);
        item.end()
    }
}

/// A text, or parts of one.
fn content(item: &mut Fields, name: &str) -> Result<String, ApiError> {
    let full = item.name(name);
    let parts = match item.take(name) {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(item.wrong(name, "a string or an array of parts", &other)),
    };
    let mut texts = Vec::new();
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{full}[{index}]");
        let mut part = item.inside(&place, part)?;
        let kind = part.text("type")?;
        match kind.as_deref() {
            Some("input_text" | "output_text" | "text" | "summary_text" | "reasoning_text") => {
                texts.push(part.text("text")?.unwrap_or_default());
            }
            Some("refusal") => texts.push(part.text("refusal")?.unwrap_or_default()),
            other => {
                let found = other.unwrap_or("missing");
                let message = format!("{place}.type is {found:?}; this server reads text only");
                return Err(ApiError::field(format!("{place}.type"), message));
            }
        }
        part.ignore(&["annotations", "logprobs", "cache_control"]);
        part.end()?;
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::Notes;

    fn read(input_value: Value) -> Result<Vec<Message>, ApiError> {
        let body = json!({"input": input_value}).to_string();
        input(&mut Fields::parse(body.as_bytes(), &Notes::default()).unwrap(), 99)
    }

    #[test]
    fn items_of_one_turn_are_put_together() {
        let turns = read(json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rain?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
            {"type": "web_search_call", "id": "ws_1"},
            {"role": "user", "content": "And now?"},
        ]))
        .unwrap();
        let roles: Vec<&str> = turns.iter().map(|turn| turn.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "user"]);
        assert_eq!(
            (turns[2].content.as_deref(), &turns[2].fields["reasoning_content"]),
            (Some("Well."), &json!("Hm."))
        );
        assert_eq!(turns[2].fields["tool_calls"][0]["function"]["arguments"]["x"], 1);
        assert_eq!(turns[4], Message::new("tool", "rain").with("tool_call_id", "c2"));
        assert_eq!(read(json!("hi")).unwrap(), [Message::new("user", "hi")]);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_place() {
        for (items, words) in [
            (json!(3), "input must be a string or an array"),
            (json!([]), "1 to 99"),
            (json!([{"role": "alien", "content": "x"}]), "alien"),
            (json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]), "text only"),
            (
                json!([{"type": "function_call", "name": "f", "arguments": "{}"}]),
                "input[0].call_id is required",
            ),
        ] {
            let error = read(items).unwrap_err().body().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
