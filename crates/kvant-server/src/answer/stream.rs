//! Answers in pieces, as server-sent events.

use super::choice::Choice;
use super::{Form, Reply, finish_reason};
use crate::error::ApiError;
use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use futures_util::stream;
use kvant_engine::scheduler::JobEvent;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

/// How often a comment is sent while there is nothing to say, so that nobody on the way takes the line for dead.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A stream under way.
struct Speaker {
    reply: Reply,
    choices: Vec<Choice>,
    include_usage: bool,
}

impl Reply {
    /// A response that sends pieces as they come.
    pub fn stream(self, include_usage: bool) -> Response<Body> {
        let choices = (0..self.usages.len()).map(|index| self.choice(index)).collect();
        let speaker = Speaker { reply: self, choices, include_usage };
        let pieces = stream::unfold(Some(speaker), |speaker| async move {
            let (bytes, speaker) = speaker?.speak().await;
            Some((Ok::<Bytes, Infallible>(bytes), speaker))
        });
        let mut response = Response::new(Body::from_stream(pieces));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

impl Speaker {
    /// Everything there is to say now; with the last of it the speaker goes.
    async fn speak(mut self) -> (Bytes, Option<Self>) {
        let mut out = String::new();
        match tokio::time::timeout(SIGN_OF_LIFE, self.reply.answers.next()).await {
            Err(_) => return (Bytes::from_static(b": still here\n\n"), Some(self)),
            Ok(Err(error)) => return (last(out, &error), None),
            Ok(Ok((index, event))) => {
                if let Err(error) = self.tell(index, event, &mut out) {
                    return (last(out, &error), None);
                }
            }
        }
        while let Some((index, event)) = self.reply.answers.try_next() {
            if let Err(error) = self.tell(index, event, &mut out) {
                return (last(out, &error), None);
            }
        }
        if self.reply.usages.iter().any(Option::is_none) {
            return (out.into(), Some(self));
        }
        if self.include_usage {
            let mut piece = self.reply.frame(Vec::new(), true);
            piece["usage"] = self.reply.usage();
            say(&mut out, &piece);
        }
        out.push_str("data: [DONE]\n\n");
        (out.into(), None)
    }

    fn tell(&mut self, index: usize, event: JobEvent, out: &mut String) -> Result<(), ApiError> {
        let choice = &mut self.choices[index];
        match event {
            JobEvent::Started { .. } => match &self.reply.form {
                Form::Chat => {
                    let delta = json!({"role": "assistant", "content": "", "refusal": null});
                    let first =
                        json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
                    self.say_piece(first, out);
                    return Ok(());
                }
                form @ Form::Text { .. } => *choice = Choice::new(form.echo(index / self.reply.n)),
            },
            JobEvent::Token { token, text, logprobs } => self.reply.add(choice, token, &text, logprobs),
            JobEvent::Finished { text, finish, usage } => {
                choice.end(&text, finish_reason(&finish));
                self.reply.usages[index] = Some(usage);
            }
            JobEvent::Failed(error) => return Err((&error).into()),
            JobEvent::Embedded(_) => {}
        }
        let piece = choice.take_piece();
        if !piece.is_empty() {
            let piece = piece.into_piece(index, &self.reply.form);
            self.say_piece(piece, out);
        }
        Ok(())
    }

    fn say_piece(&self, choice: Value, out: &mut String) {
        let mut piece = self.reply.frame(vec![choice], true);
        if self.include_usage {
            piece["usage"] = Value::Null;
        }
        say(out, &piece);
    }
}

fn say(out: &mut String, piece: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "data: {piece}\n\n");
}

/// An error in the middle of a stream: its status is sent already.
fn last(mut out: String, error: &ApiError) -> Bytes {
    say(&mut out, &error.body());
    out.into()
}
