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
use crate::openapi::describe;
use crate::page::page;
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Response, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};
use serde_json::Value;
use std::sync::Arc;

pub use guard::Owner;

/// What is answered where.
pub fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/", get(page)),
        ("/health", get(state::health)),
        ("/metrics", get(metrics::metrics)),
        ("/openapi.json", get(describe)),
        ("/v1/models", get(state::models)),
        ("/v1/models/{*name}", get(state::model)),
        ("/v1/kv", get(state::kv)),
        ("/v1/chat/completions", post(chat::completions)),
        ("/v1/completions", post(text::completions)),
        ("/v1/embeddings", post(embeddings::embeddings)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
    ]
}

/// All routes, guarded.
pub fn router(app: Arc<App>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, (path, route)| router.route(path, route))
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
pub fn json(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Does work that takes a while away from those who wait for the network.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    let failed = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request could not be prepared");
    tokio::task::spawn_blocking(work).await.map_err(failed)
}
