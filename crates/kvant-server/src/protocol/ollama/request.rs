//! Requests in Ollama's words.

use crate::app::{App, Limits};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Served;
use crate::protocol::thinking;
use crate::request::format::bounded;
use crate::request::sampling::{Settings, count, named_stops, sampling as read_sampling};
use crate::request::tools::Tools;
use crate::turn::TurnRequest;
use kvant_engine::grammar::Grammar;
use kvant_text::chat::Message;
use serde_json::{Map, Value, json};

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 20;

/// What `/api/generate` asks for.
pub enum Generate {
    /// Nothing but the model.
    Load,
    /// An answer, by the model's template.
    Answer(Box<TurnRequest>),
    /// What follows the text as it is, or fills the gap before a suffix.
    Continue {
        /// How tokens are chosen, and when to stop.
        settings: Box<Settings>,
        /// The text.
        prompt: String,
        /// What comes after the gap.
        suffix: Option<String>,
        /// The most tokens.
        max_tokens: Option<usize>,
        /// Probabilities, with those of so many likeliest tokens.
        logprobs: Option<usize>,
    },
}

/// Reads a conversation; none where there are no messages, which only wants the model to be there.
pub fn chat(mut fields: Fields, app: &App, served: &Served) -> Result<Option<TurnRequest>, ApiError> {
    let limits = app.limits();
    let (settings, max_tokens) = settings(&mut fields, served, limits)?;
    let turns = fields.array("messages")?.unwrap_or_default();
    if turns.len() > limits.messages {
        let message = format!("messages has {} turns; it must have at most {}", turns.len(), limits.messages);
        return Err(ApiError::field("messages", message));
    }
    let read = |(index, turn)| message(&fields, index, turn);
    let messages = turns.into_iter().enumerate().map(read).collect::<Result<Vec<Message>, _>>()?;
    let variables = think(&mut fields, served)?;
    let logprobs = logprobs(&mut fields)?;
    let tools = Tools::read(&mut fields, limits.format_bytes)?;
    fields.end()?;
    let request = TurnRequest {
        settings,
        messages,
        variables,
        max_tokens,
        logprobs,
        tools,
        merge_system: false,
        continues: None,
    };
    Ok((!request.messages.is_empty()).then_some(request))
}

/// Reads a text.
pub fn generate(mut fields: Fields, app: &App, served: &Served) -> Result<Generate, ApiError> {
    let (settings, max_tokens) = settings(&mut fields, served, app.limits())?;
    let prompt = fields.text("prompt")?.unwrap_or_default();
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let system = fields.text("system")?.filter(|system| !system.is_empty());
    let raw = fields.flag("raw")?.unwrap_or(false);
    let variables = think(&mut fields, served)?;
    let logprobs = logprobs(&mut fields)?;
    fields.refuse(&["images"])?;
    fields.end()?;
    if prompt.is_empty() && suffix.is_none() {
        return Ok(Generate::Load);
    }
    if raw || suffix.is_some() || !served.handle.engine().converses() {
        return Ok(Generate::Continue { settings: Box::new(settings), prompt, suffix, max_tokens, logprobs });
    }
    let system = system.map(|text| Message::new("system", text));
    let messages = system.into_iter().chain([Message::new("user", prompt)]).collect();
    let request = TurnRequest {
        settings,
        messages,
        variables,
        max_tokens,
        logprobs,
        tools: None,
        merge_system: false,
        continues: None,
    };
    Ok(Generate::Answer(Box::new(request)))
}

/// Reads `options`, `format` and `stream`, and the most tokens.
fn settings(
    fields: &mut Fields,
    served: &Served,
    limits: &Limits,
) -> Result<(Settings, Option<usize>), ApiError> {
    let usual = Settings::usual(served);
    let mut sampling = usual.sampling.clone();
    let (mut stop, mut max_tokens) = (Vec::new(), None);
    if let Some(mut options) = fields.object("options")? {
        sampling = read_sampling(&mut options, served)?;
        // Nothing said is the whole text, as in the other protocols; -1 says so.
        if let Some(last) = count(&mut options, "repeat_last_n")? {
            sampling.penalty_window = usize::try_from(last).ok();
        }
        stop = named_stops(&mut options, "stop", limits.stops, limits.stop_bytes)?;
        max_tokens = options.tokens("num_predict", 0)?;
        // The context, the threads and the memory are the server's.
        options.ignore(&[
            "num_ctx",
            "num_keep",
            "num_batch",
            "num_gpu",
            "main_gpu",
            "num_thread",
            "use_mmap",
            "numa",
            "low_vram",
        ]);
        options.end()?;
    }
    let grammar = match fields.take("format") {
        None => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(Value::String(text)) if text == "json" => Some(Grammar::json_object()),
        Some(schema @ Value::Object(_)) => {
            Some(bounded(Grammar::JsonSchema(schema), limits.format_bytes, "format")?)
        }
        Some(other) => return Err(fields.wrong("format", "\"json\" or a JSON schema", &other)),
    };
    let stream = fields.flag("stream")?.unwrap_or(true);
    fields.ignore(&["template", "context", "truncate", "shift"]);
    Ok((Settings { sampling, stop, grammar, stream, ..usual }, max_tokens))
}

/// Reads `logprobs` and `top_logprobs`.
fn logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let likeliest = fields.integer("top_logprobs", 0..=MOST_LIKELY)?.unwrap_or(0) as usize;
    match wanted || likeliest == 0 {
        true => Ok(wanted.then_some(likeliest)),
        false => Err(ApiError::field("top_logprobs", "top_logprobs may only be given with logprobs: true")),
    }
}

/// Reads `think`: on, off, or an effort.
fn think(fields: &mut Fields, served: &Served) -> Result<Map<String, Value>, ApiError> {
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Value::Bool(on)) => {
            let format = served.handle.engine().chat_format();
            if on || format.reasoning.is_some() {
                thinking::set_thinking(fields, "think", on, served, &mut variables)?;
            }
        }
        Some(Value::String(effort)) => {
            thinking::set_effort(fields, "think", &effort, served, &mut variables)?;
        }
        Some(other) => return Err(fields.wrong("think", "true, false or an effort", &other)),
    }
    Ok(variables)
}

fn message(all: &Fields, index: usize, turn: Value) -> Result<Message, ApiError> {
    let place = format!("messages[{index}]");
    let mut turn = all.inside(&place, turn)?;
    let role = turn.text("role")?.unwrap_or_default();
    let content = turn.text("content")?;
    let mut message = match role.as_str() {
        "system" | "user" => Message::new(role.as_str(), content.unwrap_or_default()),
        "assistant" => match turn.array("tool_calls")?.filter(|calls| !calls.is_empty()) {
            None => Message::new("assistant", content.unwrap_or_default()),
            Some(calls) => {
                let is_call = |call: &Value| {
                    call["function"]["name"].is_string()
                        && (call["function"]["arguments"].is_object()
                            || call["function"]["arguments"].is_string())
                };
                if let Some(number) = calls.iter().position(|call| !is_call(call)) {
                    let name = format!("{place}.tool_calls[{number}]");
                    let message = format!("{name} must have a function.name and function.arguments");
                    return Err(ApiError::field(name, message));
                }
                let named = |(number, call): (usize, Value)| json!({"id": format!("call_{index}_{number}"), "type": "function", "function": call["function"]});
                let calls = calls.into_iter().enumerate().map(named).collect();
                Message::calling(content.filter(|text| !text.is_empty()), calls)
            }
        },
        "tool" => Message::new("tool", content.unwrap_or_default()),
        other => {
            let message = format!("{place}.role is {other:?}; it must be system, user, assistant or tool");
            return Err(ApiError::field(format!("{place}.role"), message));
        }
    };
    if let Some(thought) = turn.text("thinking")?.filter(|text| !text.is_empty() && role == "assistant") {
        message = message.with("reasoning_content", thought);
    }
    if let Some(name) = turn.text("tool_name")? {
        message = message.with("name", name);
    }
    turn.refuse(&["images"])?;
    turn.ignore(&["tool_call_id"]);
    turn.end()?;
    Ok(message)
}
