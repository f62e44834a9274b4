//! What is asked of the scheduler, and what it answers.

use super::pool::{Pool, Pooling};
use crate::constraint::Constraint;
use crate::logprobs::Logprobs;
use crate::sampler::SampleError;
use crate::session::{Finish, GenerateError, Request};
use crate::speculation::{Proposer, SpeculationCounts};
use crate::stepper::Stepper;
use kvant_cache::{Prefix, Tenant};
use kvant_model::{AdapterMix, ForwardError};
use std::time::{Duration, Instant};
use tracing::Span;

/// Somebody who waits for an answer.
pub trait Listener: Send {
    /// Takes what has happened. It must not block: every sequence waits meanwhile.
    fn take(&mut self, event: JobEvent);

    /// True when nobody listens any more. The job then ends before the next pass.
    fn is_gone(&self) -> bool;
}

/// A text to generate.
pub struct Job {
    /// What to generate.
    pub request: Request,
    /// For every token its probability, and those of this many likeliest ones.
    pub logprobs: Option<usize>,
    /// The same for every token of the prompt but the first, as [`JobEvent::Prompt`]; only with `logprobs`. The prompt is then read
    /// anew.
    pub prompt_logprobs: bool,
    /// May begin with what others have read. The tokens are the same either way.
    pub cache_prompt: bool,
    /// The text's vector is wanted, and no tokens.
    pub embed: Option<Pooling>,
    /// Numbers of the prompt are wanted, and no tokens.
    pub score: Option<Score>,
    /// What may be said; none for anything.
    pub constraint: Option<Box<dyn Constraint>>,
    /// When it ends at the latest, finished or not.
    pub deadline: Option<Instant>,
    /// Owners take turns: one with many jobs does not keep another with one waiting.
    pub owner: u64,
    /// Whose prefixes it may begin with, and leaves behind.
    pub tenant: Tenant,
    /// Who is told.
    pub listener: Box<dyn Listener>,
}

impl Job {
    /// A text alone: no probabilities, no constraint, no deadline, and prefixes that everybody shares.
    pub fn new(request: Request, listener: Box<dyn Listener>) -> Self {
        Self {
            request,
            logprobs: None,
            prompt_logprobs: false,
            cache_prompt: true,
            embed: None,
            score: None,
            constraint: None,
            deadline: None,
            owner: 0,
            tenant: Tenant::SHARED,
            listener,
        }
    }
}

/// Numbers that are wanted of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Score {
    /// The logits of these tokens after it.
    Tokens(Vec<u32>),
    /// Those of a cross-encoder's classes. The second text of the pair begins at this token.
    Classes {
        /// Its place in the prompt.
        second: usize,
    },
}

/// What happens to a job. Every job that is accepted ends with `Finished` or `Failed`, unless its listener is gone.
#[derive(Debug)]
pub enum JobEvent {
    /// It has left the queue.
    Started {
        /// Tokens of the prompt that were found in the cache.
        cached: usize,
        /// The seed that repeats it.
        seed: u64,
    },
    /// The prompt is read: what the model thought of its tokens, from the second on. Only where that was asked for.
    Prompt(Vec<Logprobs>),
    /// A token was chosen.
    Token {
        /// The token.
        token: u32,
        /// More text: whole characters, no part of a stop string; often empty.
        text: String,
        /// Where they were asked for.
        logprobs: Option<Logprobs>,
    },
    /// The text's vector, of length 1.
    Embedded(Vec<f32>),
    /// The logits of the tokens or classes that were asked for.
    Scored(Vec<f32>),
    /// It is over.
    Finished {
        /// What was held back of the text.
        text: String,
        /// Why it ended.
        finish: Finish,
        /// What it took.
        usage: JobUsage,
    },
    /// It could not go on.
    Failed(JobError),
}

/// Counts and times of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobUsage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that were found in the cache.
    pub cached: usize,
    /// Tokens chosen, the ending one included.
    pub generated: usize,
    /// Tokens read on trial, and those accepted of them.
    pub speculation: SpeculationCounts,
    /// From its arrival until it left the queue.
    pub waited: Duration,
    /// From its arrival until its first token was chosen; until its end where none was.
    pub first_token: Duration,
    /// From its arrival to its end.
    pub total: Duration,
}

/// Why a job could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Its time was up.
    #[error("the request was not finished within its time limit; ask for fewer tokens, or allow more time")]
    Deadline,
    /// The scheduler was told to end.
    #[error("the engine is shutting down")]
    Stopped,
    /// Something went wrong on the way.
    #[error(transparent)]
    Generate(#[from] GenerateError),
}

/// Why a job was not accepted. Nothing has happened then.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The queue is full.
    #[error("{waiting} requests are waiting already; try again in a while")]
    Busy {
        /// Jobs in the queue.
        waiting: usize,
    },
    /// The scheduler has ended, or is about to.
    #[error("the engine is shutting down and takes no more requests")]
    Stopping,
    /// There is nothing to continue.
    #[error("the prompt is empty: there is nothing to continue")]
    EmptyPrompt,
    /// The prompt alone fills the context.
    #[error("the prompt has {prompt} tokens, but the context holds {context}: shorten it")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens the context holds.
        context: usize,
    },
    /// A token the model does not have.
    #[error("token id {id} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of ids.
        vocabulary: usize,
    },
    /// A setting of the sampler that cannot be.
    #[error(transparent)]
    Sampling(#[from] SampleError),
    /// Vectors, scores or text that models of another kind give.
    #[error("this model {0}")]
    OtherKind(&'static str),
    /// Adapters that the model cannot run with.
    #[error(transparent)]
    Adapters(ForwardError),
}

/// A job on its way: waiting, running or preempted.
pub(super) struct Task {
    /// By order of arrival.
    pub id: u64,
    pub stepper: Stepper,
    pub logprobs: Option<usize>,
    /// Of the prompt's tokens read so far.
    pub prompt_logprobs: Option<Vec<Logprobs>>,
    pub cache_prompt: bool,
    pub pool: Option<Pool>,
    /// What is wanted in place of tokens.
    pub score: Option<Score>,
    pub deadline: Option<Instant>,
    pub owner: u64,
    /// With the adapters in it: prefixes that were read with others are never found.
    pub tenant: Tenant,
    pub adapters: AdapterMix,
    pub listener: Box<dyn Listener>,
    /// The span that was entered when it arrived: a request's.
    pub span: Span,
    pub arrived: Instant,
    /// When it left the queue, and the prompt tokens found in the cache then.
    pub started: Option<(Instant, usize)>,
    /// When the first token was chosen.
    pub first_token: Option<Instant>,
    /// When the last token was chosen.
    pub spoke: Option<Instant>,
    /// The prompt is in the tree of prefixes.
    pub remembered: bool,
    /// Tokens that files have of it; none before they are looked for, 0 once they were asked for.
    pub on_disk: Option<usize>,
}

impl Task {
    /// A job that arrives now.
    pub fn new(mut job: Job, id: u64) -> Result<Self, SampleError> {
        if job.embed.is_some() || job.score.is_some() {
            job.request.max_tokens = Some(0);
        }
        let sampling = std::mem::take(&mut job.request.sampling);
        let stepper = Stepper::new(&job.request, sampling, job.constraint)?;
        let adapters = job.request.adapters.take().unwrap_or_default();
        let tenant = adapters.digest().map_or(job.tenant, |digest| job.tenant.salted(&digest));
        Ok(Self {
            id,
            stepper,
            logprobs: job.logprobs,
            prompt_logprobs: (job.prompt_logprobs && job.logprobs.is_some()).then(Vec::new),
            cache_prompt: job.cache_prompt,
            pool: job.embed.map(Pool::new),
            score: job.score,
            deadline: job.deadline,
            owner: job.owner,
            tenant,
            adapters,
            listener: job.listener,
            span: Span::current(),
            arrived: Instant::now(),
            started: None,
            first_token: None,
            spoke: None,
            remembered: false,
            on_disk: None,
        })
    }

    /// The same with somebody who guesses how it goes on.
    pub fn speculating(self, proposer: Option<Box<dyn Proposer>>) -> Self {
        Self { stepper: self.stepper.speculating(proposer), ..self }
    }

    /// The tokens of prompt and answer.
    pub fn tokens(&self) -> &[u32] {
        self.stepper.known()
    }

    /// Tokens of its prompt.
    pub fn prompt(&self) -> usize {
        self.stepper.prompt()
    }

    /// Its first `count` tokens, and whose they are.
    pub fn prefix(&self, count: usize) -> Prefix<'_> {
        self.tenant.prefix(&self.stepper.tokens()[..count])
    }

    /// What of it may be found rather than read. The last token is always read: its logits are what the next one is chosen from.
    pub fn findable(&self) -> Prefix<'_> {
        self.prefix(self.tokens().len() - 1)
    }

    /// Ends it with its text.
    pub fn finish(mut self, finish: Finish) {
        if let Some(pool) = &self.pool {
            self.listener.take(JobEvent::Embedded(pool.vector()));
        }
        let text = self.stepper.rest(&finish);
        let now = Instant::now();
        let (started, cached) = self.started.unwrap_or((now, 0));
        let usage = JobUsage {
            prompt: self.prompt(),
            cached,
            generated: self.stepper.chosen().len(),
            speculation: self.stepper.counts(),
            waited: started - self.arrived,
            first_token: self.first_token.unwrap_or(now) - self.arrived,
            total: now - self.arrived,
        };
        self.listener.take(JobEvent::Finished { text, finish, usage });
    }

    /// Ends it without.
    pub fn fail(mut self, error: impl Into<JobError>) {
        self.listener.take(JobEvent::Failed(error.into()));
    }

    pub fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }
}
