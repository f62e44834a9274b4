//! `/infill`: what belongs between two texts, in llama.cpp's words.

use super::{Answered, Asked, json};
use crate::error::ApiError;
use crate::fill::FillTokens;
use crate::request::jobs::{JobOptions, Jobs};
use crate::request::sampling::Settings;
use crate::turn::{Ending, Step, StreamFormat, TurnUsage, Turns, sse};
use kvant_engine::Interrupt;
use kvant_engine::reply::ReplyPart;
use serde_json::{Value, json as object};
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
    // A choice of samplers, slots and the shape of the answer, which are the server's here.
    fields.ignore(&[
        "samplers",
        "id_slot",
        "n_indent",
        "t_max_prompt_ms",
        "t_max_predict_ms",
        "response_fields",
    ]);
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
    let jobs = Jobs::generate(served, app.limits(), vec![request], constraints, options).await?;
    let turns = Turns::new(jobs, vec![tokens], None, Arc::clone(&caller.log));
    let model = turns.served().name.clone();
    match settings.stream {
        true => Ok(turns.stream(Pieces { model, end: None })),
        false => {
            let turn = turns.whole("").await?;
            Ok(json(&last(&model, &turn.text, turn.ending.as_ref(), &turn.usage)))
        }
    }
}

/// The last object of an answer, or all of it.
fn last(model: &str, text: &str, ending: Option<&Ending>, usage: &TurnUsage) -> Value {
    let (kind, word) = match ending {
        Some(Ending::Length) => ("limit", ""),
        Some(Ending::Stop(stop)) => ("word", stop.as_str()),
        _ => ("eos", ""),
    };
    object!({
        "content": text,
        "stop": true,
        "model": model,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_predicted": usage.generated,
        "tokens_evaluated": usage.prompt,
        "tokens_cached": usage.cached,
        "truncated": false,
    })
}

struct Pieces {
    model: String,
    end: Option<(Ending, TurnUsage)>,
}

impl StreamFormat for Pieces {
    fn step(&mut self, step: Step, out: &mut String) {
        for part in step.parts {
            if let ReplyPart::Text(text) = part {
                sse(out, None, &object!({"content": text, "stop": false}));
            }
        }
        self.end = step.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut String) {
        if let Some((ending, usage)) = self.end.take() {
            sse(out, None, &last(&self.model, "", Some(&ending), &usage));
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        sse(out, None, &error.body());
    }
}
