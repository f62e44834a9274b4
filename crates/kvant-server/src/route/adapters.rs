//! llama.cpp's `/lora-adapters`: which there are, and which requests run with that say nothing.

use super::{Answered, Caller, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json as object};
use std::sync::Arc;

/// All of them, with their scales.
pub async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response<Body>, ApiError> {
    Ok(json(&app.model(None, &caller).await?.adapters.list()))
}

/// Sets the scales that requests run with which say nothing. It concerns all who use the model.
pub async fn set(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request<Body>,
) -> Answered {
    caller.administers("setting the LoRA adapters of all requests")?;
    let served = app.model(None, &caller).await?;
    let body = app.body(request).await?;
    let items: Value = serde_json::from_slice(&body)
        .map_err(|e| ApiError::bad(format!("the body is not valid JSON: {e}")))?;
    let Value::Array(items) = items else {
        return Err(ApiError::bad(
            "the body must be an array of adapters, such as [{\"id\": 0, \"scale\": 0.5}]",
        ));
    };
    let fields = Fields::parse(b"{}", caller.notes())?;
    let mix = served.adapters.read(&fields, "adapters", items)?;
    served.adapters.set_usual(mix);
    Ok(json(&object!({"success": true})))
}
