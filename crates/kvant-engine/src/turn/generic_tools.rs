//! Tools for models whose template knows none: they are described in the system prompt, and calls and results are written out.
//!
//! The way to write calls is that of Hermes, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, which most models have met.

use kvant_text::chat::Message;
use serde_json::Value;

/// The conversation without fields that the template would not show.
pub(super) fn written_out(messages: &[Message], definitions: &[Value]) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let instructions = instructions(definitions);
    let mut rest = messages;
    match messages.first() {
        Some(first) if first.role == "system" => {
            let own = first.content.as_deref().unwrap_or_default();
            out.push(Message::new("system", format!("{own}\n\n{instructions}")));
            rest = &messages[1..];
        }
        _ => out.push(Message::new("system", instructions)),
    }
    for message in rest {
        match (message.role.as_str(), message.fields.get("tool_calls")) {
            ("assistant", Some(Value::Array(calls))) => {
                let mut text = message.content.clone().unwrap_or_default();
                for call in calls {
                    let function = call.get("function").unwrap_or(call);
                    let call =
                        serde_json::json!({"name": function["name"], "arguments": function["arguments"]});
                    text = format!("{text}\n<tool_call>\n{call}\n</tool_call>");
                }
                out.push(Message::new("assistant", text.trim_start()));
            }
            ("tool", _) => {
                let result = message.content.as_deref().unwrap_or_default();
                let result = format!("<tool_response>\n{result}\n</tool_response>");
                match out.last_mut() {
                    // Templates that know no tools want users and assistants to take turns.
                    Some(Message { role, content: Some(before), .. }) if role == "user" => {
                        *before = format!("{before}\n{result}");
                    }
                    _ => out.push(Message::new("user", result)),
                }
            }
            _ => out.push(message.clone()),
        }
    }
    out
}

fn instructions(definitions: &[Value]) -> String {
    let tools: Vec<String> =
        definitions.iter().map(|tool| tool.get("function").unwrap_or(tool).to_string()).collect();
    format!(
        "You may call one or more of these functions:\n<tools>\n{}\n</tools>\n\nTo call one, answer with its name and its \
         arguments as JSON:\n<tool_call>\n{{\"name\": \"NAME\", \"arguments\": {{}}}}\n</tool_call>",
        tools.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_calls_and_results_are_written_out() {
        let call =
            json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}});
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "Go."),
            Message::calling(Some("Well.".into()), vec![call]),
            Message::new("tool", "one").with("tool_call_id", "1"),
            Message::new("tool", "two"),
        ];
        let tools = [json!({"type": "function", "function": {"name": "f"}})];
        let out = written_out(&messages, &tools);
        assert_eq!(
            out.iter().map(|turn| turn.role.as_str()).collect::<Vec<_>>(),
            ["system", "user", "assistant", "user"]
        );
        let text = |index: usize| out[index].content.as_deref().unwrap();
        assert!(
            text(0).starts_with("Be brief.\n\n") && text(0).contains("<tools>\n{\"name\":\"f\"}\n</tools>")
        );
        assert_eq!(text(2), "Well.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>");
        assert_eq!(text(3), "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>");
        assert_eq!(written_out(&messages[1..2], &tools).len(), 2);
    }
}
