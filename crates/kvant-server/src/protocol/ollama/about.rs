//! What Ollama's clients ask before they ask a model.

use crate::app::{App, now};
use crate::models::{ModelStatus, Served};
use crate::route::{Answered, Asked, json};
use crate::time::rfc3339;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use kvant_engine::SAMPLING;
use serde_json::{Value, json as object};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The version of Ollama whose routes these are: clients refuse to talk to older ones.
const VERSION: &str = "0.13.0";

/// When a model goes that stays.
const NEVER: &str = "9999-12-31T23:59:59Z";

pub async fn version() -> Response<Body> {
    json(&object!({"version": VERSION}))
}

/// All models.
pub async fn tags(State(app): State<Arc<App>>) -> Response<Body> {
    let models: Vec<Value> = app.models.list().iter().map(|model| entry(&app, model)).collect();
    json(&object!({"models": models}))
}

/// Models that are loaded.
pub async fn ps(State(app): State<Arc<App>>) -> Response<Body> {
    let models = app.models.list().into_iter().filter_map(|model| {
        let mut entry = entry(&app, &model);
        let served = model.served?;
        let expires = model.expires.map(|left| rfc3339(now().saturating_add(left.as_secs())));
        entry["expires_at"] = expires.unwrap_or_else(|| NEVER.to_owned()).into();
        entry["size_vram"] = 0.into();
        entry["context_length"] = served.handle.context().into();
        Some(entry)
    });
    json(&object!({"models": models.collect::<Vec<Value>>()}))
}

/// What is known about a model.
pub async fn show(Asked { app, caller, mut fields }: Asked) -> Answered {
    let (_, served) = super::model(&mut fields, &app, &caller).await?;
    fields.ignore(&["verbose"]);
    fields.end()?;
    let engine = served.handle.engine();
    let architecture = engine.model().description().architecture.to_owned();
    let asked = SAMPLING.iter().filter(|setting| setting.request.is_some() && setting.makers.is_some());
    let shown = asked.map(|setting| format!("{} {}", setting.short_name(), (setting.get)(&served.sampling)));
    let parameters = shown.collect::<Vec<_>>().join("\n");
    let mut info = serde_json::Map::new();
    info.insert("general.architecture".into(), architecture.as_str().into());
    info.insert(format!("{architecture}.context_length"), served.handle.context().into());
    info.insert("tokenizer.ggml.vocab_size".into(), engine.model().vocabulary().into());
    Ok(json(&object!({
        "modelfile": "",
        "parameters": parameters,
        "template": engine.template().unwrap_or(""),
        "details": details(Some(&served)),
        "model_info": info,
        "capabilities": capabilities(&served),
        "modified_at": rfc3339(app.started),
    })))
}

/// What a model can do.
pub fn capabilities(served: &Served) -> Vec<&'static str> {
    let engine = served.handle.engine();
    let format = engine.chat_format();
    let mut all = vec!["completion", "embedding"];
    // Models whose template knows no tools are told of them in words.
    all.extend(engine.converses().then_some("tools"));
    all.extend(format.reasoning.map(|_| "thinking"));
    all.extend(crate::fill::FillTokens::of(engine).ok().map(|_| "insert"));
    all
}

fn details(served: Option<&Served>) -> Value {
    let family = served
        .map_or(String::new(), |served| served.handle.engine().model().description().architecture.to_owned());
    object!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": "",
        "quantization_level": "",
    })
}

fn entry(app: &App, model: &ModelStatus) -> Value {
    let name = &model.name;
    // Clients want a name for the model's bytes; its own name is what tells it from others here.
    let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    object!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(app.started),
        "size": model.bytes,
        "digest": digest,
        "details": details(model.served.as_deref()),
    })
}
