//! `/v1/completions`: continuations of texts.

use super::{Owner, aside, json};
use crate::answer::{Form, Reply};
use crate::app::App;
use crate::ask::Answers;
use crate::ask::prompts::{Prompt, prompts};
use crate::ask::sampling::Settings;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use kvant_engine::Engine;
use std::sync::Arc;

/// Tokens where the request does not say, as clients know it.
const USUAL_TOKENS: u64 = 16;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 5;

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
    let (grammar, answers) = (settings.grammar.clone(), prompts.len() * settings.n);
    let prepare = move || {
        let prompts = encode(engine.handle.engine(), prompts, echo)?;
        Ok::<_, ApiError>((prompts, engine.constraints(grammar.as_ref(), answers)?))
    };
    let (prompts, constraints) = aside(prepare).await??;
    let count = prompts.len();
    let (texts, prompts): (Vec<String>, Vec<Vec<u32>>) = prompts.into_iter().unzip();
    let requests = prompts.iter().flat_map(|prompt| {
        (0..settings.n).map(|choice| kvant_engine::Request {
            prompt: prompt.clone(),
            sampling: settings.sampling_of(choice),
            stop: settings.stop.clone(),
            max_tokens: Some(max_tokens),
            trim_start: false,
            markers: Vec::new(),
        })
    });
    let answers = Answers::begin(&app, requests.collect(), constraints, logprobs, owner).await?;
    let form = Form::Text { echo: if echo { texts } else { Vec::new() } };
    let reply = Reply::new(app, answers, form, count, settings.n);
    match settings.stream {
        true => Ok(reply.stream(settings.include_usage)),
        false => Ok(json(&reply.whole().await?)),
    }
}

/// Every prompt as a text, where that is wanted, and as tokens.
fn encode(engine: &Engine, prompts: Vec<Prompt>, echo: bool) -> Result<Vec<(String, Vec<u32>)>, ApiError> {
    let one = |prompt: Prompt| {
        let text = if echo { prompt.text(engine)? } else { String::new() };
        Ok((text, prompt.tokens(engine)?))
    };
    prompts.into_iter().map(one).collect()
}

fn read(body: &[u8], app: &App) -> Result<Ask, ApiError> {
    let mut fields = Fields::parse(body)?;
    let settings = Settings::read(&mut fields, app)?;
    let most = app.limits().answers;
    let prompts = prompts(&mut fields, "prompt")?;
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
