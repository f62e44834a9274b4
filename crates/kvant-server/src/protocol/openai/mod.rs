//! OpenAI's older words: chats and texts, whole and in pieces.

pub mod chat;
mod choice;
mod logprobs;
mod pieces;
pub mod text;

use crate::app::{App, now};
use crate::error::ApiError;
use crate::models::Served;
use crate::turn::{TurnUsage, Turns, UsageSum};
use choice::Choice;
use serde_json::{Value, json};
use std::sync::Arc;

/// What tells one build of this server from another.
const FINGERPRINT: &str = concat!("kvant-", env!("CARGO_PKG_VERSION"));

/// What answers are.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Turns of a conversation.
    Chat,
    /// Continuations of texts; where they are to be repeated, the texts and their tokens.
    Text {
        /// By prompt; none to repeat none.
        echo: Vec<(String, Vec<u32>)>,
    },
}

impl Form {
    fn id_prefix(&self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl",
            Self::Text { .. } => "cmpl",
        }
    }

    fn object(&self, is_piece: bool) -> &'static str {
        match (self, is_piece) {
            (Self::Chat, false) => "chat.completion",
            (Self::Chat, true) => "chat.completion.chunk",
            (Self::Text { .. }, _) => "text_completion",
        }
    }

    /// What comes before an answer's own text.
    fn echo(&self, prompt: usize) -> (&str, &[u32]) {
        match self {
            Self::Chat => ("", &[]),
            Self::Text { echo } => echo.get(prompt).map_or(("", &[]), |(text, tokens)| (text, tokens)),
        }
    }
}

/// The answers to one request, as they are written.
pub struct Reply {
    served: Arc<Served>,
    form: Form,
    id: String,
    created: u64,
    /// Answers to each prompt; those to one prompt follow each other.
    n: usize,
    usages: Vec<Option<TurnUsage>>,
    choices: Vec<Choice>,
}

impl Reply {
    /// Answers to `prompts` prompts, `n` to each.
    pub fn new(app: &App, served: &Arc<Served>, form: Form, prompts: usize, n: usize) -> Self {
        let id = app.fresh_id(form.id_prefix());
        let choice = |index: usize| Choice::new(form.echo(index / n).0, format!("{id}-{index}"));
        let choices = (0..prompts * n).map(choice).collect();
        let usages = vec![None; prompts * n];
        Self { served: Arc::clone(served), form, id, created: now(), n, usages, choices }
    }

    /// Waits for all of them.
    pub async fn whole(mut self, mut turns: Turns) -> Result<Value, ApiError> {
        while !turns.is_over() {
            let step = turns.next().await?;
            self.take(step);
        }
        let choices = std::mem::take(&mut self.choices);
        let choices = (0..).zip(choices).map(|(index, choice)| choice.into_whole(index, &self.form));
        let mut whole = self.frame(choices.collect(), false);
        whole["usage"] = self.usage();
        Ok(whole)
    }

    /// Adds what has come.
    fn take(&mut self, step: crate::turn::Step) {
        let tokenizer = self.served.handle.engine().tokenizer();
        let choice = &mut self.choices[step.index];
        if let Some(scored) = &step.prompt {
            choice.add_prompt(tokenizer, self.form.echo(step.index / self.n).1, scored);
        }
        choice.add(step.parts);
        if let Some((token, found)) = &step.logprobs {
            choice.add_logprobs(tokenizer, &self.form, *token, found);
        }
        if let Some((ending, usage)) = step.end {
            choice.end(ending.openai());
            self.usages[step.index] = Some(usage);
        }
    }

    /// An object around choices.
    fn frame(&self, choices: Vec<Value>, is_piece: bool) -> Value {
        json!({
            "id": self.id,
            "object": self.form.object(is_piece),
            "created": self.created,
            "model": self.served.name,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }

    /// What all answers took together.
    fn usage(&self) -> Value {
        let UsageSum { prompt, cached, generated, reasoning, accepted, rejected } =
            UsageSum::of(&self.usages, self.n);
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {
                "reasoning_tokens": reasoning,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": rejected,
            },
        })
    }
}
