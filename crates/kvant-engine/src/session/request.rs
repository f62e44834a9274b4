//! What is asked of a session, and what comes of it.

use crate::constraint::ConstraintError;
use crate::logprobs::Logprobs;
use crate::sampler::{SampleError, SamplingParams};
use crate::speculation::SpeculationCounts;
use kvant_cache::SnapshotError;
use kvant_model::{AdapterMix, ForwardError};
use std::time::Duration;

/// What to generate.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// All tokens before the first new one, those the session holds included.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// The most tokens to generate; `None` for as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Drops white space at the beginning, as suits an answer (and not a continuation).
    pub trim_start: bool,
    /// Control tokens that are written by their names, for what reads the text: [`Engine::reply_markers`](crate::Engine::reply_markers) in a conversation.
    pub markers: Vec<u32>,
    /// The LoRA adapters to run with; `None` for those the session has, or a scheduler's engine.
    pub adapters: Option<AdapterMix>,
}

/// What happens during a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'t> {
    /// This many tokens of the prompt have been read.
    Prefill {
        /// Tokens read or found in the cache.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More text: whole characters, no part of a stop string. May be empty, when a token adds nothing that can be
    /// shown yet.
    Text(&'t str),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, with this token.
    EndOfText(u32),
    /// One of the stop strings came up.
    Stop(String),
    /// As many tokens as asked for.
    MaxTokens,
    /// No room for another token.
    ContextFull,
    /// The receiver of the text broke off.
    Cancelled,
}

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The text, in one piece.
    pub text: String,
    /// The tokens chosen, the ending one included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// The seed that repeats it.
    pub seed: u64,
    /// How likely the model found each of the tokens, where that is [asked for](super::Session::set_logprobs).
    pub logprobs: Vec<Logprobs>,
    /// Counts and times.
    pub stats: Stats,
}

/// Counts and times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt that were in the cache already.
    pub reused: usize,
    /// Tokens of the prompt that were read.
    pub prefilled: usize,
    /// Time to read them.
    pub prefill: Duration,
    /// Tokens after the first.
    pub decoded: usize,
    /// Time for these.
    pub decode: Duration,
    /// Passes for these: as many, or fewer where proposed tokens were accepted.
    pub passes: usize,
    /// Tokens read on trial, and those accepted of them.
    pub speculation: SpeculationCounts,
}

impl Stats {
    /// Prompt tokens per second; none when nothing was read.
    pub fn prefill_rate(&self) -> Option<f64> {
        rate(self.prefilled, self.prefill)
    }

    /// Tokens after the first per pass; none when there were none.
    pub fn tokens_per_pass(&self) -> Option<f64> {
        (self.passes > 0).then(|| self.decoded as f64 / self.passes as f64)
    }

    /// Tokens per second after the first; none when there were none.
    pub fn decode_rate(&self) -> Option<f64> {
        rate(self.decoded, self.decode)
    }
}

fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// Why a generation could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error("the prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    /// The prompt alone fills the context.
    #[error(
        "the prompt has {prompt} tokens, but the context holds {context}: shorten it or ask for a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// The forward pass refused, or the cache could not keep what the model computed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// No token could be chosen.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// No token was allowed.
    #[error(transparent)]
    Constraint(#[from] ConstraintError),
}

/// Why a saved session cannot be resumed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// It was made for a longer context.
    #[error("holds {held} tokens, but the context is {context}: ask for a larger one")]
    TooLong {
        /// Tokens it holds.
        held: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// It does not belong to this model and cache.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}
