//! The span of a request, and the line that says what it came to.
//!
//! A [`RequestLog`] is filled in on the way. The line is logged when the last who holds it lets go: for a stream that is when its last
//! piece was sent, or its client went away.
//!
//! **Invariant:** nothing that was said is logged, nor a key. Of an error that the request is at fault for, whose message may quote it,
//! the log has code and field.

use crate::error::ApiError;
use crate::notes::Notes;
use axum::http::HeaderValue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::{Id, Span, debug, info, info_span};

/// What is asked for again and again by those who watch, and not worth a line.
const QUIET: [&str; 3] = ["/health", "/metrics", "/v1/kv"];

/// What filters of the log know the line by.
const TARGET: &str = "kvant_server";

/// Letters of a path.
const PATH_LETTERS: usize = 256;

/// What a request came to.
#[derive(Debug, Clone, Default, PartialEq)]
struct Facts {
    status: Option<u16>,
    model: String,
    prompt: usize,
    cached: usize,
    generated: usize,
    /// From the request to the first token, and to the last.
    first: Option<Duration>,
    last: Option<Duration>,
    /// Answers that are not finished.
    open: usize,
    /// Why the last answer ended.
    finish: Option<&'static str>,
    error: Option<String>,
}

/// A request on its way.
pub struct RequestLog {
    id: u64,
    span: Span,
    method: String,
    path: String,
    arrived: Instant,
    pub notes: Notes,
    facts: Mutex<Facts>,
}

impl RequestLog {
    pub fn new(method: &str, path: &str, notes: Notes) -> Self {
        /// Requests so far.
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let (method, path) = (method.to_owned(), path.chars().take(PATH_LETTERS).collect::<String>());
        let quiet = QUIET.contains(&path.as_str());
        let id = if quiet { 0 } else { COUNT.fetch_add(1, Ordering::Relaxed) };
        let span = if quiet { Span::none() } else { info_span!("request", id, method, path) };
        Self { id, span, method, path, arrived: Instant::now(), notes, facts: Mutex::default() }
    }

    /// What the request is worked on in.
    pub fn span(&self) -> &Span {
        &self.span
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn model(&self, name: &str) {
        self.facts().model = name.to_owned();
    }

    pub fn status(&self, status: u16, error: Option<&ApiError>) {
        let mut facts = self.facts();
        facts.status = Some(status);
        facts.error = error.map(ApiError::for_log);
    }

    /// So many answers were asked for.
    pub fn answers(&self, count: usize) {
        self.facts().open += count;
    }

    /// A token came.
    pub fn token(&self) {
        let now = self.arrived.elapsed();
        let mut facts = self.facts();
        facts.first.get_or_insert(now);
        facts.last = Some(now);
    }

    /// An answer is finished.
    pub fn finished(&self, prompt: usize, cached: usize, generated: usize, finish: &'static str) {
        let mut facts = self.facts();
        facts.open = facts.open.saturating_sub(1);
        facts.prompt += prompt;
        facts.cached += cached;
        facts.generated += generated;
        facts.finish = Some(finish);
    }

    /// It went wrong after its head was sent.
    pub fn failed(&self, error: &ApiError) {
        self.facts().error = Some(error.for_log());
    }
}

impl Facts {
    fn outcome(&self) -> &str {
        match self {
            Self { error: Some(_), .. } => "error",
            Self { status: None, .. } => "cancelled",
            Self { open: 1.., .. } => "cancelled",
            Self { finish: Some(finish), .. } => finish,
            _ => "ok",
        }
    }

    /// Tokens after the first per second.
    fn rate(&self) -> Option<f64> {
        let time = self.last?.checked_sub(self.first?)?.as_secs_f64();
        (self.generated > 1 && time > 0.0).then(|| (self.generated - 1) as f64 / time)
    }
}

/// To one part of `parts`.
fn rounded(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let (facts, total) = (self.facts().clone(), self.arrived.elapsed());
        let (method, path, outcome) = (&self.method, &self.path, facts.outcome());
        if QUIET.contains(&path.as_str()) {
            debug!(method, path, status = facts.status, outcome, "request");
            return;
        }
        let listed =
            |header: Option<HeaderValue>| header.and_then(|names| names.to_str().ok().map(str::to_owned));
        // Outside the span, whose fields it repeats: the line is read by people, and its keys by programs.
        info!(
            target: TARGET,
            parent: None::<Id>,
            id = self.id,
            method,
            path,
            status = facts.status,
            outcome,
            model = facts.model,
            prompt_tokens = facts.prompt,
            cached_tokens = facts.cached,
            completion_tokens = facts.generated,
            time_to_first_token_seconds = facts.first.map(|time| rounded(time.as_secs_f64(), 1e4)),
            tokens_per_second = facts.rate().map(|rate| rounded(rate, 10.0)),
            total_seconds = rounded(total.as_secs_f64(), 1e4),
            ignored = listed(self.notes.header()),
            stripped = listed(self.notes.stripped_header()),
            error = facts.error,
            "request"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use std::sync::Arc;

    /// The line of a request that `fill` has filled in.
    fn line(path: &str, fill: impl FnOnce(&RequestLog)) -> serde_json::Value {
        let file = tempfile::NamedTempFile::new().unwrap();
        let log = tracing_subscriber::fmt().json().flatten_event(true);
        let log = log.with_writer(Arc::new(file.reopen().unwrap()));
        tracing::subscriber::with_default(log.finish(), || {
            fill(&RequestLog::new("POST", path, Notes::default()));
        });
        serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap_or_default()
    }

    #[test]
    fn a_line_says_what_a_request_came_to() {
        let line = line("/v1/x", |log| {
            log.status(200, None);
            log.model("tiny");
            log.answers(1);
            log.finished(9, 4, 5, "stop");
            let second = Duration::from_secs(1);
            (log.facts().first, log.facts().last) = (Some(second), Some(second * 3));
            log.notes.ignored("odd".into());
        });
        for (name, value) in [
            ("level", "INFO".into()),
            ("method", "POST".into()),
            ("path", "/v1/x".into()),
            ("status", 200.into()),
            ("outcome", "stop".into()),
            ("model", "tiny".into()),
            ("prompt_tokens", 9.into()),
            ("cached_tokens", 4.into()),
            ("completion_tokens", 5.into()),
            ("time_to_first_token_seconds", 1.0.into()),
            ("tokens_per_second", 2.0.into()),
            ("ignored", "odd".into()),
            ("error", serde_json::Value::Null),
        ] {
            assert_eq!(line[name], value, "{name} of {line}");
        }
        assert!(line["total_seconds"].is_f64() && line["id"].is_u64() && line["span"].is_null(), "{line}");
    }

    #[test]
    fn times_are_rounded_for_people() {
        assert_eq!(rounded(0.236_636_382, 1e4), 0.2366);
        assert_eq!(rounded(54.867, 10.0), 54.9);
    }

    #[test]
    fn what_is_asked_for_again_and_again_gets_no_line() {
        assert!(line("/health", |log| log.status(200, None)).is_null());
    }

    #[test]
    fn messages_that_may_quote_a_request_are_not_logged() {
        let bad = ApiError::field("messages", "`secret` is no role").code("bad_role");
        assert_eq!(line("/", |log| log.status(400, Some(&bad)))["error"], "bad_role: messages");
        let ours = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "out of memory");
        assert_eq!(line("/", |log| log.failed(&ours))["error"], "out of memory");
    }

    #[test]
    fn outcomes_tell_who_ended_it() {
        assert_eq!(Facts::default().outcome(), "cancelled", "nobody waited for the head");
        let answered = Facts { status: Some(200), finish: Some("length"), ..Facts::default() };
        assert_eq!(answered.outcome(), "length");
        assert_eq!(Facts { open: 1, ..answered.clone() }.outcome(), "cancelled");
        assert_eq!(Facts { error: Some("full".into()), ..answered }.outcome(), "error");
    }
}
