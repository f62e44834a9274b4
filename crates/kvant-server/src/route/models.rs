//! `/v1/models`: what is served; `/models/load` and `/models/unload`, where models come and go.

use super::{Caller, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::ModelStatus;
use crate::protocol::anthropic::VERSION_HEADER;
use crate::protocol::ollama::capabilities;
use crate::time::rfc3339;
use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use serde_json::{Value, json as object};
use std::sync::Arc;

fn description(app: &App, status: &ModelStatus) -> Value {
    let served = status.served.as_deref();
    object!({
        "id": status.name,
        "object": "model",
        "created": app.started,
        "owned_by": "kvant",
        "max_model_len": status.context,
        "context_length": status.context,
        "capabilities": served.map(capabilities),
        "status": {"value": status.state},
    })
}

/// A model, and the same with each of its adapters, which vLLM lists as models whose parent it is.
fn descriptions(
    status: &ModelStatus,
    describe: impl Fn(&ModelStatus) -> Value,
) -> impl Iterator<Item = (String, Value)> {
    let own = (status.name.clone(), describe(status));
    let with = |name: &String| {
        let mut description = describe(&ModelStatus { name: name.clone(), ..status.clone() });
        if description["object"] == "model" {
            description["parent"] = status.name.as_str().into();
        }
        (name.clone(), description)
    };
    std::iter::once(own).chain(status.adapters.iter().map(with).collect::<Vec<_>>())
}

/// All that a client may name, in the words of the protocol that it speaks.
fn all(app: &App, headers: &HeaderMap) -> Vec<(String, Value)> {
    let list = app.models.list();
    match headers.contains_key(VERSION_HEADER) {
        true => {
            list.iter().flat_map(|status| descriptions(status, |of| anthropic_description(app, of))).collect()
        }
        false => list.iter().flat_map(|status| descriptions(status, |of| description(app, of))).collect(),
    }
}

/// The same in Anthropic's words.
fn anthropic_description(app: &App, status: &ModelStatus) -> Value {
    object!({
        "type": "model",
        "id": status.name,
        "display_name": status.name,
        "created_at": rfc3339(app.started),
    })
}

/// All of them, in the words of the protocol that the client speaks.
pub async fn list(State(app): State<Arc<App>>, headers: HeaderMap) -> Response<Body> {
    let data: Vec<Value> = all(&app, &headers).into_iter().map(|(_, description)| description).collect();
    if !headers.contains_key(VERSION_HEADER) {
        return json(&object!({"object": "list", "data": data}));
    }
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    json(&object!({"data": data, "has_more": false, "first_id": first, "last_id": last}))
}

/// The one of this name.
pub async fn one(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, ApiError> {
    let Path(name) = name.map_err(|e| ApiError::bad(format!("invalid name of a model: {e}")))?;
    let found = all(&app, &headers).into_iter().find(|(known, _)| *known == name);
    found.map(|(_, description)| json(&description)).ok_or_else(|| unknown(&name))
}

fn unknown(name: &str) -> ApiError {
    let message = format!("this server has no model {name:?}; GET /v1/models lists its models");
    ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
}

async fn named(app: &App, caller: &Caller, request: Request<Body>) -> Result<String, ApiError> {
    let mut fields = Fields::parse(&app.body(request).await?, caller.notes())?;
    let name = fields.text("model")?.ok_or_else(|| ApiError::field("model", "model is required"))?;
    fields.end()?;
    match app.models.list().iter().any(|status| status.name == name) {
        true => Ok(name),
        false => Err(unknown(&name)),
    }
}

/// Loads a model, and waits until it is there.
pub async fn load(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let name = named(&app, &caller, request).await?;
    app.model(Some(&name), &caller).await?;
    Ok(json(&object!({"success": true})))
}

/// Unloads a model that is not at work.
pub async fn unload(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    caller.administers("unloading a model")?;
    let name = named(&app, &caller, request).await?;
    let refused = |message| ApiError::new(StatusCode::CONFLICT, message);
    app.models.unload(&name).await.map_err(refused)?;
    Ok(json(&object!({"success": true})))
}
