//! The log: what the crates of kvant trace, on stderr.
//!
//! Libraries emit spans and events, and this is the one place that listens. A request, a pass and a group of kernels is a span each;
//! where a filter asks for `debug` or `trace`, a line is written when such a span ends, with its time.

use crate::shown;
use clap::{Args, ValueEnum};
use std::str::FromStr;
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Flags of every command.
#[derive(Args)]
pub struct LogArgs {
    /// Log level on stderr: off, error, warn, info, debug or trace; per crate as in `info,kvant_engine=debug`
    /// [default: warn; serve: info, a line for each request]
    #[arg(long, value_name = "FILTER", global = true, value_parser = filter, help_heading = "Log")]
    log: Option<Targets>,

    /// Log format
    #[arg(long, value_name = "FORMAT", global = true, default_value = "text", help_heading = "Log")]
    log_format: LogFormat,

    /// Older name of `--log-format json`
    #[arg(long, global = true, hide = true)]
    log_json: bool,
}

/// How the log is written.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// A filter; `requests` is what `info` was called.
fn filter(text: &str) -> Result<Targets, String> {
    let text = if text == "requests" { "info" } else { text };
    let wrong =
        |_| "a level (off, error, warn, info, debug, trace), or CRATE=LEVEL with commas between".to_owned();
    Targets::from_str(text).map_err(wrong)
}

impl LogArgs {
    /// Begins to log, by default what is at least as grave as `usual`.
    pub fn begin(self, usual: LevelFilter) {
        let filter = self.log.unwrap_or_else(|| Targets::new().with_default(usual));
        let levels = filter.iter().map(|(_, level)| level).chain(filter.default_level());
        let is_detailed = levels.max() >= Some(LevelFilter::DEBUG);
        let ends = if is_detailed { FmtSpan::CLOSE } else { FmtSpan::NONE };
        let is_json = self.log_json || self.log_format == LogFormat::Json;
        tracing_subscriber::registry().with(filter).with(lines(is_json, ends)).init();
    }
}

/// Writes lines.
fn lines<S>(is_json: bool, ends: FmtSpan) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(shown::stderr).with_span_events(ends);
    match is_json {
        true => layer.json().flatten_event(true).boxed(),
        false => layer.boxed(),
    }
}
