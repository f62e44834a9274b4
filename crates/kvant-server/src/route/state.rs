//! What is served, whether it is well, and what the cache holds.

use super::{Caller, json};
use crate::app::App;
use crate::error::ApiError;
use crate::keys::Identity;
use crate::models::Served;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use kvant_engine::kv::{self, ContextCost};
use kvant_engine::scheduler::{SequenceView, View, Viewer};
use serde_json::{Value, json as object};
use std::sync::Arc;

pub async fn health(State(app): State<Arc<App>>) -> Result<Response<Body>, ApiError> {
    match app.models.loaded().iter().all(|served| served.handle.is_alive()) {
        true => Ok(json(&object!({"status": "ok"}))),
        false => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped")),
    }
}

/// What the first model that is loaded holds: all of it where everybody is one, or for the admin; else what is the caller's own.
pub async fn view_of(app: &App, caller: &Caller) -> Result<(Arc<Served>, View), ApiError> {
    let served = app.models.loaded().into_iter().next();
    let none = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no model is loaded");
    let served = served.ok_or_else(none)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let show = move |view| {
        // Whoever asked may have gone.
        let _ = sender.send(view);
    };
    let Identity { owner, tenant, is_admin } = caller.whose;
    match app.options.keys.is_open() || is_admin {
        true => served.handle.look(show),
        false => served.handle.look_as(Viewer { owner, tenant }, show),
    }
    let ended = |_| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped");
    let view = receiver.await.map_err(ended)?;
    Ok((served, view))
}

/// The cache at this moment.
pub async fn cache(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response<Body>, ApiError> {
    let (served, view) = view_of(&app, &caller).await?;
    let context = served.handle.context();
    let mut value = picture(&view);
    value["model"] = served.name.as_str().into();
    value["context"] = context.into();
    value["costs"] = view.costs.iter().map(cost).collect();
    value["waiting"] = view.waiting.into();
    value["generated_tokens"] = view.generated_tokens.into();
    Ok(json(&value))
}

fn cost(cost: &ContextCost) -> Value {
    object!({"tokens": cost.tokens, "bytes": cost.bytes, "f16_bytes": cost.f16_bytes})
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
        "stored_bytes": view.footprint.stored,
        "is_compressed": kv::is_compressed(view.footprint.stored as u64, view.f16),
        "bits_per_value": view.footprint.bits_per_value,
        "bits_total": view.footprint.bits_total,
        "f16_bytes": view.f16,
    })
}
