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
use kvant_engine::reply::ChatFormat;
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
    let options = RenderOptions { tools: definitions.clone(), variables, ..RenderOptions::default() };
    let (grammar, count) = (settings.grammar.clone(), settings.n);
    let call = tools.as_ref().map(Tools::grammar).transpose()?.flatten();
    let prepare = move || {
        let prompt = match call.is_some() || grammar.is_some() {
            // A grammar is for the answer and leaves no room for reasoning.
            true => engine.handle.engine().answer_prompt_with(&messages, options)?,
            false => engine.handle.engine().chat_prompt_with(&messages, options)?,
        };
        let constraints = match call {
            Some(call) => engine.constraints(Some(&call), count).map_err(|error| error.at("tools"))?,
            None => engine.constraints(grammar.as_ref(), count)?,
        };
        Ok::<_, ApiError>((prompt, constraints))
    };
    let (prompt, constraints) = aside(prepare).await??;
    let engine = app.handle.engine();
    let parser = engine.reply_parser(&prompt, &definitions);
    let requests = (0..settings.n).map(|choice| kvant_engine::Request {
        prompt: prompt.clone(),
        sampling: settings.sampling_of(choice),
        stop: settings.stop.clone(),
        max_tokens,
        trim_start: true,
        markers: engine.reply_markers().to_vec(),
    });
    let answers = Answers::begin(&app, requests.collect(), constraints, logprobs, owner).await?;
    let reply = Reply::new(app, answers, Form::Chat, 1, settings.n).split_by(parser);
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
    let mut variables = thinking(&mut fields, app.handle.engine().chat_format())?;
    match fields.take("chat_template_kwargs") {
        None => {}
        Some(Value::Object(more)) => variables.extend(more),
        Some(other) => return Err(fields.wrong("chat_template_kwargs", "an object", &other)),
    }
    modalities(&mut fields)?;
    fields.refuse(&[
        "functions",
        "function_call",
        "audio",
        "prediction",
        "web_search_options",
        "verbosity",
        "store",
    ])?;
    let style = app.handle.engine().chat_format().tools;
    let tools = Tools::read(&mut fields, style, app.limits().format_bytes)?;
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

/// Reads `reasoning_effort` and `enable_thinking`, which become variables of the template.
fn thinking(fields: &mut Fields, format: &ChatFormat) -> Result<Map<String, Value>, ApiError> {
    const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
    let mut variables = Map::new();
    let unsupported = |name: &str| {
        let message = format!("{name} is not supported: the chat template of this model does not know it");
        ApiError::field(name, message).code("unsupported_parameter")
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        if !EFFORTS.contains(&effort.as_str()) {
            let message = format!("reasoning_effort is {effort:?}; it must be one of {}", EFFORTS.join(", "));
            return Err(ApiError::field("reasoning_effort", message));
        }
        if !format.set_effort(&effort, &mut variables) {
            return Err(unsupported("reasoning_effort"));
        }
    }
    if let Some(on) = fields.flag("enable_thinking")?
        && !format.set_thinking(on, &mut variables)
    {
        return Err(unsupported("enable_thinking"));
    }
    Ok(variables)
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("modalities") {
        None => Ok(()),
        Some(value) if value == serde_json::json!(["text"]) => Ok(()),
        Some(_) => Err(ApiError::field("modalities", "this server answers in text only")),
    }
}
