//! `/v1/rerank`: texts by how well they answer a question.
//!
//! A cross-encoder (bge-reranker) reads question and text together and scores the pair, from 0 to 1. A model that was made to judge
//! documents (Qwen3-Reranker) is asked about each: the score is how likely its "yes" is, from 0 to 1. Of other models a score is the
//! cosine of two vectors, those of `/v1/embeddings`, between −1 and 1. `scoring` in the answer says which it is, and in a request asks
//! for one of them.

use super::{Answered, Asked, json};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::models::Served;
use crate::request::jobs::Jobs;
use crate::route::Caller;
use kvant_engine::scheduler::Score;
use kvant_engine::{Interrupt, Judge};
use serde_json::{Value, json as object};
use std::sync::Arc;

/// How texts are scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scoring {
    /// By the class that a cross-encoder has for pairs.
    CrossEncoder,
    /// By how likely a model says "yes" about each.
    YesNo,
    /// By the cosine of vectors.
    Cosine,
}

impl Scoring {
    fn name(self) -> &'static str {
        match self {
            Self::CrossEncoder => "cross_encoder",
            Self::YesNo => "yes_no",
            Self::Cosine => "cosine",
        }
    }
}

/// What is asked.
struct RerankRequest {
    query: String,
    documents: Vec<String>,
    instruction: Option<String>,
    scoring: Scoring,
    top: usize,
    repeats: bool,
}

impl RerankRequest {
    fn read(mut fields: Fields, app: &App, served: &Served, caller: &Caller) -> Result<Self, ApiError> {
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
        let documents = documents.ok_or_else(|| {
            ApiError::field("documents", "documents must be strings, or objects with a text")
        })?;
        let top = fields.integer("top_n", 1..=u64::MAX)?.map_or(usize::MAX, |top| top as usize);
        let repeats = fields.flag("return_documents")?.unwrap_or(true);
        let scoring = scoring(&mut fields, served)?;
        let instruction = fields.text("instruction")?;
        if instruction.is_some() && scoring != Scoring::YesNo {
            // Vectors and pairs are made without one.
            caller.notes().ignored("instruction".into());
        }
        fields.end()?;
        Ok(Self { query, documents, instruction, scoring, top, repeats })
    }
}

/// How this model scores texts, unless the request says how.
fn scoring(fields: &mut Fields, served: &Served) -> Result<Scoring, ApiError> {
    let engine = served.handle.engine();
    let asked = fields.text("scoring")?;
    if engine.is_cross_encoder() {
        return match asked.as_deref() {
            None | Some("cross_encoder") => Ok(Scoring::CrossEncoder),
            Some(other) => {
                let message = format!(
                    "scoring is {other:?}, but this model is a cross-encoder: it must be cross_encoder"
                );
                Err(ApiError::field("scoring", message).code("unsupported_parameter"))
            }
        };
    }
    match (asked.as_deref(), engine.judge()) {
        (None, Some(judge)) if judge.is_declared() => Ok(Scoring::YesNo),
        (None | Some("cosine"), _) => Ok(Scoring::Cosine),
        (Some("yes_no"), Some(_)) => Ok(Scoring::YesNo),
        (Some("yes_no"), None) => {
            let message = "scoring is \"yes_no\", but this model does not know the words of such a conversation (ChatML)";
            Err(ApiError::field("scoring", message).code("unsupported_parameter"))
        }
        (Some("cross_encoder"), _) => {
            let message = "scoring is \"cross_encoder\", but this model is none";
            Err(ApiError::field("scoring", message).code("unsupported_parameter"))
        }
        (Some(other), _) => {
            let message = format!("scoring is {other:?}; it must be cross_encoder, yes_no or cosine");
            Err(ApiError::field("scoring", message))
        }
    }
}

pub async fn rerank(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let request = Arc::new(RerankRequest::read(fields, &app, &served, &caller)?);
    let name = served.name.clone();
    let (scores, prompt) = match (request.scoring, served.handle.engine().judge().cloned()) {
        (Scoring::CrossEncoder, _) => compared(&app, &caller, served, &request).await?,
        (Scoring::YesNo, Some(judge)) => judged(&app, &caller, served, judge, &request).await?,
        _ => cosines(&app, &caller, served, &request).await?,
    };
    let mut ranked: Vec<(usize, f64)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(request.top);
    let results = ranked.into_iter().map(|(index, score)| {
        let mut result = object!({"index": index, "relevance_score": score});
        if request.repeats {
            result["document"] = object!({"text": request.documents[index]});
        }
        result
    });
    Ok(json(&object!({
        "id": app.fresh_id("rerank"),
        "model": name,
        "object": "list",
        "scoring": request.scoring.name(),
        "results": results.collect::<Vec<Value>>(),
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt},
    })))
}

/// What a cross-encoder makes of each document beside the query, and the tokens that it read.
async fn compared(
    app: &App,
    caller: &Caller,
    served: Arc<Served>,
    request: &Arc<RerankRequest>,
) -> Result<(Vec<f64>, usize), ApiError> {
    let (model, asked) = (Arc::clone(&served), Arc::clone(request));
    let encode = move |_: &Interrupt| -> Result<Vec<(Vec<u32>, Score)>, ApiError> {
        let pair = |text: &String| {
            let (ids, second) = model.prompts().pair(&asked.query, text)?;
            Ok((ids, Score::Classes { second }))
        };
        asked.documents.iter().map(pair).collect()
    };
    let pairs = app.prepare(encode).await??;
    let count = pairs.len();
    let (found, prompt) = Jobs::score(served, app.limits(), pairs, caller).await?.vectors(count).await?;
    let score = |logits: &Vec<f32>| logits.first().map(|&logit| 1.0 / (1.0 + (-f64::from(logit)).exp()));
    let scores: Option<Vec<f64>> = found.iter().map(score).collect();
    Ok((scores.ok_or_else(|| ApiError::bad("the model gave no score"))?, prompt))
}

/// How likely a judge says "yes" about each document, and the tokens that it read.
async fn judged(
    app: &App,
    caller: &Caller,
    served: Arc<Served>,
    judge: Judge,
    request: &Arc<RerankRequest>,
) -> Result<(Vec<f64>, usize), ApiError> {
    let (model, asked, of) = (Arc::clone(&served), Arc::clone(request), judge.clone());
    let encode = move |_: &Interrupt| -> Result<Vec<(Vec<u32>, Score)>, ApiError> {
        let one = |text: &String| {
            let prompt = model.prompts().judged(&of, asked.instruction.as_deref(), &asked.query, text)?;
            Ok((prompt, Score::Tokens(of.tokens().to_vec())))
        };
        asked.documents.iter().map(one).collect()
    };
    let prompts = app.prepare(encode).await??;
    let count = prompts.len();
    let jobs = Jobs::score(served, app.limits(), prompts, caller).await?;
    let (found, prompt) = jobs.vectors(count).await?;
    let score = |logits: &Vec<f32>| <[f32; 2]>::try_from(logits.as_slice()).map(|logits| judge.score(logits));
    let scores: Result<Vec<f64>, _> = found.iter().map(score).collect();
    let scores = scores.map_err(|_| ApiError::bad("the model gave no score"))?;
    Ok((scores, prompt))
}

/// The cosines of the query's vector and each document's, and the tokens that they have.
async fn cosines(
    app: &App,
    caller: &Caller,
    served: Arc<Served>,
    request: &Arc<RerankRequest>,
) -> Result<(Vec<f64>, usize), ApiError> {
    let (model, asked) = (Arc::clone(&served), Arc::clone(request));
    let encode = move |_: &Interrupt| -> Result<Vec<Vec<u32>>, ApiError> {
        let all = std::iter::once(&asked.query).chain(&asked.documents);
        Ok(all.map(|text| model.prompts().text(text)).collect::<Result<_, _>>()?)
    };
    let tokens = app.prepare(encode).await??;
    let count = tokens.len();
    let jobs = Jobs::embed(served, app.limits(), tokens, None, caller).await?;
    let (vectors, prompt) = jobs.vectors(count).await?;
    let Some((query, rest)) = vectors.split_first() else {
        return Err(ApiError::bad("there is nothing to rank"));
    };
    // Vectors have length 1.
    let score =
        |vector: &Vec<f32>| vector.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    Ok((rest.iter().map(score).collect(), prompt))
}
