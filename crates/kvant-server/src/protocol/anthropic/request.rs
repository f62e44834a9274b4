//! A request in Anthropic's words.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Served;
use crate::protocol::thinking;
use crate::request::custom::CustomTools;
use crate::request::format::bounded;
use crate::request::sampling::{Settings, named_stops, sampling};
use crate::request::tools::{Tools, check_function};
use crate::turn::TurnRequest;
use kvant_engine::ToolChoice;
use kvant_engine::grammar::Grammar;
use kvant_text::chat::Message;
use serde_json::{Map, Value, json};

/// Reads everything but the model.
pub fn read(mut fields: Fields, app: &App, served: &Served) -> Result<TurnRequest, ApiError> {
    let limits = app.limits();
    let usual = Settings::usual(served);
    let settings = Settings {
        sampling: sampling(&mut fields, served)?,
        stop: named_stops(&mut fields, "stop_sequences", limits.stops, limits.stop_bytes)?,
        stream: fields.flag("stream")?.unwrap_or(false),
        grammar: output_format(&mut fields, limits.format_bytes)?,
        ..usual
    };
    let max_tokens = fields.tokens("max_tokens", 1)?;
    let mut messages: Vec<Message> = system(&mut fields)?.into_iter().collect();
    let turns = fields.array("messages")?;
    let turns = turns.ok_or_else(|| ApiError::field("messages", "messages is required"))?;
    if turns.is_empty() || turns.len() > limits.messages {
        let message = format!("messages has {} turns; it must have 1 to {}", turns.len(), limits.messages);
        return Err(ApiError::field("messages", message));
    }
    for (index, turn) in turns.into_iter().enumerate() {
        read_turn(&fields, index, turn, &mut messages)?;
    }
    let variables = reasoning(&mut fields, served)?;
    let tools = tools(&mut fields, limits.format_bytes)?;
    fields.ignore(&["metadata", "service_tier", "container", "context_management", "betas"]);
    fields.end()?;
    Ok(TurnRequest {
        settings,
        messages,
        variables,
        max_tokens,
        logprobs: None,
        tools,
        merge_system: true,
        continues: None,
    })
}

/// The system prompt: a text, or blocks of it.
fn system(fields: &mut Fields) -> Result<Option<Message>, ApiError> {
    let text = match fields.take("system") {
        None => return Ok(None),
        Some(Value::String(text)) => text,
        Some(Value::Array(blocks)) => texts(fields, "system", blocks)?.join("\n\n"),
        Some(other) => return Err(fields.wrong("system", "a string or an array of text blocks", &other)),
    };
    Ok((!text.is_empty()).then(|| Message::new("system", text)))
}

/// The texts of blocks that may be nothing else.
fn texts(fields: &Fields, name: &str, blocks: Vec<Value>) -> Result<Vec<String>, ApiError> {
    let text = |(index, block): (usize, Value)| {
        let place = format!("{name}[{index}]");
        let mut block = fields.inside(&place, block)?;
        let kind = block.text("type")?;
        match (kind.as_deref(), block.text("text")?) {
            (Some("text") | None, Some(text)) => {
                block.ignore(&["cache_control", "citations"]);
                block.end()?;
                Ok(text)
            }
            (kind, _) => Err(not_text(&place, kind)),
        }
    };
    blocks.into_iter().enumerate().map(text).collect()
}

fn not_text(place: &str, kind: Option<&str>) -> ApiError {
    let kind = kind.unwrap_or("missing");
    let message =
        format!("{place}.type is {kind:?}; this server reads text, tool_use, tool_result and thinking");
    ApiError::field(format!("{place}.type"), message)
}

/// A turn, which may become several: every result of a tool is one of its own.
fn read_turn(all: &Fields, index: usize, turn: Value, out: &mut Vec<Message>) -> Result<(), ApiError> {
    let place = format!("messages[{index}]");
    let mut turn = all.inside(&place, turn)?;
    let role = turn.text("role")?.unwrap_or_default();
    if !["user", "assistant", "system"].contains(&role.as_str()) {
        let message = format!("{place}.role is {role:?}; it must be user or assistant");
        return Err(ApiError::field(format!("{place}.role"), message));
    }
    let blocks = match turn.take("content") {
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks,
        other => {
            return Err(turn.wrong("content", "a string or an array of blocks", &other.unwrap_or_default()));
        }
    };
    turn.end()?;
    let (mut said, mut thought, mut calls) = (Vec::new(), String::new(), Vec::new());
    for (number, block) in blocks.into_iter().enumerate() {
        let place = format!("{place}.content[{number}]");
        let mut block = all.inside(&place, block)?;
        let kind = block.text("type")?;
        let required =
            |name: &str| ApiError::field(format!("{place}.{name}"), format!("{place}.{name} is required"));
        match kind.as_deref() {
            Some("text") => said.push(block.text("text")?.ok_or_else(|| required("text"))?),
            Some("thinking") => thought.push_str(&block.text("thinking")?.unwrap_or_default()),
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let name = block.text("name")?.ok_or_else(|| required("name"))?;
                let input = match block.take("input") {
                    Some(input @ Value::Object(_)) => input,
                    None => json!({}),
                    Some(other) => return Err(block.wrong("input", "an object", &other)),
                };
                let function = json!({"name": name, "arguments": input});
                calls.push(json!({"id": block.text("id")?, "type": "function", "function": function}));
            }
            Some("tool_result") => {
                let id = block.text("tool_use_id")?.ok_or_else(|| required("tool_use_id"))?;
                let text = match block.take("content") {
                    None => String::new(),
                    Some(Value::String(text)) => text,
                    Some(Value::Array(parts)) => texts(all, &format!("{place}.content"), parts)?.join("\n"),
                    Some(other) => {
                        return Err(block.wrong("content", "a string or an array of blocks", &other));
                    }
                };
                out.push(Message::new("tool", text).with("tool_call_id", id));
            }
            kind => return Err(not_text(&place, kind)),
        }
        block.ignore(&["cache_control", "citations", "signature", "data", "is_error", "id", "caller"]);
        block.end()?;
    }
    let text = said.join("\n");
    let mut message = match (calls.is_empty(), said.is_empty()) {
        (false, _) => Message::calling((!said.is_empty()).then_some(text), calls),
        // Nothing but results.
        (true, true) if role == "user" => return Ok(()),
        (true, _) => Message::new(role.as_str(), text),
    };
    if role == "assistant" && !thought.is_empty() {
        message = message.with("reasoning_content", thought);
    }
    out.push(message);
    Ok(())
}

/// Reads `thinking`, and the effort in `output_config`.
fn reasoning(fields: &mut Fields, served: &Served) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.text("type")?;
        let on = match kind.as_deref() {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                let message = "thinking.type must be enabled, adaptive or disabled";
                return Err(ApiError::field("thinking.type", message));
            }
        };
        // How much is up to the model: templates know on and off, or an effort.
        thinking.ignore(&["budget_tokens", "display"]);
        thinking.end()?;
        // A model that does not reason has nothing to switch off.
        let format = served.handle.engine().chat_format();
        if on || format.reasoning.is_some() {
            thinking::set_thinking(fields, "thinking", on, served, &mut variables)?;
        }
    }
    if let Some(mut config) = fields.object("output_config")? {
        if let Some(effort) = config.text("effort")? {
            let effort = if effort == "max" { "xhigh" } else { effort.as_str() };
            thinking::set_effort(&config, "effort", effort, served, &mut variables)?;
        }
        config.end()?;
    }
    Ok(variables)
}

/// Reads `output_format`, or the one in `output_config`.
fn output_format(fields: &mut Fields, most_bytes: usize) -> Result<Option<Grammar>, ApiError> {
    let newer = fields.take_from("output_config", "format");
    let newer = newer.map(|format| fields.inside("output_config.format", format)).transpose()?;
    let Some(mut format) = fields.object("output_format")?.or(newer) else { return Ok(None) };
    let kind = format.text("type")?;
    let schema = format.take("schema").filter(Value::is_object);
    format.end()?;
    match (kind.as_deref(), schema) {
        (Some("json_schema"), Some(schema)) => {
            bounded(Grammar::JsonSchema(schema), most_bytes, "output_format").map(Some)
        }
        _ => Err(ApiError::field(
            "output_format",
            "output_format must have the type json_schema, and a schema",
        )),
    }
}

/// Reads `tools` and `tool_choice`. Tools that Anthropic's servers run themselves are not offered, and named.
fn tools(fields: &mut Fields, most_bytes: usize) -> Result<Option<Tools>, ApiError> {
    let given = fields.array("tools")?.unwrap_or_default();
    if given.iter().map(|tool| tool.to_string().len()).sum::<usize>() > most_bytes {
        return Err(ApiError::field("tools", format!("tools are larger than {most_bytes} bytes")));
    }
    let mut definitions = Vec::new();
    for (index, tool) in given.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        let mut tool = fields.inside(&place, tool)?;
        match tool.text("type")?.as_deref() {
            None | Some("custom") => {}
            Some(kind) => {
                fields.notes().ignored(format!("{place} ({kind})"));
                continue;
            }
        }
        let (name, description) = (tool.text("name")?, tool.text("description")?);
        let mut function = json!({"name": name, "description": description.unwrap_or_default()});
        if let Some(schema) = tool.take("input_schema") {
            function["parameters"] = schema;
        }
        check_function(&place, &function)?;
        tool.ignore(&[
            "cache_control",
            "strict",
            "defer_loading",
            "input_examples",
            "allowed_callers",
            "eager_input_streaming",
        ]);
        tool.end()?;
        definitions.push(json!({"type": "function", "function": function}));
    }
    let choice = match fields.object("tool_choice")? {
        None => ToolChoice::Auto,
        Some(mut choice) => {
            choice.ignore(&["disable_parallel_tool_use"]);
            let (kind, name) = (choice.text("type")?, choice.text("name")?);
            choice.end()?;
            match (kind.as_deref(), name) {
                (Some("auto"), _) => ToolChoice::Auto,
                (Some("none"), _) => return Ok(None),
                (Some("any"), _) => ToolChoice::Required,
                (Some("tool"), Some(name)) => {
                    if !definitions.iter().any(|tool| tool["function"]["name"] == name.as_str()) {
                        let message = format!("tool_choice names {name:?}, which is not among the tools");
                        return Err(ApiError::field("tool_choice", message));
                    }
                    ToolChoice::Function(name)
                }
                _ => {
                    let message = "tool_choice.type must be auto, any, none, or tool with a name";
                    return Err(ApiError::field("tool_choice", message));
                }
            }
        }
    };
    if definitions.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok(None),
            _ => Err(ApiError::field("tool_choice", "tool_choice asks for a tool, but there are none")),
        };
    }
    Ok(Some(Tools { definitions, choice, custom: CustomTools::default() }))
}
