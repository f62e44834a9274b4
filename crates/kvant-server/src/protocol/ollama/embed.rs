//! `/api/embed`, and `/api/embeddings`, its older form.

use crate::app::App;
use crate::error::ApiError;
use crate::models::Served;
use crate::request::jobs::Jobs;
use crate::request::prompts::{Prompt, prompts};
use crate::route::{Answered, Asked, Caller, json};
use kvant_engine::Interrupt;
use serde_json::json as object;
use std::sync::Arc;
use std::time::Instant;

/// Texts as vectors.
pub async fn embed(Asked { app, caller, mut fields }: Asked) -> Answered {
    let start = Instant::now();
    let (name, served) = super::model(&mut fields, &app, &caller).await?;
    let inputs = prompts(&mut fields, "input")?;
    let most = app.limits().inputs;
    if inputs.is_empty() || inputs.len() > most {
        let message = format!("input has {} texts; it must have 1 to {most}", inputs.len());
        return Err(ApiError::field("input", message));
    }
    let dimensions = fields.integer("dimensions", 1..=u64::MAX)?;
    fields.ignore(&["truncate", "options"]);
    fields.end()?;
    let (vectors, tokens) = vectors(&app, served, inputs, &caller).await?;
    crate::route::check_dimensions(dimensions, &vectors)?;
    Ok(json(&object!({
        "model": name,
        "embeddings": vectors,
        "total_duration": u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

/// A text as a vector.
pub async fn embeddings(Asked { app, caller, mut fields }: Asked) -> Answered {
    let (_, served) = super::model(&mut fields, &app, &caller).await?;
    let prompt = fields.text("prompt")?.ok_or_else(|| ApiError::field("prompt", "prompt is required"))?;
    fields.ignore(&["options"]);
    fields.end()?;
    let (vectors, _) = vectors(&app, served, vec![Prompt::Text(prompt)], &caller).await?;
    Ok(json(&object!({"embedding": vectors.first()})))
}

async fn vectors(
    app: &App,
    served: Arc<Served>,
    inputs: Vec<Prompt>,
    caller: &Caller,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let model = Arc::clone(&served);
    let encode = move |_: &Interrupt| -> Result<Vec<Vec<u32>>, ApiError> {
        inputs.into_iter().map(|input| input.tokens(model.prompts())).collect()
    };
    let tokens = app.prepare(encode).await??;
    let count = tokens.len();
    Jobs::embed(served, app.limits(), tokens, None, caller).await?.vectors(count).await
}
