//! What is done for a request before the engine takes it: templates, tokens, grammars.
//!
//! It is computing, and takes from those who are being answered. So only so many requests are prepared at a time, each within a limit of
//! time, and no longer than its client waits.

use crate::error::ApiError;
use crate::time::moment_after;
use axum::http::StatusCode;
use kvant_engine::Interrupt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{timeout, timeout_at};

/// The places there are, and the time that each request has.
pub struct Preparations {
    places: Arc<Semaphore>,
    limit: Duration,
}

/// Breaks off the work of a request that nobody waits for any more.
struct WhileWaiting(Interrupt);

impl Drop for WhileWaiting {
    fn drop(&mut self) {
        self.0.set();
    }
}

impl Preparations {
    /// At most so many at a time, each for so long.
    pub fn new(most: usize, limit: Duration) -> Self {
        Self { places: Arc::new(Semaphore::new(most.max(1))), limit }
    }

    /// Does the work for a request on another thread. A place is free again when the work has really ended.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Interrupt) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let deadline = moment_after(self.limit);
        let place = timeout(self.limit, Arc::clone(&self.places).acquire_owned());
        let Ok(Ok(place)) = place.await else {
            let message = "too many requests are being prepared; try again later";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
        };
        let interrupt = Interrupt::at(deadline);
        let waiting = WhileWaiting(interrupt.clone());
        let work = tokio::task::spawn_blocking(move || {
            let done = work(&interrupt);
            drop(place);
            done
        });
        let done = timeout_at(deadline.into(), work).await;
        drop(waiting);
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => {
                let message = "the request could not be prepared";
                Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
            }
            Err(_) => {
                let seconds = self.limit.as_secs_f64();
                let message = format!(
                    "the request was not prepared within {seconds} s: shorten its prompt, or simplify its grammar or schema"
                );
                Err(ApiError::bad(message).code("preparation_timeout"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[tokio::test]
    async fn work_that_takes_too_long_is_broken_off_and_said_to_be_so() {
        let preparations = Preparations::new(1, Duration::from_millis(50));
        let (release, released) = channel::<()>();
        let endless = move |interrupt: &Interrupt| {
            while !interrupt.is_set() {
                std::thread::yield_now();
            }
            // Later than the answer.
            released.recv().unwrap();
        };
        let error = preparations.run(endless).await.unwrap_err();
        assert!(error.message().contains("within 0.05 s"), "{error:?}");
        assert_eq!(error.body()["error"]["code"], "preparation_timeout");
        release.send(()).unwrap();
    }

    #[tokio::test]
    async fn work_of_a_client_that_has_gone_is_broken_off_and_holds_its_place_until_it_ends() {
        let preparations = Preparations::new(1, Duration::from_secs(60));
        let (begun, has_begun) = channel();
        let (ended, has_ended) = channel();
        let work = preparations.run(move |interrupt: &Interrupt| {
            begun.send(()).unwrap();
            while !interrupt.is_set() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
        });
        let client = async {
            tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
        };
        // The client leaves as soon as the work has begun.
        tokio::select! {
            biased;
            _ = work => panic!("it ends when it is broken off"),
            () = client => {}
        }
        // There is one place: this waits for the end of the other.
        preparations.run(move |_: &Interrupt| has_ended.try_recv().unwrap()).await.unwrap();
    }
}
