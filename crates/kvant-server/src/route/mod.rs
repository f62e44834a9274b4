//! What can be asked, and who may ask.

mod chat;
mod embeddings;
mod guard;
mod metrics;
mod state;
mod text;
mod tokens;

use crate::app::App;
use crate::error::ApiError;
use crate::page::page;
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Response, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use serde_json::Value;
use std::sync::Arc;

pub use guard::Owner;

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/health", get(state::health))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(state::models))
        .route("/v1/models/{*name}", get(state::model))
        .route("/v1/kv", get(state::kv))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/completions", post(text::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

async fn unknown(uri: Uri) -> ApiError {
    let message = format!("there is no {} here", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} cannot be asked for with {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// A response of JSON.
fn json(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Does work that takes a while away from those who wait for the network.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be prepared");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
