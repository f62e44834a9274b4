//! What can be asked, and who may ask.

mod adapters;
mod asked;
mod auth;
mod completion;
mod embeddings;
mod infill;
mod metrics;
mod models;
mod native;
mod rerank;
mod state;
mod tokens;

use crate::app::App;
use crate::error::ApiError;
use crate::openapi::describe;
use crate::page::page;
use crate::protocol::{anthropic, ollama, openai, responses};
use axum::Router;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use axum::http::{Method, Response, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::Value;
use std::sync::Arc;

pub use asked::{Answered, Asked};
pub use auth::{Caller, HEAD_BYTES};
pub use embeddings::check_dimensions;

/// What is answered where.
pub fn routes() -> Vec<(&'static str, MethodRouter<Arc<App>>)> {
    vec![
        ("/", get(page)),
        ("/health", get(state::health)),
        ("/metrics", get(metrics::metrics)),
        ("/openapi.json", get(describe)),
        ("/v1/models", get(models::list)),
        ("/v1/models/{*name}", get(models::one)),
        ("/models/load", post(models::load)),
        ("/models/unload", post(models::unload)),
        ("/lora-adapters", get(adapters::list).post(adapters::set)),
        ("/v1/kv", get(state::cache)),
        ("/v1/chat/completions", post(openai::chat::completions)),
        ("/v1/completions", post(openai::text::completions)),
        ("/v1/responses", post(responses::create)),
        ("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete)),
        ("/v1/responses/{id}/input_items", get(responses::input_items)),
        ("/v1/messages", post(anthropic::messages)),
        ("/v1/messages/count_tokens", post(anthropic::count_tokens)),
        ("/v1/embeddings", post(embeddings::embeddings)),
        ("/v1/rerank", post(rerank::rerank)),
        ("/rerank", post(rerank::rerank)),
        ("/completion", post(completion::completion)),
        ("/props", get(completion::props)),
        ("/slots", get(completion::slots)),
        ("/infill", post(infill::infill)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/tokenizer_info", get(tokens::info)),
        ("/apply-template", post(tokens::apply_template)),
        ("/api/version", get(ollama::version)),
        ("/api/tags", get(ollama::tags)),
        ("/api/ps", get(ollama::ps)),
        ("/api/show", post(ollama::show)),
        ("/api/pull", post(ollama::pull)),
        ("/api/delete", delete(ollama::delete)),
        ("/api/copy", post(ollama::copy)),
        ("/api/chat", post(ollama::chat)),
        ("/api/generate", post(ollama::generate)),
        ("/api/embed", post(ollama::embed)),
        ("/api/embeddings", post(ollama::embeddings)),
    ]
}

/// All routes, for those who may ask.
pub fn router(app: Arc<App>) -> Router {
    routes()
        .into_iter()
        .fold(Router::new(), |router, (path, route)| router.route(path, route))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), auth::authorize))
        .with_state(app)
}

async fn unknown(uri: Uri) -> ApiError {
    let message = format!("no such route: {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not accept {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// A response of JSON.
pub fn json(value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
