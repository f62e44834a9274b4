//! `/v1/completions`: continuations of texts.

use super::{Owner, aside, json};
use crate::answer::{Form, Reply};
use crate::app::App;
use crate::ask::Answers;
use crate::ask::sampling::Settings;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use kvant_engine::Engine;
use serde_json::Value;
use std::sync::Arc;

/// Tokens where the request does not say, as clients know it.
const USUAL_TOKENS: u64 = 16;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 5;

/// A text to be continued, or its tokens.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

struct Ask {
    settings: Settings,
    prompts: Vec<Prompt>,
    max_tokens: usize,
    logprobs: Option<usize>,
    echo: bool,
}

pub async fn completions(
    State(app): State<Arc<App>>,
    Extension(Owner(owner)): Extension<Owner>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let body = app.body(request).await?;
    let Ask { settings, prompts, max_tokens, logprobs, echo } = read(&body, &app)?;
    let engine = Arc::clone(&app);
    let (format, answers) = (settings.format.clone(), prompts.len() * settings.n);
    let prepare = move || {
        let prompts = encode(engine.handle.engine(), prompts, echo)?;
        Ok::<_, ApiError>((prompts, engine.rules(format.as_ref(), answers)?))
    };
    let (prompts, rules) = aside(prepare).await??;
    let count = prompts.len();
    let (texts, prompts): (Vec<String>, Vec<Vec<u32>>) = prompts.into_iter().unzip();
    let requests = prompts.iter().flat_map(|prompt| {
        (0..settings.n).map(|choice| kvant_engine::Request {
            prompt: prompt.clone(),
            sampling: settings.sampling_of(choice),
            stop: settings.stop.clone(),
            max_tokens: Some(max_tokens),
            trim_start: false,
        })
    });
    let answers = Answers::begin(&app, requests.collect(), rules, logprobs, owner).await?;
    let form = Form::Text { echo: if echo { texts } else { Vec::new() } };
    let reply = Reply::new(app, answers, form, count, settings.n);
    match settings.stream {
        true => Ok(reply.stream(settings.include_usage)),
        false => Ok(json(&reply.whole().await?)),
    }
}

/// Every prompt as a text, where that is wanted, and as tokens.
fn encode(engine: &Engine, prompts: Vec<Prompt>, echo: bool) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
    let one = |prompt: Prompt| match prompt {
        Prompt::Text(text) => {
            let tokens = engine.text_prompt(&text)?;
            Ok((text, tokens))
        }
        Prompt::Tokens(tokens) => {
            let outside =
                |e: kvant_model::tokenizer::TokenizerError| ApiError::field("prompt", e.to_string());
            let text =
                if echo { engine.tokenizer().decode(&tokens).map_err(outside)? } else { String::new() };
            Ok((text, tokens))
        }
    };
    prompts.into_iter().map(one).collect()
}

fn read(body: &[u8], app: &App) -> Result<Ask, ApiError> {
    let mut fields = Fields::parse(body)?;
    let settings = Settings::read(&mut fields, app)?;
    let most = app.limits().answers;
    let prompts = prompts(&mut fields)?;
    if prompts.is_empty() || prompts.len() * settings.n > most {
        let message = format!(
            "{} prompts with {} answers each: at least one and at most {most} answers are given at a time",
            prompts.len(),
            settings.n
        );
        return Err(ApiError::field("prompt", message));
    }
    let max_tokens = fields.integer("max_tokens", 0..=u64::MAX)?.unwrap_or(USUAL_TOKENS);
    let logprobs = fields.integer("logprobs", 0..=MOST_LIKELY)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        let message = "the tokens of the prompt get no logprobs: leave out echo or logprobs";
        return Err(ApiError::field("echo", message).code("unsupported_parameter"));
    }
    if let Some(best_of) = fields.integer("best_of", 1..=u64::MAX)?
        && best_of != settings.n as u64
    {
        let message = "best_of is not supported unless it equals n: every answer is given";
        return Err(ApiError::field("best_of", message).code("unsupported_parameter"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        let message = "suffix is not supported by this server";
        return Err(ApiError::field("suffix", message).code("unsupported_parameter"));
    }
    fields.end()?;
    let max_tokens = usize::try_from(max_tokens).unwrap_or(usize::MAX);
    Ok(Ask { settings, prompts, max_tokens, logprobs: logprobs.map(|count| count as usize), echo })
}

/// A text, several, the tokens of one, or those of several.
fn prompts(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    const WANTED: &str = "a string, an array of strings, or one or several arrays of token ids";
    let value = fields.take("prompt").ok_or_else(|| ApiError::field("prompt", "prompt is required"))?;
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(fields.wrong("prompt", WANTED, &other)),
    };
    let ids = |items: &[Value]| -> Option<Vec<u32>> {
        items.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect()
    };
    if items.iter().any(Value::is_number) {
        let tokens =
            ids(&items).ok_or_else(|| ApiError::field("prompt", "prompt: these are no token ids"))?;
        return Ok(vec![Prompt::Tokens(tokens)]);
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(items) => ids(&items)
            .map(Prompt::Tokens)
            .ok_or_else(|| ApiError::field("prompt", "prompt: these are no token ids")),
        other => Err(fields.wrong("prompt", WANTED, &other)),
    };
    items.into_iter().map(one).collect()
}
