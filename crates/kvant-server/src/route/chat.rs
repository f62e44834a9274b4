//! `/v1/chat/completions`: the next turn of a conversation.

use super::{Owner, aside, json};
use crate::answer::{Form, Reply};
use crate::app::App;
use crate::ask::Answers;
use crate::ask::messages::messages;
use crate::ask::sampling::Settings;
use crate::ask::tools::Tools;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use kvant_model::chat::{Message, RenderOptions};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 20;

/// What is asked for.
struct Ask {
    settings: Settings,
    messages: Vec<Message>,
    variables: Map<String, Value>,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
    tools: Option<Tools>,
}

pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(Owner(owner)): Extension<Owner>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let body = app.body(request).await?;
    let ask = read(&body, &app)?;
    let Ask { settings, messages, variables, max_tokens, logprobs, tools } = ask;
    let engine = Arc::clone(&app);
    let definitions = tools.as_ref().map(|tools| tools.definitions.clone()).unwrap_or_default();
    let options = RenderOptions { tools: definitions, variables, ..RenderOptions::default() };
    let (grammar, count) = (settings.grammar.clone(), settings.n);
    let call = tools.as_ref().and_then(Tools::grammar);
    let prepare = move || {
        let prompt = engine.handle.engine().chat_prompt_with(&messages, options)?;
        let constraints = match call {
            Some(call) => engine.constraints(Some(&call), count).map_err(|error| error.at("tools"))?,
            None => engine.constraints(grammar.as_ref(), count)?,
        };
        Ok::<_, ApiError>((prompt, constraints))
    };
    let (prompt, constraints) = aside(prepare).await??;
    let requests = (0..settings.n).map(|choice| kvant_engine::Request {
        prompt: prompt.clone(),
        sampling: settings.sampling_of(choice),
        stop: settings.stop.clone(),
        max_tokens,
        trim_start: true,
    });
    let answers = Answers::begin(&app, requests.collect(), constraints, logprobs, owner).await?;
    let reply = Reply::new(app, answers, Form::Chat, 1, settings.n).with_tools(tools.as_ref());
    match settings.stream {
        true => Ok(reply.stream(settings.include_usage)),
        false => Ok(json(&reply.whole().await?)),
    }
}

fn read(body: &[u8], app: &App) -> Result<Ask, ApiError> {
    let mut fields = Fields::parse(body)?;
    let settings = Settings::read(&mut fields, app)?;
    let messages = messages(&mut fields, app.limits().messages)?;
    // The older name, where both are given, asks for the same.
    let older = fields.integer("max_tokens", 1..=u64::MAX)?;
    let max_tokens = fields.integer("max_completion_tokens", 1..=u64::MAX)?.or(older);
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let likeliest = fields.integer("top_logprobs", 0..=MOST_LIKELY)?;
    if likeliest.is_some() && !wanted {
        return Err(ApiError::field("top_logprobs", "top_logprobs may only be given with logprobs: true"));
    }
    let variables = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(variables)) => variables,
        Some(other) => return Err(fields.wrong("chat_template_kwargs", "an object", &other)),
    };
    modalities(&mut fields)?;
    fields.refuse(&[
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
        "reasoning_effort",
        "verbosity",
        "store",
    ])?;
    let tools = Tools::read(&mut fields, app.handle.engine().template(), app.limits().format_bytes)?;
    if tools.is_some() && settings.grammar.is_some() {
        let message = "response_format cannot be combined with tools: a call would break it";
        return Err(ApiError::field("response_format", message).code("unsupported_parameter"));
    }
    fields.end()?;
    Ok(Ask {
        settings,
        messages,
        variables,
        max_tokens: max_tokens.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
        logprobs: wanted.then(|| likeliest.unwrap_or(0) as usize),
        tools,
    })
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("modalities") {
        None => Ok(()),
        Some(value) if value == serde_json::json!(["text"]) => Ok(()),
        Some(_) => Err(ApiError::field("modalities", "this server answers in text only")),
    }
}
