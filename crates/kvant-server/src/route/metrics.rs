//! `/metrics`: what has happened, as Prometheus reads it.

use crate::app::App;
use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use axum::http::header::{CONTENT_TYPE, HeaderValue};
use kvant_engine::scheduler::{BUCKETS, Counters, Histogram};
use std::fmt::Write;
use std::sync::Arc;

pub async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let loaded = app.models.loaded();
    let all: Vec<(&str, Counters)> =
        loaded.iter().map(|served| (served.name.as_str(), served.handle.counters())).collect();
    let mut response = Response::new(Body::from(text(&all)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// A figure of a model.
type Figure = fn(&Counters) -> f64;

/// Names are vLLM's, so that its dashboards need another prefix and nothing else.
const FIGURES: [(&str, &str, &str, Figure); 18] = [
    ("num_requests_running", "gauge", "Sequences being processed.", |c| c.running as f64),
    ("num_requests_waiting", "gauge", "Requests in the queue.", |c| c.waiting as f64),
    ("request_accepted_total", "counter", "Requests taken into the queue.", |c| c.accepted as f64),
    ("request_refused_total", "counter", "Requests refused because the queue was full.", |c| {
        c.refused as f64
    }),
    ("request_success_total", "counter", "Requests that ended by themselves.", |c| c.finished as f64),
    ("request_aborted_total", "counter", "Requests whose client went away.", |c| c.cancelled as f64),
    ("request_failed_total", "counter", "Requests that failed or ran out of time.", |c| c.failed as f64),
    ("num_preemptions_total", "counter", "Times that a sequence was preempted.", |c| c.preemptions as f64),
    ("prompt_tokens_total", "counter", "Tokens of prompts.", |c| c.prompt_tokens as f64),
    ("prefix_cache_queries_total", "counter", "Tokens of prompts looked for in the prefix cache.", |c| {
        c.prompt_tokens as f64
    }),
    ("prefix_cache_hits_total", "counter", "Tokens of prompts found in the prefix cache.", |c| {
        c.cached_tokens as f64
    }),
    ("generation_tokens_total", "counter", "Tokens generated.", |c| c.generated_tokens as f64),
    (
        "spec_decode_num_draft_tokens_total",
        "counter",
        "Draft tokens proposed by speculative decoding.",
        |c| c.proposed_tokens as f64,
    ),
    ("spec_decode_num_accepted_tokens_total", "counter", "Draft tokens accepted.", |c| {
        c.accepted_tokens as f64
    }),
    ("iterations_total", "counter", "Passes through the network.", |c| c.passes as f64),
    ("iteration_tokens_total", "counter", "Tokens of all passes.", |c| c.rows as f64),
    ("iteration_seconds_total", "counter", "Time of all passes.", |c| c.pass_seconds),
    ("disk_tokens_loaded_total", "counter", "Tokens of prompts found on disk.", |c| {
        c.disk.map_or(0.0, |disk| disk.loaded_tokens as f64)
    }),
];

/// The same of prefixes on disk.
const DISK_FIGURES: [(&str, &str, &str, Figure); 4] = [
    ("disk_files_written_total", "counter", "Files of prefixes written.", |c| {
        c.disk.map_or(0.0, |disk| disk.written as f64)
    }),
    ("disk_files_refused_total", "counter", "Files of prefixes that could not be used.", |c| {
        c.disk.map_or(0.0, |disk| disk.refused as f64)
    }),
    ("disk_files", "gauge", "Files of prefixes.", |c| c.disk.map_or(0.0, |disk| disk.files as f64)),
    ("disk_bytes", "gauge", "Bytes of files of prefixes.", |c| c.disk.map_or(0.0, |disk| disk.bytes as f64)),
];

/// A histogram: its name, its help and where it is counted.
type HistogramFigure = (&'static str, &'static str, fn(&Counters) -> &Histogram);

const HISTOGRAMS: [HistogramFigure; 2] = [
    ("time_to_first_token_seconds", "From arrival to the first token.", |c| &c.first_token),
    ("inter_token_latency_seconds", "From one token of an answer to its next.", |c| &c.between_tokens),
];

fn text(models: &[(&str, Counters)]) -> String {
    let mut out = String::new();
    let has_disk = models.iter().any(|(_, counters)| counters.disk.is_some());
    let disk = DISK_FIGURES.iter().filter(|_| has_disk);
    for (name, kind, help, figure) in FIGURES.iter().chain(disk) {
        head(&mut out, name, kind, help);
        for (model, counters) in models {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(out, "kvant_{name}{{model_name=\"{}\"}} {}", escaped(model), figure(counters));
        }
    }
    for (name, help, histogram) in HISTOGRAMS {
        head(&mut out, name, "histogram", help);
        for (model, counters) in models {
            buckets(&mut out, name, &escaped(model), histogram(counters));
        }
    }
    out
}

fn escaped(model: &str) -> String {
    model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(out, "# HELP kvant_{name} {help}\n# TYPE kvant_{name} {kind}\n");
}

fn buckets(out: &mut String, name: &str, model: &str, histogram: &Histogram) {
    let mut sum = 0;
    let ends = BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
    for (end, count) in ends.zip(histogram.counts) {
        sum += count;
        let _ = writeln!(out, "kvant_{name}_bucket{{model_name=\"{model}\",le=\"{end}\"}} {sum}");
    }
    let _ = writeln!(out, "kvant_{name}_sum{{model_name=\"{model}\"}} {}", histogram.sum);
    let _ = writeln!(out, "kvant_{name}_count{{model_name=\"{model}\"}} {sum}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_from_the_lowest() {
        let mut counters = Counters { generated_tokens: 7, ..Counters::default() };
        counters.first_token.counts[0] = 2;
        counters.first_token.counts[BUCKETS.len()] = 1;
        let text = text(&[("a\"b", counters)]);
        for wanted in [
            "# TYPE kvant_generation_tokens_total counter\nkvant_generation_tokens_total{model_name=\"a\\\"b\"} 7\n",
            "kvant_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.005\"} 2\n",
            "kvant_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"60\"} 2\n",
            "kvant_time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 3\n",
            "kvant_time_to_first_token_seconds_count{model_name=\"a\\\"b\"} 3\n",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
        assert!(!text.contains("disk_files"));
    }
}
