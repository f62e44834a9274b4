//! `/v1/embeddings`: texts as vectors.

use super::{Answered, Asked, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::request::jobs::Jobs;
use crate::request::prompts::{Prompt, prompts};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use kvant_engine::Interrupt;
use kvant_engine::scheduler::Pooling;
use serde_json::{Value, json as object};
use std::sync::Arc;

struct EmbeddingRequest {
    inputs: Vec<Prompt>,
    /// As the model's files say, where there is none.
    pooling: Option<Pooling>,
    /// The bytes of the numbers as text, which is what most clients want.
    is_packed: bool,
    dimensions: Option<u64>,
}

pub async fn embeddings(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let EmbeddingRequest { inputs, pooling, is_packed, dimensions } = read(fields, &app)?;
    let model = Arc::clone(&served);
    let tokens = move |_: &Interrupt| -> Result<Vec<Vec<u32>>, ApiError> {
        inputs.into_iter().map(|input| input.tokens(model.prompts())).collect()
    };
    let tokens = app.prepare(tokens).await??;
    let (count, name) = (tokens.len(), served.name.clone());
    let jobs = Jobs::embed(served, app.limits(), tokens, pooling, &caller).await?;
    let (vectors, prompt) = jobs.vectors(count).await?;
    check_dimensions(dimensions, &vectors)?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        object!({"object": "embedding", "index": index, "embedding": written(vector, is_packed)})
    });
    Ok(json(&object!({
        "object": "list",
        "data": data.collect::<Vec<Value>>(),
        "model": name,
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    })))
}

fn written(vector: &[f32], is_packed: bool) -> Value {
    match is_packed {
        true => {
            BASE64_STANDARD.encode(vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).into()
        }
        false => vector.into(),
    }
}

/// Refuses vectors of another length than the model's.
pub fn check_dimensions(asked: Option<u64>, vectors: &[Vec<f32>]) -> Result<(), ApiError> {
    let own = vectors.first().map_or(0, Vec::len);
    match asked.filter(|&asked| asked != own as u64) {
        None => Ok(()),
        Some(asked) => {
            let message = format!(
                "dimensions is {asked}, but this model's vectors have {own} and cannot be shortened; leave it out"
            );
            Err(ApiError::field("dimensions", message).code("unsupported_parameter"))
        }
    }
}

fn read(mut fields: Fields, app: &App) -> Result<EmbeddingRequest, ApiError> {
    let inputs = prompts(&mut fields, "input")?;
    let most = app.limits().inputs;
    if inputs.is_empty() || inputs.len() > most {
        let message = format!("input has {} texts; it must have 1 to {most}", inputs.len());
        return Err(ApiError::field("input", message));
    }
    let pooling = match fields.text("pooling")?.as_deref() {
        None => None,
        Some(name) => Some(Pooling::named(name).ok_or_else(|| {
            ApiError::field("pooling", format!("pooling is {name:?}; it must be mean, cls or last"))
        })?),
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
    Ok(EmbeddingRequest { inputs, pooling, is_packed, dimensions })
}
