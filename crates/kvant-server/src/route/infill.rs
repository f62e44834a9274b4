//! `/infill`: what belongs between two texts, in llama.cpp's words.

use super::native::Native;
use super::{Answered, Asked};
use crate::error::ApiError;
use crate::fill::FillTokens;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::sampling::Settings;
use crate::turn::Turns;
use kvant_engine::Interrupt;
use std::sync::Arc;

pub async fn infill(Asked { app, caller, mut fields }: Asked) -> Answered {
    let served = app.model_of(&mut fields, &caller).await?;
    let settings = Settings::read(&mut fields, &served, app.limits())?;
    let older = fields.tokens("max_tokens", 0)?;
    let max_tokens = fields.tokens("n_predict", 0)?.or(older);
    let required = |name: &str| ApiError::field(name, format!("{name} is required"));
    let before = fields.text("input_prefix")?.ok_or_else(|| required("input_prefix"))?;
    let after = fields.text("input_suffix")?.ok_or_else(|| required("input_suffix"))?;
    let begun = fields.text("prompt")?.unwrap_or_default();
    let mut files = Vec::new();
    for (index, item) in fields.array("input_extra")?.unwrap_or_default().into_iter().enumerate() {
        let mut file = fields.inside(&format!("input_extra[{index}]"), item)?;
        files.push((file.text("filename")?.unwrap_or_default(), file.text("text")?.unwrap_or_default()));
        file.end()?;
    }
    // Slots and the shape of the answer, which are the server's here.
    fields.ignore(&["id_slot", "n_indent", "t_max_prompt_ms", "t_max_predict_ms", "response_fields"]);
    fields.end()?;
    let (model, grammar) = (Arc::clone(&served), settings.grammar.clone());
    let prepare = move |interrupt: &Interrupt| {
        let engine = model.handle.engine();
        let mut tokens = FillTokens::of(engine)?.prompt_with(&model, &files, &before, &after)?;
        if !begun.is_empty() {
            let options = kvant_text::tokenizer::EncodeOptions::default();
            tokens.extend(model.prompts().encode(&begun, options).map_err(ApiError::from)?);
        }
        Ok::<_, ApiError>((tokens, model.constraints(grammar.as_ref(), 1, interrupt)?))
    };
    let (prompt, constraints) = app.prepare(prepare).await??;
    let tokens = prompt.len();
    let request = kvant_engine::Request {
        prompt,
        sampling: settings.sampling.clone(),
        stop: settings.stop.clone(),
        max_tokens,
        ..kvant_engine::Request::default()
    };
    let options = JobOptions { cache_prompt: settings.cache_prompt, ..JobOptions::of(&caller) };
    let native = Native::new(Arc::clone(&served), "".into(), false);
    let jobs = Jobs::generate(served, app.limits(), vec![request], constraints, options).await?;
    let turns = Turns::new(jobs, vec![tokens], None, Arc::clone(&caller.log));
    native.respond(turns, settings.stream).await
}
