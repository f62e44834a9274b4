//! One line for each request, on stderr.
//!
//! A [`RequestLog`] is filled in on the way, and written when the last who holds it lets go: for a stream that is when its last
//! piece was sent, or its client went away.

use crate::notes::Notes;
use serde_json::json;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    #[default]
    Off,
    /// A line for each request, without what was said.
    Requests,
    /// The bodies of requests as well.
    Debug,
}

/// What is logged, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// How much.
    pub level: LogLevel,
    /// As JSON, an object to a line.
    pub json: bool,
}

/// What is asked for again and again by those who watch, and not worth a line.
const QUIET: [&str; 3] = ["/health", "/metrics", "/v1/kv"];

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
    options: LogOptions,
    method: String,
    path: String,
    arrived: Instant,
    pub notes: Notes,
    facts: Mutex<Facts>,
}

impl RequestLog {
    pub fn new(options: LogOptions, method: &str, path: &str, notes: Notes) -> Self {
        let (method, path) = (method.to_owned(), path.to_owned());
        let is_quiet = options.level == LogLevel::Requests && QUIET.contains(&path.as_str());
        let options = if is_quiet { LogOptions::default() } else { options };
        Self { options, method, path, arrived: Instant::now(), notes, facts: Mutex::default() }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its body has arrived.
    pub fn body(&self, bytes: &[u8]) {
        if self.options.level >= LogLevel::Debug {
            eprintln!("{} {} {}", self.method, self.path, String::from_utf8_lossy(bytes));
        }
    }

    pub fn model(&self, name: &str) {
        self.facts().model = name.to_owned();
    }

    pub fn status(&self, status: u16, error: Option<&str>) {
        let mut facts = self.facts();
        facts.status = Some(status);
        facts.error = error.map(str::to_owned);
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
    pub fn failed(&self, error: &str) {
        self.facts().error = Some(error.to_owned());
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

    fn line(&self, method: &str, path: &str, total: Duration, notes: &Notes) -> String {
        let status = self.status.map_or("-".to_owned(), |status| status.to_string());
        let mut line = format!("{method} {path} {status} {}", self.outcome());
        let mut add = |words: String| {
            line.push(' ');
            line.push_str(&words);
        };
        if !self.model.is_empty() {
            add(format!("model={}", self.model));
        }
        if self.prompt > 0 {
            add(format!("in={} cached={} out={}", self.prompt, self.cached, self.generated));
        }
        if let Some(first) = self.first {
            add(format!("first={:.3}s", first.as_secs_f64()));
        }
        if let Some(rate) = self.rate() {
            add(format!("rate={rate:.1}/s"));
        }
        add(format!("total={:.3}s", total.as_secs_f64()));
        for (name, header) in [("ignored", notes.header()), ("stripped", notes.stripped_header())] {
            if let Some(header) = header {
                add(format!("{name}=\"{}\"", header.to_str().unwrap_or_default()));
            }
        }
        if let Some(error) = &self.error {
            add(format!("error={:?}", error));
        }
        line
    }

    fn json(&self, method: &str, path: &str, total: Duration, notes: &Notes) -> String {
        let text = |header: Option<axum::http::HeaderValue>| {
            header.and_then(|value| value.to_str().ok().map(str::to_owned))
        };
        json!({
            "time": SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            "method": method,
            "path": path,
            "status": self.status,
            "outcome": self.outcome(),
            "model": self.model,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.generated,
            "time_to_first_token_seconds": self.first.map(|time| time.as_secs_f64()),
            "tokens_per_second": self.rate(),
            "total_seconds": total.as_secs_f64(),
            "ignored": text(notes.header()),
            "stripped": text(notes.stripped_header()),
            "error": self.error,
        })
        .to_string()
    }
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        if self.options.level == LogLevel::Off {
            return;
        }
        let (facts, total) = (self.facts().clone(), self.arrived.elapsed());
        let write = if self.options.json { Facts::json } else { Facts::line };
        eprintln!("{}", write(&facts, &self.method, &self.path, total, &self.notes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_a_request_came_to() {
        let notes = Notes::default();
        let second = Duration::from_secs(1);
        let mut facts = Facts { status: Some(200), model: "tiny".into(), ..Facts::default() };
        assert_eq!(facts.line("GET", "/x", second, &notes), "GET /x 200 ok model=tiny total=1.000s");
        facts = Facts { prompt: 9, cached: 4, generated: 5, finish: Some("stop"), ..facts };
        facts = Facts { first: Some(second), last: Some(second * 3), ..facts };
        notes.ignored("odd".into());
        assert_eq!(
            facts.line("POST", "/v1/x", second * 3, &notes),
            "POST /v1/x 200 stop model=tiny in=9 cached=4 out=5 first=1.000s rate=2.0/s total=3.000s ignored=\"odd\""
        );
        let object: serde_json::Value =
            serde_json::from_str(&facts.json("POST", "/", second, &notes)).unwrap();
        assert_eq!((&object["tokens_per_second"], &object["ignored"]), (&json!(2.0), &json!("odd")));
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
