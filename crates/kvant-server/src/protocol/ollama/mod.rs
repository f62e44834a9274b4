//! Ollama's words: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask before.

mod about;
mod embed;
mod lines;
mod request;

pub use about::{capabilities, ps, show, tags, version};
pub use embed::{embed, embeddings};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::fill::FillTokens;
use crate::models::Served;
use crate::request::jobs::{JobOptions, Jobs};
use crate::route::{Caller, json, spawn_blocking};
use crate::time::timestamp;
use crate::turn::Turns;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use lines::{Kind, Lines};
use request::Generate;
use serde_json::{Value, json as object};
use std::sync::Arc;

/// The next turn of a conversation.
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let body = app.body(request, &caller).await?;
    let mut fields = Fields::parse(&body, caller.notes())?;
    let (name, served) = model(&mut fields, &app, &caller).await?;
    let Some(turn) = request::chat(fields, &app, &served)? else {
        let message = object!({"role": "assistant", "content": ""});
        return Ok(json(&loaded(&name, "message", message)));
    };
    let stream = turn.settings.stream;
    let turns = turn.begin(&app, served, &caller).await?;
    respond(turns, Lines::new(Kind::Chat, name), stream).await
}

/// What follows a text, or an answer to it.
pub async fn generate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let body = app.body(request, &caller).await?;
    let mut fields = Fields::parse(&body, caller.notes())?;
    let (name, served) = model(&mut fields, &app, &caller).await?;
    let lines = Lines::new(Kind::Generate, name.clone());
    match request::generate(fields, &app, &served)? {
        Generate::Load => Ok(json(&loaded(&name, "response", "".into()))),
        Generate::Answer(turn) => {
            let stream = turn.settings.stream;
            let turns = turn.begin(&app, served, &caller).await?;
            respond(turns, lines, stream).await
        }
        Generate::Continue { settings, prompt, suffix, max_tokens } => {
            let model = Arc::clone(&served);
            let grammar = settings.grammar.clone();
            let prepare = move || {
                let engine = model.handle.engine();
                let tokens = match suffix {
                    Some(suffix) => FillTokens::of(engine)?.prompt(engine, &prompt, &suffix)?,
                    None => engine.text_prompt(&prompt)?,
                };
                Ok::<_, ApiError>((tokens, model.constraints(grammar.as_ref(), 1)?))
            };
            let (prompt, constraints) = spawn_blocking(prepare).await??;
            let tokens = prompt.len();
            let request = kvant_engine::Request {
                prompt,
                sampling: settings.sampling,
                stop: settings.stop,
                max_tokens,
                ..kvant_engine::Request::default()
            };
            let options = JobOptions::of(caller.owner);
            let jobs = Jobs::generate(served, app.limits(), vec![request], constraints, options).await?;
            let turns = Turns::new(jobs, vec![tokens], None, Arc::clone(&caller.log));
            respond(turns, lines, settings.stream).await
        }
    }
}

/// The model that is meant, and what the client called it: clients compare.
async fn model(fields: &mut Fields, app: &App, caller: &Caller) -> Result<(String, Arc<Served>), ApiError> {
    let name = match (fields.text("model")?, fields.text("name")?) {
        (Some(name), _) | (None, Some(name)) => Some(name),
        (None, None) => None,
    };
    let served = app.model(name.as_deref(), caller).await?;
    Ok((name.unwrap_or_else(|| served.name.clone()), served))
}

async fn respond(turns: Turns, lines: Lines, stream: bool) -> Result<Response<Body>, ApiError> {
    match stream {
        true => Ok(turns.stream(lines)),
        false => {
            let turn = turns.whole("call").await?;
            Ok(json(&lines.whole(turn)))
        }
    }
}

/// The answer to a request that only wants a model to be there.
fn loaded(name: &str, field: &str, empty: Value) -> Value {
    object!({"model": name, "created_at": timestamp(), field: empty, "done": true, "done_reason": "load"})
}
