//! What Ollama's clients ask before they ask a model.

use crate::app::{App, now};
use crate::models::{ModelFacts, ModelStatus, Served};
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
        let device = served.handle.engine().device();
        // Here it is what the model takes in memory: weights, and keys and values as far as they may grow.
        entry["size"] = model.bytes.into();
        entry["size_vram"] = if device == "cpu" { 0 } else { model.bytes }.into();
        entry["device"] = device.into();
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
    let status = app.models.list().into_iter().find(|status| status.name == served.model_name());
    let facts = status.and_then(|status| status.facts);
    let engine = served.handle.engine();
    let architecture = engine.model().description().architecture.to_owned();
    let asked = SAMPLING.iter().filter(|setting| setting.request.is_some() && setting.makers.is_some());
    let shown = asked.map(|setting| format!("{} {}", setting.short_name(), (setting.get)(&served.sampling)));
    let parameters = shown.collect::<Vec<_>>().join("\n");
    let mut info = serde_json::Map::new();
    info.insert("general.architecture".into(), architecture.as_str().into());
    info.insert(format!("{architecture}.context_length"), served.handle.context().into());
    if let Some(facts) = &facts {
        info.insert("general.parameter_count".into(), facts.parameters.into());
    }
    info.insert("tokenizer.ggml.vocab_size".into(), engine.model().vocabulary().into());
    Ok(json(&object!({
        "modelfile": "",
        "parameters": parameters,
        "template": engine.template().unwrap_or(""),
        "details": details(facts.as_ref(), Some(&served)),
        "model_info": info,
        "capabilities": capabilities(&served),
        "modified_at": rfc3339(app.started),
    })))
}

/// What a model can do.
pub fn capabilities(served: &Served) -> Vec<&'static str> {
    let engine = served.handle.engine();
    let format = engine.chat_format();
    if engine.model().is_encoder() {
        return if engine.is_cross_encoder() { vec!["rerank"] } else { vec!["embedding"] };
    }
    let mut all = vec!["completion", "embedding"];
    // Models whose template knows no tools are told of them in words.
    all.extend(engine.converses().then_some("tools"));
    all.extend(format.reasoning.map(|_| "thinking"));
    all.extend(crate::fill::FillTokens::of(engine).ok().map(|_| "insert"));
    all
}

/// What is known of a model's files and family.
fn details(facts: Option<&ModelFacts>, served: Option<&Served>) -> Value {
    let family = served.map(|served| served.handle.engine().model().description().architecture);
    let facts = facts.cloned().unwrap_or_default();
    let family = family.map_or(facts.family, str::to_owned);
    let format = if facts.format.is_empty() { "gguf".to_owned() } else { facts.format };
    let size = if facts.parameters > 0 { parameter_size(facts.parameters) } else { String::new() };
    object!({
        "parent_model": "",
        "format": format,
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": facts.quantization,
    })
}

/// A number of weights as Ollama writes it: `494.03M`, `7.6B`.
fn parameter_size(count: u64) -> String {
    match count as f64 {
        count if count >= 1e9 => format!("{:.1}B", count / 1e9),
        count if count >= 1e6 => format!("{:.2}M", count / 1e6),
        count if count >= 1e3 => format!("{:.2}K", count / 1e3),
        count => count.to_string(),
    }
}

/// A model as lists have it, with the bytes of its files.
fn entry(app: &App, model: &ModelStatus) -> Value {
    let name = &model.name;
    // Clients want a name for the model's bytes; its own name is what tells it from others here.
    let digest: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    object!({
        "name": name,
        "model": name,
        "modified_at": rfc3339(app.started),
        "size": model.facts.as_ref().map_or(0, |facts| facts.file_bytes),
        "digest": digest,
        "details": details(model.facts.as_ref(), model.served.as_deref()),
    })
}

#[cfg(test)]
mod tests {
    use super::parameter_size;

    #[test]
    fn numbers_of_weights_are_written_as_ollama_does() {
        let sizes = [494_032_768, 7_615_616_512, 68_600, 12].map(parameter_size);
        assert_eq!(sizes, ["494.03M", "7.6B", "68.60K", "12"]);
    }
}
