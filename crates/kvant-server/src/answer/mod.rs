//! From events to the objects that clients know: whole answers here, pieces of them in [`stream`].

mod choice;
mod logprobs;
pub mod stream;

use crate::app::{App, now};
use crate::ask::Answers;
use crate::error::ApiError;
use choice::Choice;
use kvant_engine::Finish;
use kvant_engine::reply::ReplyParser;
use kvant_engine::scheduler::{JobEvent, JobUsage, Logprobs};
use serde_json::{Value, json};
use std::sync::Arc;

/// What tells one build of this server from another.
const FINGERPRINT: &str = concat!("kvant-", env!("CARGO_PKG_VERSION"));

/// What answers are.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// Turns of a conversation.
    Chat,
    /// Continuations of texts; where they are to be repeated, the texts.
    Text {
        /// By prompt; none to repeat none.
        echo: Vec<String>,
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
    fn echo(&self, prompt: usize) -> &str {
        match self {
            Self::Chat => "",
            Self::Text { echo } => echo.get(prompt).map_or("", String::as_str),
        }
    }
}

/// The answers to one request on their way.
pub struct Reply {
    app: Arc<App>,
    answers: Answers,
    form: Form,
    id: String,
    created: u64,
    /// Answers to each prompt; those to one prompt follow each other.
    n: usize,
    usages: Vec<Option<JobUsage>>,
    /// Splits turns of a conversation.
    parser: Option<ReplyParser>,
}

impl Reply {
    /// Answers to `prompts` prompts, `n` to each.
    pub fn new(app: Arc<App>, answers: Answers, form: Form, prompts: usize, n: usize) -> Self {
        let id = app.fresh_id(form.id_prefix());
        let usages = vec![None; prompts * n];
        Self { app, answers, form, id, created: now(), n, usages, parser: None }
    }

    /// The same, split into reasoning, answer and tool calls.
    pub fn split_by(self, parser: ReplyParser) -> Self {
        Self { parser: Some(parser), ..self }
    }

    /// An answer of which nothing is there yet.
    fn choice(&self, index: usize) -> Choice {
        match &self.parser {
            Some(parser) => Choice::split_by(parser.clone(), format!("{}-{index}", self.id)),
            None => Choice::new(self.form.echo(index / self.n)),
        }
    }

    /// Waits for all of them.
    pub async fn whole(mut self) -> Result<Value, ApiError> {
        let mut choices: Vec<Choice> = (0..self.usages.len()).map(|index| self.choice(index)).collect();
        while self.usages.iter().any(Option::is_none) {
            let (index, event) = self.answers.next().await?;
            let choice = &mut choices[index];
            match event {
                JobEvent::Started { .. } | JobEvent::Embedded(_) => {}
                JobEvent::Token { token, text, logprobs } => self.add(choice, token, &text, logprobs),
                JobEvent::Finished { text, finish, usage } => {
                    choice.end(&text, finish_reason(&finish));
                    self.usages[index] = Some(usage);
                }
                JobEvent::Failed(error) => return Err((&error).into()),
            }
        }
        let choices = (0..).zip(choices).map(|(index, choice)| choice.into_whole(index, &self.form));
        let mut whole = self.frame(choices.collect(), false);
        whole["usage"] = self.usage();
        Ok(whole)
    }

    fn add(&self, choice: &mut Choice, token: u32, text: &str, logprobs: Option<Logprobs>) {
        choice.add(self.app.handle.engine().tokenizer(), &self.form, token, text, logprobs);
    }

    /// An object around choices.
    fn frame(&self, choices: Vec<Value>, is_piece: bool) -> Value {
        json!({
            "id": self.id,
            "object": self.form.object(is_piece),
            "created": self.created,
            "model": self.app.options.model,
            "system_fingerprint": FINGERPRINT,
            "choices": choices,
        })
    }

    /// What all answers took together. A prompt counts once, however many answers it gets.
    fn usage(&self) -> Value {
        let sum = |usages: &mut dyn Iterator<Item = &Option<JobUsage>>, part: fn(&JobUsage) -> usize| {
            usages.flatten().map(part).sum::<usize>()
        };
        let prompt = sum(&mut self.usages.iter().step_by(self.n), |usage| usage.prompt);
        let cached = sum(&mut self.usages.iter().step_by(self.n), |usage| usage.cached);
        let generated = sum(&mut self.usages.iter(), |usage| usage.generated);
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::EndOfText(_) | Finish::Stop(_) => "stop",
        Finish::MaxTokens | Finish::ContextFull | Finish::Cancelled => "length",
    }
}
