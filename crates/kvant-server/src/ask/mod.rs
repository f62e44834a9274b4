//! From a request's fields to jobs, and the wire on which their events come back.

pub mod format;
pub mod messages;
pub mod prompts;
pub mod sampling;
pub mod tools;

use crate::app::App;
use crate::error::ApiError;
use axum::http::StatusCode;
use kvant_engine::scheduler::{Job, JobEvent, Listener, Pooling};
use kvant_engine::{Constraint, Request};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Sends the events of one answer. What can wait on it is bounded by the tokens of the answer.
struct Wire {
    choice: usize,
    sender: UnboundedSender<(usize, JobEvent)>,
}

impl Listener for Wire {
    fn take(&mut self, event: JobEvent) {
        // Whoever is gone is noticed before the next pass.
        let _ = self.sender.send((self.choice, event));
    }

    fn is_gone(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Answers under way. Dropping it ends them.
pub struct Answers {
    receiver: UnboundedReceiver<(usize, JobEvent)>,
    /// The first event, which tells that they have begun.
    first: Option<(usize, JobEvent)>,
}

impl Answers {
    /// Asks for one answer to each request, kept to its constraint if there are any, and waits until the first has begun.
    pub async fn begin(
        app: &App,
        requests: Vec<Request>,
        constraints: Vec<Box<dyn Constraint>>,
        logprobs: Option<usize>,
        owner: u64,
    ) -> Result<Self, ApiError> {
        let mut constraints = constraints.into_iter();
        Self::submit(app, requests, owner, |job| Job { logprobs, constraint: constraints.next(), ..job })
            .await
    }

    /// Asks for the vector of each prompt, and waits until the first has begun.
    pub async fn embed(
        app: &App,
        prompts: Vec<Vec<u32>>,
        pooling: Pooling,
        owner: u64,
    ) -> Result<Self, ApiError> {
        let request = |prompt| Request { prompt, ..Request::default() };
        let requests = prompts.into_iter().map(request).collect();
        Self::submit(app, requests, owner, |job| Job { embed: Some(pooling), ..job }).await
    }

    async fn submit(
        app: &App,
        requests: Vec<Request>,
        owner: u64,
        mut complete: impl FnMut(Job) -> Job,
    ) -> Result<Self, ApiError> {
        let (sender, receiver) = unbounded_channel();
        let deadline = app.limits().answer.map(|limit| Instant::now() + limit);
        let jobs = requests.into_iter().enumerate().map(|(choice, request)| {
            complete(Job {
                request,
                logprobs: None,
                embed: None,
                constraint: None,
                deadline,
                owner,
                listener: Box::new(Wire { choice, sender: sender.clone() }),
            })
        });
        app.handle.submit(jobs.collect())?;
        drop(sender);
        let mut answers = Self { receiver, first: None };
        let first = answers.next().await?;
        if let JobEvent::Failed(error) = &first.1 {
            return Err(error.into());
        }
        answers.first = Some(first);
        Ok(answers)
    }

    /// The next event, with the number of its answer.
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
}

fn ended() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended; the server must be restarted")
}
