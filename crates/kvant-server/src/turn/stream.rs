//! Answers in pieces: server-sent events, or a JSON object to a line.

use super::{Step, Turns};
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use futures_util::stream;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

/// How often a sign of life is sent while there is nothing to say, so that nobody on the way takes the line for dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// How a protocol writes a stream.
pub trait StreamFormat: Send + 'static {
    /// The type of the body.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// What is sent while there is nothing to say.
    fn sign_of_life(&self) -> &'static str {
        ": still here\n\n"
    }

    /// Writes what has come.
    fn step(&mut self, step: Step, out: &mut String);

    /// Writes the end, when all answers are over.
    fn end(&mut self, out: &mut String);

    /// Writes an error in the middle of a stream: its status is sent already.
    fn fail(&mut self, error: &ApiError, out: &mut String);
}

/// A server-sent event; without a name only its data.
pub fn sse(out: &mut String, event: Option<&str>, data: &Value) {
    // Writing to a string cannot fail.
    let _ = match event {
        Some(event) => write!(out, "event: {event}\ndata: {data}\n\n"),
        None => write!(out, "data: {data}\n\n"),
    };
}

struct Speaker<F> {
    turns: Turns,
    format: F,
}

impl Turns {
    /// A response that sends pieces as they come.
    pub fn stream(self, format: impl StreamFormat) -> Response<Body> {
        let kind = HeaderValue::from_static(format.content_type());
        let speaker = Speaker { turns: self, format };
        let pieces = stream::unfold(Some(speaker), |speaker| async move {
            let (bytes, speaker) = speaker?.speak().await;
            Some((Ok::<Bytes, Infallible>(bytes), speaker))
        });
        let mut response = Response::new(Body::from_stream(pieces));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, kind);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

impl<F: StreamFormat> Speaker<F> {
    /// Everything there is to say now; with the last of it the speaker goes.
    async fn speak(mut self) -> (Bytes, Option<Self>) {
        let mut out = String::new();
        let Ok(first) = tokio::time::timeout(SIGN_OF_LIFE, self.turns.next()).await else {
            return (Bytes::from_static(self.format.sign_of_life().as_bytes()), Some(self));
        };
        let mut next = Some(first);
        while let Some(step) = next {
            match step {
                Ok(step) => self.format.step(step, &mut out),
                Err(error) => {
                    self.format.fail(&error, &mut out);
                    return (out.into(), None);
                }
            }
            next = self.turns.try_next();
        }
        if !self.turns.is_over() {
            return (out.into(), Some(self));
        }
        self.format.end(&mut out);
        (out.into(), None)
    }
}
