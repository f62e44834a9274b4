//! A request in the words of `/v1/responses`.

use super::input::input;
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, short};
use crate::models::Served;
use crate::protocol::thinking;
use crate::request::custom::CustomTools;
use crate::request::format::bounded;
use crate::request::sampling::{Settings, sampling};
use crate::request::tools::{Tools, allow, check_function};
use crate::turn::TurnRequest;
use kvant_engine::ToolChoice;
use kvant_engine::grammar::Grammar;
use kvant_text::chat::Message;
use serde_json::{Map, Value, json};

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 20;

/// What asks for probabilities in `include`.
const LOGPROBS: &str = "message.output_text.logprobs";

/// What is asked for.
pub struct ResponseRequest {
    /// The next turn.
    pub turn: TurnRequest,
    /// The conversation so far, without instructions, which hold for one response.
    pub conversation: Vec<Message>,
    /// May be gone on from.
    pub store: bool,
    /// What a response repeats of its request.
    pub echoed: Map<String, Value>,
}

/// Reads everything but the model and what came before, which is `history`.
pub fn read(
    mut fields: Fields,
    app: &App,
    served: &Served,
    history: Vec<Message>,
) -> Result<ResponseRequest, ApiError> {
    let limits = app.limits();
    let usual = Settings::usual(served);
    let sampling = sampling(&mut fields, served)?;
    let mut echoed = Map::new();
    let mut echo = |name: &str, value: Value| drop(echoed.insert(name.to_owned(), value));
    echo("temperature", short(sampling.temperature));
    echo("top_p", short(sampling.top_p));
    let (grammar, format) = text_format(&mut fields, limits.format_bytes)?;
    echo("text", json!({"format": format}));
    let max_tokens = fields.tokens("max_output_tokens", 1)?;
    echo("max_output_tokens", json!(max_tokens));
    let instructions = fields.text("instructions")?;
    echo("instructions", json!(instructions));
    let conversation = [history, input(&mut fields, limits.messages)?].concat();
    let system = instructions.into_iter().map(|text| Message::new("system", text));
    let messages = system.chain(conversation.iter().cloned()).collect();
    let mut variables = Map::new();
    if let Some(mut reasoning) = fields.object("reasoning")? {
        let effort = reasoning.text("effort")?;
        echo("reasoning", json!({"effort": effort, "summary": null}));
        if let Some(effort) = effort {
            thinking::set_effort(&reasoning, "effort", &effort, served, &mut variables)?;
        }
        reasoning.ignore(&["summary", "generate_summary"]);
        reasoning.end()?;
    }
    let (tools, listed, choice) = tools(&mut fields, limits.format_bytes)?;
    echo("tools", listed);
    echo("tool_choice", choice);
    if let Some(metadata) = fields.take("metadata") {
        echo("metadata", metadata);
    }
    let logprobs = logprobs(&mut fields)?;
    echo("top_logprobs", json!(logprobs.unwrap_or(0)));
    let settings = Settings { sampling, grammar, stream: fields.flag("stream")?.unwrap_or(false), ..usual };
    let store = fields.flag("store")?.unwrap_or(true);
    fields.refuse(&["background", "conversation", "prompt"])?;
    fields.ignore(&[
        "parallel_tool_calls",
        "truncation",
        "user",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "stream_options",
        "max_tool_calls",
        "client_metadata",
    ]);
    fields.end()?;
    let turn = TurnRequest {
        settings,
        messages,
        variables,
        max_tokens,
        logprobs,
        tools,
        merge_system: true,
        continues: None,
    };
    Ok(ResponseRequest { turn, conversation, store, echoed })
}

/// Reads `top_logprobs`, and what `include` says of it; the rest of `include` is about tools of OpenAI's servers.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let included = fields.array("include")?.unwrap_or_default();
    if let Some(other) = included.iter().find(|name| !name.is_string()) {
        return Err(fields.wrong("include", "an array of strings", other));
    }
    let likeliest = fields.integer("top_logprobs", 0..=MOST_LIKELY)?.map(|count| count as usize);
    Ok(likeliest.or(included.iter().any(|name| name == LOGPROBS).then_some(0)))
}

/// Reads `text.format`.
fn text_format(fields: &mut Fields, most_bytes: usize) -> Result<(Option<Grammar>, Value), ApiError> {
    let plain = json!({"type": "text"});
    let Some(mut text) = fields.object("text")? else { return Ok((None, plain)) };
    text.ignore(&["verbosity"]);
    let format = text.object("format")?;
    text.end()?;
    let Some(mut format) = format else { return Ok((None, plain)) };
    let kind = format.text("type")?;
    match kind.as_deref() {
        Some("text") => {
            format.end()?;
            Ok((None, plain))
        }
        Some("json_object") => {
            format.end()?;
            Ok((Some(Grammar::json_object()), json!({"type": "json_object"})))
        }
        Some("json_schema") => {
            let schema = format.take("schema").filter(Value::is_object);
            let schema = schema.ok_or_else(|| {
                ApiError::field("text.format.schema", "text.format.schema must be an object")
            })?;
            let name = format.text("name")?.unwrap_or_else(|| "answer".to_owned());
            format.ignore(&["strict", "description"]);
            format.end()?;
            let shown = json!({"type": "json_schema", "name": name, "schema": schema, "strict": true});
            Ok((Some(bounded(Grammar::JsonSchema(schema), most_bytes, "text.format")?), shown))
        }
        other => {
            let found = other.unwrap_or("missing");
            let message =
                format!("text.format.type is {found:?}; it must be text, json_object or json_schema");
            Err(ApiError::field("text.format.type", message))
        }
    }
}

/// Reads `tools` and `tool_choice`, and what a response repeats of them. Tools that are no functions are not offered, and named.
fn tools(fields: &mut Fields, most_bytes: usize) -> Result<(Option<Tools>, Value, Value), ApiError> {
    let given = fields.array("tools")?.unwrap_or_default();
    if given.iter().map(|tool| tool.to_string().len()).sum::<usize>() > most_bytes {
        return Err(ApiError::field("tools", format!("tools are larger than {most_bytes} bytes")));
    }
    let (mut definitions, mut listed, mut custom) = (Vec::new(), Vec::new(), CustomTools::default());
    for (index, tool) in given.into_iter().enumerate() {
        let place = format!("tools[{index}]");
        if !tool.is_object() {
            return Err(fields.wrong(&place, "an object", &tool));
        }
        let kind = tool["type"].as_str().unwrap_or("missing").to_owned();
        if kind == "custom" {
            listed.push(tool.clone());
            let mut tool = fields.inside(&place, tool)?;
            let function = custom.read(&mut tool)?;
            check_function(&place, &function)?;
            tool.ignore(&["type", "defer_loading"]);
            tool.end()?;
            definitions.push(json!({"type": "function", "function": function}));
            continue;
        }
        if kind != "function" {
            fields.notes().ignored(format!("{place} ({kind})"));
            continue;
        }
        let mut tool = fields.inside(&place, tool)?;
        let (name, description) = (tool.text("name")?, tool.text("description")?);
        let mut function = json!({"name": name, "description": description.clone().unwrap_or_default()});
        let parameters = tool.take("parameters");
        if let Some(parameters) = &parameters {
            function["parameters"] = parameters.clone();
        }
        check_function(&place, &function)?;
        tool.ignore(&["type", "strict", "defer_loading"]);
        tool.end()?;
        listed.push(json!({
            "type": "function", "name": name, "description": description, "parameters": parameters, "strict": false,
        }));
        definitions.push(json!({"type": "function", "function": function}));
    }
    let asked = fields.take("tool_choice");
    let shown = asked.clone().unwrap_or_else(|| "auto".into());
    let choice = match asked {
        None => ToolChoice::Auto,
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => ToolChoice::Auto,
            "none" => return Ok((None, listed.into(), shown)),
            "required" => ToolChoice::Required,
            other => {
                let message =
                    format!("tool_choice is {other:?}; it must be auto, none, required or a function");
                return Err(ApiError::field("tool_choice", message));
            }
        },
        Some(choice) => {
            let mut choice = fields.inside("tool_choice", choice)?;
            let (kind, name) = (choice.text("type")?, choice.text("name")?);
            match (kind.as_deref(), name) {
                (Some("allowed_tools"), _) => allow(choice, &mut definitions)?,
                (Some("function" | "custom"), Some(name))
                    if definitions.iter().any(|tool| tool["function"]["name"] == name.as_str()) =>
                {
                    ToolChoice::Function(name)
                }
                (Some("function" | "custom"), _) => {
                    let message = "tool_choice must name a function that is among the tools";
                    return Err(ApiError::field("tool_choice", message));
                }
                // A choice among tools that are not offered here.
                _ => ToolChoice::Auto,
            }
        }
    };
    if definitions.is_empty() {
        return match choice {
            ToolChoice::Auto => Ok((None, listed.into(), shown)),
            _ => Err(ApiError::field("tool_choice", "tool_choice asks for a tool, but there are none")),
        };
    }
    Ok((Some(Tools { definitions, choice, custom }), listed.into(), shown))
}
