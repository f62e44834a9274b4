//! `/v1/rerank`: texts by how near they are to a question.
//!
//! A score is the cosine of two vectors, those of `/v1/embeddings`: between −1 and 1, the higher the nearer.

use super::{Answered, Asked, json};
use crate::error::ApiError;
use crate::request::jobs::Jobs;
use kvant_engine::Interrupt;
use kvant_engine::scheduler::Pooling;
use serde_json::{Value, json as object};
use std::sync::Arc;

pub async fn rerank(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let query = fields.text("query")?.ok_or_else(|| ApiError::field("query", "query is required"))?;
    // The older name is that of Hugging Face's servers.
    let given = match fields.array("documents")? {
        Some(given) => given,
        None => {
            fields.array("texts")?.ok_or_else(|| ApiError::field("documents", "documents is required"))?
        }
    };
    let most = app.limits().documents;
    if given.is_empty() || given.len() > most {
        let message = format!("documents has {} texts; it must have 1 to {most}", given.len());
        return Err(ApiError::field("documents", message));
    }
    let text = |item: &Value| item.as_str().or(item["text"].as_str()).map(str::to_owned);
    let documents: Option<Vec<String>> = given.iter().map(text).collect();
    let documents = documents
        .ok_or_else(|| ApiError::field("documents", "documents must be strings, or objects with a text"))?;
    let top = fields.integer("top_n", 1..=u64::MAX)?.map_or(usize::MAX, |top| top as usize);
    let repeats = fields.flag("return_documents")?.unwrap_or(true);
    fields.end()?;
    let (model, texts) = (Arc::clone(&served), documents.clone());
    let encode = move |_: &Interrupt| -> Result<Vec<Vec<u32>>, ApiError> {
        let all = std::iter::once(&query).chain(&texts);
        Ok(all.map(|text| model.prompts().text(text)).collect::<Result<_, _>>()?)
    };
    let tokens = app.prepare(encode).await??;
    let (count, name) = (tokens.len(), served.name.clone());
    let jobs = Jobs::embed(served, app.limits(), tokens, Pooling::Mean, &caller).await?;
    let (vectors, prompt) = jobs.vectors(count).await?;
    let Some((query, rest)) = vectors.split_first() else {
        return Err(ApiError::bad("documents is empty"));
    };
    // Vectors have length 1.
    let score =
        |vector: &Vec<f32>| vector.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut ranked: Vec<(usize, f64)> = rest.iter().map(score).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(top);
    let results = ranked.into_iter().map(|(index, score)| {
        let mut result = object!({"index": index, "relevance_score": score});
        if repeats {
            result["document"] = object!({"text": documents[index]});
        }
        result
    });
    Ok(json(&object!({
        "id": app.fresh_id("rerank"),
        "model": name,
        "object": "list",
        "results": results.collect::<Vec<Value>>(),
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    })))
}
