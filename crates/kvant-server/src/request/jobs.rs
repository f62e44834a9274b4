//! Jobs of one request, and the wire on which their events come back.

use crate::app::Limits;
use crate::error::ApiError;
use crate::keys::Identity;
use crate::models::Served;
use crate::route::Caller;
use crate::time::moment_after;
use axum::http::StatusCode;
use kvant_engine::scheduler::{Job, JobEvent, Listener, Pooling, Score};
use kvant_engine::{Constraint, Request};
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sends the events of one job. What can wait on it is bounded by the tokens of the answer.
struct Wire {
    index: usize,
    sender: UnboundedSender<(usize, JobEvent)>,
}

impl Listener for Wire {
    fn take(&mut self, event: JobEvent) {
        // Whoever is gone is noticed before the next pass.
        let _ = self.sender.send((self.index, event));
    }

    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

/// What jobs of one request have in common.
#[derive(Debug, Clone, Copy)]
pub struct JobOptions {
    /// Whose they are.
    pub whose: Identity,
    /// Probabilities of tokens, with those of so many likeliest ones.
    pub logprobs: Option<usize>,
    /// Those of the prompt as well.
    pub prompt_logprobs: bool,
    /// May begin with what others have read.
    pub cache_prompt: bool,
}

impl JobOptions {
    /// The usual ones.
    pub fn of(caller: &Caller) -> Self {
        Self { whose: caller.whose, logprobs: None, prompt_logprobs: false, cache_prompt: true }
    }
}

/// Jobs under way. Dropping it ends them.
pub struct Jobs {
    receiver: UnboundedReceiver<(usize, JobEvent)>,
    /// The first event, which tells that they have begun.
    first: Option<(usize, JobEvent)>,
    /// Keeps the model loaded.
    served: Arc<Served>,
}

impl Jobs {
    /// Asks for one answer to each request, kept to its constraint if there are any, and waits until the first has begun.
    pub async fn generate(
        served: Arc<Served>,
        limits: &Limits,
        requests: Vec<Request>,
        constraints: Vec<Box<dyn Constraint>>,
        options: JobOptions,
    ) -> Result<Self, ApiError> {
        let mut constraints = constraints.into_iter();
        let complete = |job| Job {
            logprobs: options.logprobs,
            prompt_logprobs: options.prompt_logprobs,
            cache_prompt: options.cache_prompt,
            constraint: constraints.next(),
            ..job
        };
        Self::submit(served, limits, requests, options.whose, complete).await
    }

    /// Asks for the vector of each prompt, pooled as the model's files say where nobody does, and waits until the first has begun.
    pub async fn embed(
        served: Arc<Served>,
        limits: &Limits,
        prompts: Vec<Vec<u32>>,
        pooling: Option<Pooling>,
        caller: &Caller,
    ) -> Result<Self, ApiError> {
        let request = |prompt| Request { prompt, ..Request::default() };
        let requests = prompts.into_iter().map(request).collect();
        let pooling = match pooling {
            Some(pooling) => pooling,
            None => served.handle.engine().pooling().map_err(|why| ApiError::field("pooling", why))?,
        };
        let complete = |job| Job { embed: Some(pooling), ..job };
        Self::submit(served, limits, requests, caller.whose, complete).await
    }

    /// Asks for numbers of each prompt, and waits until the first has begun.
    pub async fn score(
        served: Arc<Served>,
        limits: &Limits,
        prompts: Vec<(Vec<u32>, Score)>,
        caller: &Caller,
    ) -> Result<Self, ApiError> {
        let (prompts, scores): (Vec<_>, Vec<_>) = prompts.into_iter().unzip();
        let request = |prompt| Request { prompt, ..Request::default() };
        let requests = prompts.into_iter().map(request).collect();
        let mut scores = scores.into_iter();
        let complete = |job| Job { score: scores.next(), ..job };
        Self::submit(served, limits, requests, caller.whose, complete).await
    }

    async fn submit(
        served: Arc<Served>,
        limits: &Limits,
        requests: Vec<Request>,
        whose: Identity,
        mut complete: impl FnMut(Job) -> Job,
    ) -> Result<Self, ApiError> {
        let (sender, receiver) = unbounded_channel();
        let deadline = limits.answer.map(moment_after);
        let adapters = served.mix();
        let jobs = requests.into_iter().enumerate().map(|(index, mut request)| {
            request.adapters = Some(adapters.clone());
            complete(Job {
                request,
                logprobs: None,
                prompt_logprobs: false,
                cache_prompt: true,
                embed: None,
                score: None,
                constraint: None,
                deadline,
                owner: whose.owner,
                tenant: whose.tenant,
                listener: Box::new(Wire { index, sender: sender.clone() }),
            })
        });
        served.handle.submit(jobs.collect())?;
        drop(sender);
        let mut jobs = Self { receiver, first: None, served };
        let first = jobs.next().await?;
        if let JobEvent::Failed(error) = &first.1 {
            return Err(error.into());
        }
        jobs.first = Some(first);
        Ok(jobs)
    }

    /// The model that does them.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// The next event, with the number of its job.
    pub async fn next(&mut self) -> Result<(usize, JobEvent), ApiError> {
        match self.first.take() {
            Some(first) => Ok(first),
            None => self.receiver.recv().await.ok_or_else(ended),
        }
    }

    /// The next event if it is there already.
    pub fn try_next(&mut self) -> Option<(usize, JobEvent)> {
        self.first.take().or_else(|| self.receiver.try_recv().ok())
    }

    /// The vectors or scores of all prompts, and the tokens that these had.
    pub async fn vectors(mut self, count: usize) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
        let mut vectors = vec![None; count];
        let (mut left, mut prompt) = (count, 0);
        while left > 0 {
            match self.next().await? {
                (index, JobEvent::Embedded(vector) | JobEvent::Scored(vector)) => {
                    vectors[index] = Some(vector)
                }
                (_, JobEvent::Finished { usage, .. }) => {
                    prompt += usage.prompt;
                    left -= 1;
                }
                (_, JobEvent::Failed(error)) => return Err((&error).into()),
                (_, JobEvent::Started { .. } | JobEvent::Prompt(_) | JobEvent::Token { .. }) => {}
            }
        }
        Ok((vectors.into_iter().flatten().collect(), prompt))
    }
}

fn ended() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has stopped; restart the server")
}
