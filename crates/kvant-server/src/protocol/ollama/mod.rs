//! Ollama's words: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask before.

mod about;
mod embed;
mod lines;
mod manage;
mod request;

pub use about::{capabilities, ps, show, tags, version};
pub use embed::{embed, embeddings};
pub use manage::{copy, delete, pull};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::fill::FillTokens;
use crate::models::{KeepAlive, Served};
use crate::request::jobs::{JobOptions, Jobs};
use crate::route::{Answered, Asked, Caller, json};
use crate::time::timestamp;
use crate::turn::Turns;
use kvant_engine::Interrupt;
use lines::{Kind, Lines};
use request::Generate;
use serde_json::{Value, json as object};
use std::sync::Arc;

/// The next turn of a conversation.
pub async fn chat(Asked { app, caller, mut fields }: Asked) -> Answered {
    if let Some(name) = unload(&mut fields, &app, &caller).await? {
        let message = object!({"role": "assistant", "content": ""});
        return Ok(json(&nothing(&name, "message", message, "unload")));
    }
    let (name, served) = model(&mut fields, &app, &caller).await?;
    let Some(turn) = request::chat(fields, &app, &served)? else {
        let message = object!({"role": "assistant", "content": ""});
        return Ok(json(&nothing(&name, "message", message, "load")));
    };
    let stream = turn.settings.stream;
    let lines = Lines::new(Kind::Chat, name, Arc::clone(&served));
    let turns = turn.begin(&app, served, &caller).await?;
    respond(turns, lines, stream).await
}

/// What follows a text, or an answer to it.
pub async fn generate(Asked { app, caller, mut fields }: Asked) -> Answered {
    if let Some(name) = unload(&mut fields, &app, &caller).await? {
        return Ok(json(&nothing(&name, "response", "".into(), "unload")));
    }
    let (name, served) = model(&mut fields, &app, &caller).await?;
    let lines = Lines::new(Kind::Generate, name.clone(), Arc::clone(&served));
    match request::generate(fields, &app, &served)? {
        Generate::Load => Ok(json(&nothing(&name, "response", "".into(), "load"))),
        Generate::Answer(turn) => {
            let stream = turn.settings.stream;
            let turns = turn.begin(&app, served, &caller).await?;
            respond(turns, lines, stream).await
        }
        Generate::Continue { settings, prompt, suffix, max_tokens, logprobs } => {
            let model = Arc::clone(&served);
            let grammar = settings.grammar.clone();
            let prepare = move |interrupt: &Interrupt| {
                let engine = model.handle.engine();
                let tokens = match suffix {
                    Some(suffix) => FillTokens::of(engine)?.prompt(&model, &prompt, &suffix)?,
                    None => model.prompts().text(&prompt)?,
                };
                Ok::<_, ApiError>((tokens, model.constraints(grammar.as_ref(), 1, interrupt)?))
            };
            let (prompt, constraints) = app.prepare(prepare).await??;
            let tokens = prompt.len();
            let request = kvant_engine::Request {
                prompt,
                sampling: settings.sampling,
                stop: settings.stop,
                max_tokens,
                ..kvant_engine::Request::default()
            };
            let options = JobOptions { logprobs, ..JobOptions::of(&caller) };
            let jobs = Jobs::generate(served, app.limits(), vec![request], constraints, options).await?;
            let turns = Turns::new(jobs, vec![tokens], None, Arc::clone(&caller.log));
            respond(turns, lines, settings.stream).await
        }
    }
}

/// The model that is meant, and what the answer calls it: its own name, with the tag that the client gave it, since clients compare.
async fn model(fields: &mut Fields, app: &App, caller: &Caller) -> Result<(String, Arc<Served>), ApiError> {
    let name = name(fields)?;
    let keep = app.keep_alive(fields, caller)?;
    let served = app.model(name.as_deref(), caller).await?;
    if let Some(keep) = keep {
        app.models.keep(served.model_name(), keep);
    }
    let is_own = |name: &String| *name == format!("{}:latest", served.name);
    Ok((name.filter(is_own).unwrap_or_else(|| served.name.clone()), served))
}

fn name(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let (model, name) = (fields.text("model")?, fields.text("name")?);
    Ok(model.or(name))
}

/// Whether a field says nothing besides which model is meant and how long it stays. What does is read as in any other request.
fn is_idle(name: &str, value: &Value) -> bool {
    match (name, value) {
        ("model" | "name" | "keep_alive" | "stream", _) | (_, Value::Null) => true,
        ("prompt" | "suffix" | "system" | "format", Value::String(text)) => text.is_empty(),
        ("messages" | "tools", Value::Array(items)) => items.is_empty(),
        _ => false,
    }
}

/// Unloads the model of a request that asks for that and nothing else, and says what it was called: `keep_alive` is 0, and all
/// that could be answered is missing or empty. A model at work goes when it is done.
async fn unload(fields: &mut Fields, app: &App, caller: &Caller) -> Result<Option<String>, ApiError> {
    let ends = fields.peek("keep_alive").and_then(KeepAlive::read) == Some(KeepAlive::NOT_AT_ALL);
    if !ends || !fields.all(is_idle) {
        return Ok(None);
    }
    caller.administers("unloading a model")?;
    let name = name(fields)?;
    fields.flag("stream")?;
    let model = app.models.resolve(name.as_deref(), app.options.strict_model)?;
    app.models.keep(&model, KeepAlive::NOT_AT_ALL);
    if app.models.is_on_demand() {
        // What is at work goes later.
        let _ = app.models.unload(&model).await;
    }
    Ok(Some(name.filter(|name| *name == format!("{model}:latest")).unwrap_or(model)))
}

async fn respond(turns: Turns, lines: Lines, stream: bool) -> Answered {
    match stream {
        true => Ok(turns.stream(lines)),
        false => {
            let turn = turns.whole("call").await?;
            Ok(json(&lines.whole(turn)))
        }
    }
}

/// The answer to a request that only wants a model to be there, or to go.
fn nothing(name: &str, field: &str, empty: Value, reason: &str) -> Value {
    object!({"model": name, "created_at": timestamp(), field: empty, "done": true, "done_reason": reason})
}
