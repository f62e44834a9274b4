//! `/v1/chat/completions`: the next turn of a conversation.

use super::{Form, Reply};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Served;
use crate::protocol::thinking;
use crate::request::messages::messages;
use crate::request::sampling::Settings;
use crate::request::tools::Tools;
use crate::route::{Answered, Asked, json};
use crate::turn::TurnRequest;
use serde_json::Value;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 20;

pub async fn completions(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let request = read(fields, &app, &served)?;
    let (n, stream, include_usage) =
        (request.settings.n, request.settings.stream, request.settings.include_usage);
    let custom = request.tools.as_ref().map(|tools| tools.custom.clone()).unwrap_or_default();
    let turns = request.begin(&app, served, &caller).await?;
    let reply = Reply::new(&app, turns.served(), Form::Chat, 1, n).with_custom(custom);
    match stream {
        true => Ok(turns.stream(reply.pieces(include_usage))),
        false => Ok(json(&reply.whole(turns).await?)),
    }
}

/// Reads everything but the model.
pub fn read(mut fields: Fields, app: &App, served: &Served) -> Result<TurnRequest, ApiError> {
    let limits = app.limits();
    let settings = Settings::read(&mut fields, served, limits)?;
    let messages = messages(&mut fields, limits.messages)?;
    // The older name, where both are given, asks for the same.
    let older = fields.tokens("max_tokens", 1)?;
    let max_tokens = fields.tokens("max_completion_tokens", 1)?.or(older);
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let likeliest = fields.integer("top_logprobs", 0..=MOST_LIKELY)?;
    if likeliest.is_some() && !wanted {
        return Err(ApiError::field("top_logprobs", "top_logprobs may only be given with logprobs: true"));
    }
    let mut variables = thinking::read(&mut fields, served)?;
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(more)) => variables.extend(more),
        Some(other) => return Err(fields.wrong("chat_template_kwargs", "an object", &other)),
    }
    let continues = continues(&mut fields)?;
    modalities(&mut fields)?;
    fields.refuse(&["functions", "function_call", "audio"])?;
    let tools = Tools::read(&mut fields, limits.format_bytes)?;
    fields.end()?;
    let logprobs = wanted.then(|| likeliest.unwrap_or(0) as usize);
    let merge_system = false;
    Ok(TurnRequest { settings, messages, variables, max_tokens, logprobs, tools, merge_system, continues })
}

/// Whether the last message is continued, by vLLM's two names: a generation prompt begins a turn, so both cannot be true.
fn continues(fields: &mut Fields) -> Result<Option<bool>, ApiError> {
    let (begins, continues) = (fields.flag("add_generation_prompt")?, fields.flag("continue_final_message")?);
    if begins == Some(true) && continues == Some(true) {
        let message = "continue_final_message and add_generation_prompt cannot both be true";
        return Err(ApiError::field("continue_final_message", message));
    }
    Ok(continues.or((begins == Some(true)).then_some(false)))
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("modalities") {
        None => Ok(()),
        Some(value) if value == serde_json::json!(["text"]) => Ok(()),
        Some(_) => Err(ApiError::field("modalities", "this server answers in text only")),
    }
}
