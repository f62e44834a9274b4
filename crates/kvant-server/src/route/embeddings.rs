//! `/v1/embeddings`: texts as vectors.

use super::{Owner, aside, json};
use crate::app::App;
use crate::ask::Answers;
use crate::ask::prompts::{Prompt, prompts};
use crate::base64::base64;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use kvant_engine::scheduler::{JobEvent, Pooling};
use serde_json::{Value, json as object};
use std::sync::Arc;

struct Ask {
    inputs: Vec<Prompt>,
    pooling: Pooling,
    /// The bytes of the numbers as text, which is what most clients want.
    is_packed: bool,
    dimensions: Option<u64>,
}

pub async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(Owner(owner)): Extension<Owner>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let body = app.body(request).await?;
    let Ask { inputs, pooling, is_packed, dimensions } = read(&body, &app)?;
    let engine = Arc::clone(&app);
    let tokens = move || -> Result<Vec<Vec<u32>>, ApiError> {
        inputs.into_iter().map(|input| input.tokens(engine.handle.engine())).collect()
    };
    let tokens = aside(tokens).await??;
    let mut vectors = vec![None; tokens.len()];
    let mut answers = Answers::embed(&app, tokens, pooling, owner).await?;
    let (mut left, mut prompt) = (vectors.len(), 0);
    while left > 0 {
        match answers.next().await? {
            (index, JobEvent::Embedded(vector)) => vectors[index] = Some(vector),
            (_, JobEvent::Finished { usage, .. }) => {
                prompt += usage.prompt;
                left -= 1;
            }
            (_, JobEvent::Failed(error)) => return Err((&error).into()),
            (_, JobEvent::Started { .. } | JobEvent::Token { .. }) => {}
        }
    }
    let vectors: Vec<Vec<f32>> = vectors.into_iter().flatten().collect();
    let own = vectors.first().map_or(0, Vec::len);
    if let Some(asked) = dimensions.filter(|&asked| asked != own as u64) {
        let message =
            format!("dimensions is {asked}, but this model's vectors have {own}, and cannot be cut");
        return Err(ApiError::field("dimensions", message).code("unsupported_parameter"));
    }
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        object!({"object": "embedding", "index": index, "embedding": written(vector, is_packed)})
    });
    Ok(json(&object!({
        "object": "list",
        "data": data.collect::<Vec<Value>>(),
        "model": app.options.model,
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    })))
}

fn written(vector: &[f32], is_packed: bool) -> Value {
    match is_packed {
        true => base64(&vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into(),
        false => vector.into(),
    }
}

fn read(body: &[u8], app: &App) -> Result<Ask, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.check_model(fields.text("model")?.as_deref())?;
    let inputs = prompts(&mut fields, "input")?;
    let most = app.limits().inputs;
    if inputs.is_empty() || inputs.len() > most {
        let message = format!("input has {} texts; it must have 1 to {most}", inputs.len());
        return Err(ApiError::field("input", message));
    }
    let pooling = match fields.text("pooling")?.as_deref() {
        None | Some("mean") => Pooling::Mean,
        Some("last") => Pooling::Last,
        Some(other) => {
            let message = format!("pooling is {other:?}; it must be mean or last");
            return Err(ApiError::field("pooling", message));
        }
    };
    let is_packed = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format is {other:?}; it must be float or base64");
            return Err(ApiError::field("encoding_format", message));
        }
    };
    let dimensions = fields.integer("dimensions", 1..=u64::MAX)?;
    fields.ignore(&["user"]);
    fields.end()?;
    Ok(Ask { inputs, pooling, is_packed, dimensions })
}
