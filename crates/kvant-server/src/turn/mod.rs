//! The next turn of a conversation, asked for and answered: what every protocol is translated into, and back from.
//!
//! A protocol reads its own words into a [`TurnRequest`], begins it, and writes the [`Step`]s that come back in its own words: as
//! they come, with a [`StreamFormat`], or all at once from [`Turns::whole`]. What the engine is asked for is written here once.

mod begin;
mod stream;
mod usage;
mod volatile;
mod whole;

pub use begin::TurnRequest;
pub use stream::{StreamFormat, sse};
pub use usage::{TurnUsage, UsageSum};
use volatile::strip_volatile;
pub use whole::{Scored, Turn};

use crate::error::ApiError;
use crate::models::Served;
use crate::request::jobs::Jobs;
use crate::request_log::RequestLog;
use kvant_engine::Finish;
use kvant_engine::reply::{ReplyParser, ReplyPart};
use kvant_engine::scheduler::{JobEvent, Logprobs};
use kvant_engine::tools::ToolCall;
use std::sync::Arc;
use usage::ReasoningCount;

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// The model was done.
    Done,
    /// This stop string came up.
    Stop(String),
    /// As many tokens as were allowed, or as the context holds.
    Length,
    /// It wants something called.
    Calls,
}

impl Ending {
    /// In OpenAI's words.
    pub fn openai(&self) -> &'static str {
        match self {
            Self::Done | Self::Stop(_) => "stop",
            Self::Length => "length",
            Self::Calls => "tool_calls",
        }
    }
}

/// What came of an answer since the last step.
#[derive(Debug, Default)]
pub struct Step {
    /// Which of the answers.
    pub index: usize,
    /// It has left the queue; so many tokens of its prompt were in the cache.
    pub started: Option<usize>,
    /// Probabilities of the prompt's tokens.
    pub prompt: Option<Vec<Logprobs>>,
    /// Reasoning, text and calls, in order.
    pub parts: Vec<ReplyPart>,
    /// The token that was chosen, where probabilities are wanted.
    pub logprobs: Option<(u32, Logprobs)>,
    /// It is over.
    pub end: Option<(Ending, TurnUsage)>,
}

/// Answers under way.
pub struct Turns {
    jobs: Jobs,
    answers: Vec<RunningAnswer>,
    /// Tokens of each prompt.
    pub prompt_tokens: Vec<usize>,
    log: Arc<RequestLog>,
}

/// One of them.
struct RunningAnswer {
    /// Splits a turn; none for a continuation of text.
    parser: Option<ReplyParser>,
    called: bool,
    is_over: bool,
    reasoning: ReasoningCount,
}

impl Turns {
    /// The answers to `jobs`, each split by its own copy of the parser.
    pub fn new(
        jobs: Jobs,
        prompt_tokens: Vec<usize>,
        parser: Option<ReplyParser>,
        log: Arc<RequestLog>,
    ) -> Self {
        log.answers(prompt_tokens.len());
        let answer = |_: &usize| RunningAnswer {
            parser: parser.clone(),
            called: false,
            is_over: false,
            reasoning: ReasoningCount::default(),
        };
        let answers = prompt_tokens.iter().map(answer).collect();
        Self { jobs, answers, prompt_tokens, log }
    }

    /// The model that answers.
    pub fn served(&self) -> &Arc<Served> {
        self.jobs.served()
    }

    /// True when all are over.
    pub fn is_over(&self) -> bool {
        self.answers.iter().all(|answer| answer.is_over)
    }

    /// What comes next.
    pub async fn next(&mut self) -> Result<Step, ApiError> {
        let (index, event) = match self.jobs.next().await {
            Ok(event) => event,
            Err(error) => return Err(self.failed(error)),
        };
        self.step(index, event)
    }

    /// The same, if it is there already.
    pub fn try_next(&mut self) -> Option<Result<Step, ApiError>> {
        let (index, event) = self.jobs.try_next()?;
        Some(self.step(index, event))
    }

    fn failed(&self, error: ApiError) -> ApiError {
        self.log.failed(&error);
        error
    }

    fn step(&mut self, index: usize, event: JobEvent) -> Result<Step, ApiError> {
        let mut step = Step { index, ..Step::default() };
        match event {
            JobEvent::Started { cached, .. } => step.started = Some(cached),
            JobEvent::Prompt(scored) => step.prompt = Some(scored),
            JobEvent::Token { token, text, logprobs } => {
                self.log.token();
                let answer = &mut self.answers[index];
                step.parts = answer.say(&text);
                answer.reasoning.token(&step.parts);
                step.logprobs = logprobs.map(|found| (token, found));
            }
            JobEvent::Finished { text, finish, usage } => {
                let answer = &mut self.answers[index];
                step.parts = answer.say(&text);
                step.parts.extend(answer.finish());
                let usage = TurnUsage::of(usage, answer.reasoning.end(&step.parts));
                let ending = match finish {
                    Finish::EndOfText(_) | Finish::Stop(_) if answer.called => Ending::Calls,
                    Finish::EndOfText(_) => Ending::Done,
                    Finish::Stop(stop) => Ending::Stop(stop),
                    Finish::MaxTokens | Finish::ContextFull | Finish::Cancelled => Ending::Length,
                };
                answer.is_over = true;
                self.log.finished(usage.prompt, usage.cached, usage.generated, ending.openai());
                step.end = Some((ending, usage));
            }
            JobEvent::Failed(error) => return Err(self.failed((&error).into())),
            JobEvent::Embedded(_) | JobEvent::Scored(_) => {}
        }
        Ok(step)
    }
}

impl RunningAnswer {
    fn say(&mut self, text: &str) -> Vec<ReplyPart> {
        let parts = match &mut self.parser {
            Some(parser) => parser.push(text),
            None if text.is_empty() => Vec::new(),
            None => vec![ReplyPart::Text(text.to_owned())],
        };
        self.called |= parts.iter().any(|part| matches!(part, ReplyPart::Call(_)));
        parts
    }

    fn finish(&mut self) -> Vec<ReplyPart> {
        let parts = self.parser.as_mut().map(ReplyParser::finish).unwrap_or_default();
        self.called |= parts.iter().any(|part| matches!(part, ReplyPart::Call(_)));
        parts
    }
}

/// A call with the name that its result will come back under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedCall {
    /// The name.
    pub id: String,
    /// The call.
    pub call: ToolCall,
}
