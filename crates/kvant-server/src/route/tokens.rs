//! `/tokenize` and `/detokenize`.

use super::{aside, json};
use crate::app::App;
use crate::ask::messages::messages;
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use kvant_model::tokenizer::EncodeOptions;
use serde_json::{Value, json as object};
use std::sync::Arc;

/// What a request asks of this model.
async fn asked(app: &App, request: Request<Body>) -> Result<Fields, ApiError> {
    let mut fields = Fields::parse(&app.body(request).await?)?;
    app.check_model(fields.text("model")?.as_deref())?;
    Ok(fields)
}

/// The tokens of a text, or of a conversation as the model reads it.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut fields = asked(&app, request).await?;
    let context = app.handle.context();
    let tokens = match fields.text("content")? {
        Some(text) => {
            let add_special = fields.flag("add_special")?.unwrap_or(true);
            let parse_special = fields.flag("parse_special")?.unwrap_or(false);
            fields.end()?;
            let options = EncodeOptions { add_special, parse_special };
            let encode = move || app.handle.engine().tokenizer().encode(&text, options);
            aside(encode).await?.map_err(|e| ApiError::field("content", e.to_string()))?
        }
        None => {
            let messages = messages(&mut fields, app.limits().messages)
                .map_err(|_| ApiError::bad("a text as content is required, or a conversation as messages"))?;
            fields.end()?;
            aside(move || app.handle.engine().chat_prompt(&messages)).await??
        }
    };
    Ok(json(&object!({"tokens": tokens, "count": tokens.len(), "max_model_len": context})))
}

/// The text of tokens.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let mut fields = asked(&app, request).await?;
    let value = fields.take("tokens").unwrap_or(Value::Null);
    let ids = value.as_array().and_then(|ids| ids.iter().map(whole).collect::<Option<Vec<u32>>>());
    let ids = ids.ok_or_else(|| fields.wrong("tokens", "an array of token ids", &value))?;
    fields.end()?;
    let text = aside(move || app.handle.engine().tokenizer().decode(&ids)).await?;
    let text = text.map_err(|e| ApiError::field("tokens", e.to_string()))?;
    Ok(json(&object!({"content": text})))
}
