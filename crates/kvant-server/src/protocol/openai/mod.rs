//! OpenAI's older words: chats and texts, whole and in pieces.

pub mod chat;
mod choice;
pub mod logprobs;
mod pieces;
pub mod text;

use crate::app::{App, now};
use crate::error::ApiError;
use crate::models::Served;
use crate::request::custom::CustomTools;
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
    /// Tools whose calls are written in their own way.
    custom: CustomTools,
    /// Of the answers to each prompt so many are given, the likeliest; all without it.
    best: Option<usize>,
    /// Probabilities are written, and not only counted.
    shows_logprobs: bool,
}

impl Reply {
    /// Answers to `prompts` prompts, `n` to each.
    pub fn new(app: &App, served: &Arc<Served>, form: Form, prompts: usize, n: usize) -> Self {
        let id = app.fresh_id(form.id_prefix());
        let choice = |index: usize| Choice::new(form.echo(index / n).0, format!("{id}-{index}"));
        let choices = (0..prompts * n).map(choice).collect();
        let usages = vec![None; prompts * n];
        Self {
            served: Arc::clone(served),
            form,
            id,
            created: now(),
            n,
            usages,
            choices,
            custom: CustomTools::default(),
            best: None,
            shows_logprobs: true,
        }
    }

    /// The same with calls of custom tools.
    pub fn with_custom(self, custom: CustomTools) -> Self {
        Self { custom, ..self }
    }

    /// The same, of which the `n` likeliest answers to each prompt are given. Probabilities are written where `shows_logprobs` says so.
    pub fn best(self, n: usize, shows_logprobs: bool) -> Self {
        Self { best: (n < self.n).then_some(n), shows_logprobs, ..self }
    }

    /// Waits for all of them.
    pub async fn whole(mut self, mut turns: Turns) -> Result<Value, ApiError> {
        while !turns.is_over() {
            let step = turns.next().await?;
            self.take(step);
        }
        let mut choices = std::mem::take(&mut self.choices);
        if let Some(best) = self.best {
            choices = likeliest(choices, self.n, best);
        }
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
        choice.add(step.parts, &self.custom);
        if let Some((token, found)) = &step.logprobs {
            choice.weigh(found);
            if self.shows_logprobs {
                choice.add_logprobs(tokenizer, &self.form, *token, found);
            }
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

/// The `best` likeliest by token of every `n` answers, the likeliest first.
fn likeliest(choices: Vec<Choice>, n: usize, best: usize) -> Vec<Choice> {
    let mut kept = Vec::new();
    let mut choices = choices.into_iter().peekable();
    while choices.peek().is_some() {
        let mut of_prompt: Vec<Choice> = choices.by_ref().take(n).collect();
        // A stable sort: of equals the first.
        of_prompt.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
        of_prompt.truncate(best);
        kept.extend(of_prompt);
    }
    kept
}
