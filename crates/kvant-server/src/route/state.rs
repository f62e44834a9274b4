//! What is served, whether it is well, and what the cache holds.

use super::json;
use crate::app::App;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use kvant_engine::scheduler::{SequenceView, View};
use serde_json::{Value, json as object};
use std::sync::Arc;

pub async fn health(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    match app.handle.is_alive() {
        true => Ok(json(&object!({"status": "ok"}))),
        false => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended")),
    }
}

fn description(app: &App) -> Value {
    object!({
        "id": app.options.model,
        "object": "model",
        "created": app.started,
        "owned_by": "kvant",
        "max_model_len": app.handle.context(),
    })
}

pub async fn models(State(app): State<Arc<App>>) -> Response<Body> {
    json(&object!({"object": "list", "data": [description(&app)]}))
}

pub async fn model(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, ApiError> {
    let Path(name) = name.map_err(|e| ApiError::bad(format!("this is no name of a model: {e}")))?;
    app.check_model(Some(&name))?;
    Ok(json(&description(&app)))
}

pub async fn kv(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    app.handle.look(move |view| {
        // Whoever asked may have gone.
        let _ = sender.send(view);
    });
    let ended = |_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has ended");
    let view = receiver.await.map_err(ended)?;
    let counters = app.handle.counters();
    let mut value = picture(&view);
    value["context"] = app.handle.context().into();
    value["waiting"] = counters.waiting.into();
    value["generated_tokens"] = counters.generated_tokens.into();
    Ok(json(&value))
}

fn picture(view: &View) -> Value {
    let View { arena, cap, prefixes, disk, sinks, page, .. } = view;
    let disk = disk.map(|disk| {
        object!({
            "files": disk.files,
            "bytes": disk.bytes,
            "cap_bytes": disk.limit,
            "loaded_tokens": disk.loaded_tokens,
            "written_files": disk.written,
            "refused_files": disk.refused,
        })
    });
    object!({
        "sinks": sinks,
        "page_tokens": page,
        "arena": {
            "used_bytes": arena.used,
            "reserved_bytes": arena.reserved,
            "cap_bytes": cap,
            "pages": arena.pages,
        },
        "prefixes": {
            "count": prefixes.prefixes,
            "tokens": prefixes.tokens,
            "pages": prefixes.pages,
            "bytes": prefixes.bytes,
        },
        "disk": disk,
        "sequences": view.sequences.iter().map(sequence).collect::<Vec<Value>>(),
    })
}

fn sequence(view: &SequenceView) -> Value {
    object!({
        "id": view.id,
        "prompt_tokens": view.prompt,
        "cached_tokens": view.cached,
        "held_tokens": view.held,
        "generated_tokens": view.generated,
        "encoded_bytes": view.footprint.encoded,
        "exact_bytes": view.footprint.exact,
        "bits_per_value": view.footprint.bits_per_value,
        "bits_total": view.footprint.bits_total,
        "f16_bytes": view.f16,
    })
}
