//! llama.cpp's `/completion`, `/props` and `/slots`.

use super::native::Native;
use super::state::view_of;
use super::{Answered, Asked, Caller, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::short;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::prompts::prompts;
use crate::request::sampling::Settings;
use crate::turn::Turns;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use kvant_engine::sampler::SettingValue;
use kvant_engine::scheduler::SequenceView;
use kvant_engine::{Interrupt, SAMPLING, SamplingParams};
use serde_json::{Map, Value, json as object};
use std::sync::Arc;

/// The most likely tokens that may be asked for.
const MOST_LIKELY: u64 = 20;

/// What follows a text as it is.
pub async fn completion(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let settings = Settings::read(&mut fields, &served, app.limits())?;
    let older = fields.tokens("max_tokens", 0)?;
    let max_tokens = fields.tokens("n_predict", 0)?.or(older);
    let with_tokens = fields.flag("return_tokens")?.unwrap_or(false);
    let likeliest = fields.integer("n_probs", 0..=MOST_LIKELY)?.filter(|count| *count > 0);
    let asked = fields.peek("prompt").cloned().unwrap_or_default();
    let mut prompts = prompts(&mut fields, "prompt")?;
    let prompt = match (prompts.pop(), prompts.is_empty()) {
        (Some(prompt), true) => prompt,
        _ => {
            let message = "prompt must be one text; /v1/completions answers several";
            return Err(ApiError::field("prompt", message));
        }
    };
    // The slots and the shape of the answer are the server's here.
    fields.ignore(&[
        "id_slot",
        "n_keep",
        "n_indent",
        "min_keep",
        "post_sampling_probs",
        "response_fields",
        "return_progress",
        "t_max_predict_ms",
        "timings_per_token",
    ]);
    fields.end()?;
    let (model, grammar) = (Arc::clone(&served), settings.grammar.clone());
    let prepare = move |interrupt: &Interrupt| {
        let tokens = prompt.tokens(model.prompts())?;
        Ok::<_, ApiError>((tokens, model.constraints(grammar.as_ref(), 1, interrupt)?))
    };
    let (prompt, constraints) = app.prepare(prepare).await??;
    let tokens = prompt.len();
    let request = kvant_engine::Request {
        prompt,
        sampling: settings.sampling.clone(),
        stop: settings.stop.clone(),
        max_tokens,
        ..kvant_engine::Request::default()
    };
    let logprobs = likeliest.map(|count| count as usize).or(with_tokens.then_some(0));
    let options = JobOptions { logprobs, cache_prompt: settings.cache_prompt, ..JobOptions::of(&caller) };
    let native = Native::new(Arc::clone(&served), asked, with_tokens);
    let jobs = Jobs::generate(served, app.limits(), vec![request], constraints, options).await?;
    let turns = Turns::new(jobs, vec![tokens], None, Arc::clone(&caller.log));
    native.respond(turns, settings.stream).await
}

/// What is served, and with which settings.
pub async fn props(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response<Body>, ApiError> {
    let served = app.model(None, &caller).await?;
    let engine = served.handle.engine();
    let tokenizer = engine.tokenizer();
    let name = |id: Option<u32>| id.and_then(|id| tokenizer.token_name(id));
    Ok(json(&object!({
        "default_generation_settings": {"n_ctx": served.handle.context(), "params": settings(&served.sampling)},
        "total_slots": served.handle.most_running(),
        "model_alias": served.name,
        "model_path": served.name,
        "modalities": {"vision": false, "audio": false},
        "chat_template": engine.template().unwrap_or(""),
        "bos_token": name(tokenizer.bos()),
        "eos_token": name(tokenizer.eos()),
        "build_info": concat!("kvant-", env!("CARGO_PKG_VERSION")),
    })))
}

/// The sampler's settings by their names.
fn settings(sampling: &SamplingParams) -> Map<String, Value> {
    let value = |value: SettingValue| match value {
        SettingValue::Number(number) => short(number),
        SettingValue::Count(count) => count.into(),
        SettingValue::Window(window) => window.map_or_else(|| Value::from(-1), Value::from),
        SettingValue::Seed(seed) => seed.map_or_else(|| Value::from(-1), Value::from),
        SettingValue::Flag(on) => on.into(),
        other => other.to_string().into(),
    };
    SAMPLING.iter().map(|setting| (setting.short_name().to_owned(), value((setting.get)(sampling)))).collect()
}

/// A slot for each answer that may be worked on: the caller's own, and as many idle ones as are left. What others do is theirs.
pub async fn slots(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response<Body>, ApiError> {
    let (served, view) = view_of(&app, &caller).await?;
    let context = served.handle.context();
    let busy = view.sequences.iter().map(|sequence| slot(Some(sequence), context));
    let idle = served.handle.most_running().saturating_sub(view.sequences.len());
    let all = busy.chain((0..idle).map(|_| slot(None, context)));
    let numbered = all.enumerate().map(|(number, mut slot)| {
        slot["id"] = number.into();
        slot
    });
    Ok(json(&numbered.collect()))
}

fn slot(sequence: Option<&SequenceView>, context: usize) -> Value {
    object!({
        "id": 0,
        "id_task": sequence.map_or(Value::from(-1), |sequence| sequence.id.into()),
        "n_ctx": context,
        "is_processing": sequence.is_some(),
        "n_prompt_tokens": sequence.map_or(0, |sequence| sequence.prompt),
        "n_prompt_tokens_cache": sequence.map_or(0, |sequence| sequence.cached),
        "n_decoded": sequence.map_or(0, |sequence| sequence.generated),
    })
}
