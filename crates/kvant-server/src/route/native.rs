//! Answers as llama.cpp's own routes write them: `/completion` and `/infill`.

use crate::error::ApiError;
use crate::models::Served;
use crate::protocol::openai::logprobs;
use crate::route::json;
use crate::turn::{Ending, Scored, Step, StreamFormat, Turn, TurnUsage, Turns, sse};
use axum::body::Body;
use axum::http::Response;
use kvant_engine::reply::ReplyPart;
use kvant_engine::scheduler::Logprobs;
use serde_json::{Value, json as object};
use std::sync::Arc;
use std::time::Duration;

/// How an answer is written.
pub struct Native {
    served: Arc<Served>,
    /// Repeated at the end.
    prompt: Value,
    /// Ids of tokens are told too.
    with_tokens: bool,
    end: Option<(Ending, TurnUsage)>,
    /// Probabilities that no piece has told yet.
    scored: Vec<Value>,
}

impl Native {
    /// An answer to a prompt.
    pub fn new(served: Arc<Served>, prompt: Value, with_tokens: bool) -> Self {
        Self { served, prompt, with_tokens, end: None, scored: Vec::new() }
    }

    /// The whole answer, or a stream of it.
    pub async fn respond(self, turns: Turns, stream: bool) -> Result<Response<Body>, ApiError> {
        match stream {
            true => Ok(turns.stream(self)),
            false => {
                let turn = turns.whole("").await?;
                Ok(json(&self.whole(&turn)))
            }
        }
    }

    fn whole(&self, turn: &Turn) -> Value {
        let mut last = self.last(&turn.text, turn.ending.as_ref(), &turn.usage);
        if !turn.scored.is_empty() {
            let one = |scored: &Scored| self.probability(scored.token, &scored.found);
            last["completion_probabilities"] = turn.scored.iter().map(one).collect();
        }
        if self.with_tokens {
            last["tokens"] = turn.scored.iter().map(|scored| scored.token).collect();
        }
        last
    }

    fn probability(&self, token: u32, found: &Logprobs) -> Value {
        let mut entry = logprobs::of_chat(self.served.handle.engine().tokenizer(), token, found);
        entry["id"] = token.into();
        if let Some(top) = entry["top_logprobs"].as_array_mut() {
            top.iter_mut().zip(&found.top).for_each(|(entry, (token, _))| entry["id"] = (*token).into());
        }
        entry
    }

    /// The last object of an answer, or all of it.
    fn last(&self, text: &str, ending: Option<&Ending>, usage: &TurnUsage) -> Value {
        let (kind, word) = match ending {
            Some(Ending::Length) => ("limit", ""),
            Some(Ending::Stop(stop)) => ("word", stop.as_str()),
            _ => ("eos", ""),
        };
        object!({
            "index": 0,
            "content": text,
            "tokens": [],
            "stop": true,
            "model": self.served.name,
            "prompt": self.prompt,
            "stop_type": kind,
            "stopping_word": word,
            "tokens_predicted": usage.generated,
            "tokens_evaluated": usage.prompt,
            "tokens_cached": usage.cached,
            "truncated": false,
            "timings": timings(usage),
        })
    }
}

/// How long prompt and answer took.
fn timings(usage: &TurnUsage) -> Value {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (read, spoke) = (
        milliseconds(usage.first_token.saturating_sub(usage.waited)),
        milliseconds(usage.total.saturating_sub(usage.first_token)),
    );
    let each = |time: f64, count: usize| time / count.max(1) as f64;
    let rate = |time: f64, count: usize| if time > 0.0 { 1e3 * count as f64 / time } else { 0.0 };
    let prompt = usage.prompt.saturating_sub(usage.cached);
    object!({
        "cache_n": usage.cached,
        "prompt_n": prompt,
        "prompt_ms": read,
        "prompt_per_token_ms": each(read, prompt),
        "prompt_per_second": rate(read, prompt),
        "predicted_n": usage.generated,
        "predicted_ms": spoke,
        "predicted_per_token_ms": each(spoke, usage.generated),
        "predicted_per_second": rate(spoke, usage.generated),
    })
}

impl StreamFormat for Native {
    fn step(&mut self, step: Step, out: &mut String) {
        let scored = step.logprobs.as_ref().map(|(token, found)| self.probability(*token, found));
        self.scored.extend(scored);
        for part in step.parts {
            if let ReplyPart::Text(text) = part {
                let scored = std::mem::take(&mut self.scored);
                let mut piece = object!({"index": 0, "content": text, "tokens": [], "stop": false});
                if self.with_tokens {
                    piece["tokens"] = scored.iter().map(|entry| entry["id"].clone()).collect();
                }
                if !scored.is_empty() {
                    piece["completion_probabilities"] = scored.into();
                }
                sse(out, None, &piece);
            }
        }
        self.end = step.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut String) {
        if let Some((ending, usage)) = self.end.take() {
            sse(out, None, &self.last("", Some(&ending), &usage));
        }
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        sse(out, None, &error.body());
    }
}
