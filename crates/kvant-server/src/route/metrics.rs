//! `/metrics`: what has happened, as Prometheus reads it.

use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use kvant_engine::scheduler::{CLASSES, Counters, Histogram};
use std::fmt::Write;
use std::sync::Arc;

pub async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let mut response = Response::new(Body::from(text(&app.handle.counters())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn text(counters: &Counters) -> String {
    let mut out = String::new();
    for (name, help, value) in [
        ("requests_accepted", "Answers taken into the queue.", counters.accepted),
        ("requests_refused", "Answers refused because the queue was full.", counters.refused),
        ("requests_finished", "Answers that ended by themselves.", counters.finished),
        ("requests_cancelled", "Answers whose client went away.", counters.cancelled),
        ("requests_failed", "Answers that failed or ran out of time.", counters.failed),
        ("sequences_set_aside", "Times that a sequence made room for older ones.", counters.set_aside),
        ("prompt_tokens", "Tokens of prompts.", counters.prompt_tokens),
        ("prompt_tokens_cached", "Tokens of prompts found in the cache.", counters.cached_tokens),
        ("generated_tokens", "Tokens generated.", counters.generated_tokens),
        ("passes", "Passes through the network.", counters.passes),
        ("pass_rows", "Tokens of all passes.", counters.rows),
    ] {
        line(&mut out, &format!("{name}_total"), "counter", help, value as f64);
    }
    line(&mut out, "pass_seconds_total", "counter", "Time of all passes.", counters.pass_seconds);
    line(&mut out, "sequences_running", "gauge", "Sequences in work.", counters.running as f64);
    line(&mut out, "requests_waiting", "gauge", "Answers in the queue.", counters.waiting as f64);
    if let Some(disk) = &counters.disk {
        let loaded = ("prompt_tokens_loaded_total", "Tokens of prompts found on disk.", disk.loaded_tokens);
        let written = ("disk_files_written_total", "Files of prefixes written.", disk.written);
        let refused = ("disk_files_refused_total", "Files of prefixes that could not be used.", disk.refused);
        for (name, help, value) in [loaded, written, refused] {
            line(&mut out, name, "counter", help, value as f64);
        }
        line(&mut out, "disk_files", "gauge", "Files of prefixes.", disk.files as f64);
        line(&mut out, "disk_bytes", "gauge", "Bytes of files of prefixes.", disk.bytes as f64);
    }
    let histograms = [
        ("first_token_seconds", "From arrival to the first token.", &counters.first_token),
        ("between_tokens_seconds", "From one token of an answer to its next.", &counters.between_tokens),
    ];
    for (name, help, histogram) in histograms {
        classes(&mut out, name, help, histogram);
    }
    out
}

fn line(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    // Writing to a string cannot fail, here and below.
    let _ = write!(out, "# HELP kvant_{name} {help}\n# TYPE kvant_{name} {kind}\nkvant_{name} {value}\n");
}

fn classes(out: &mut String, name: &str, help: &str, histogram: &Histogram) {
    let _ = write!(out, "# HELP kvant_{name} {help}\n# TYPE kvant_{name} histogram\n");
    let mut sum = 0;
    let ends = CLASSES.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (end, count) in ends.zip(histogram.counts) {
        sum += count;
        let _ = writeln!(out, "kvant_{name}_bucket{{le=\"{end}\"}} {sum}");
    }
    let _ = write!(out, "kvant_{name}_sum {}\nkvant_{name}_count {sum}\n", histogram.sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_add_up_from_the_lowest() {
        let mut counters = Counters { generated_tokens: 7, ..Counters::default() };
        counters.first_token.counts[0] = 2;
        counters.first_token.counts[CLASSES.len()] = 1;
        let text = text(&counters);
        for wanted in [
            "# TYPE kvant_generated_tokens_total counter\nkvant_generated_tokens_total 7\n",
            "kvant_first_token_seconds_bucket{le=\"0.005\"} 2\n",
            "kvant_first_token_seconds_bucket{le=\"60\"} 2\n",
            "kvant_first_token_seconds_bucket{le=\"+Inf\"} 3\n",
            "kvant_first_token_seconds_count 3\n",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
    }
}
