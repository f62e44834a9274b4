//! Requests of the kind that brought other servers down, written from the published descriptions of those faults: counts that are
//! negative or huge, answers without end, clients that leave in the middle. Each must be answered or refused in words, and the server
//! goes on.

use crate::support::*;
use kvant_engine::Arena;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::Duration;

/// Every route that takes a body, with one that it answers.
fn routes() -> Vec<(&'static str, Value)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    vec![
        ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": "Hi", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "Hi", "max_output_tokens": 1})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 1, "model": MODEL})),
        ("/v1/messages/count_tokens", json!({"messages": messages, "model": MODEL})),
        ("/v1/embeddings", json!({"input": "Hi"})),
        ("/v1/rerank", json!({"query": "Hi", "documents": ["a", "b"]})),
        ("/tokenize", json!({"content": "Hi"})),
        ("/detokenize", json!({"tokens": [5, 6]})),
        ("/apply-template", json!({"messages": messages})),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": messages, "stream": false, "options": {"num_predict": 1}}),
        ),
        (
            "/api/generate",
            json!({"model": MODEL, "prompt": "Hi", "stream": false, "options": {"num_predict": 1}}),
        ),
        ("/api/embed", json!({"model": MODEL, "input": "Hi"})),
        ("/api/embeddings", json!({"model": MODEL, "prompt": "Hi"})),
        ("/api/show", json!({"model": MODEL})),
        ("/models/load", json!({"model": MODEL})),
    ]
}

/// Fields that count something, by the names that clients know.
const COUNTS: [&str; 30] = [
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "num_predict",
    "n_predict",
    "n_keep",
    "num_keep",
    "n_discard",
    "n_probs",
    "min_keep",
    "top_k",
    "top_n",
    "top_logprobs",
    "logprobs",
    "id_slot",
    "n_indent",
    "num_ctx",
    "num_batch",
    "repeat_last_n",
    "penalty_window",
    "dimensions",
    "seed",
    "t_max_predict_ms",
    "n_cmpl",
    "min_tokens",
    "truncate_prompt_tokens",
    "keep_alive",
    "budget_tokens",
];

/// What somebody may write where a count belongs.
fn absurd_counts() -> Vec<Value> {
    let written = [
        "-1",
        "-2",
        "-2147483648",
        "-2147483649",
        "-9223372036854775808",
        "-9223372036854775809",
        "2147483648",
        "4294967296",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "1e18",
        "1e300",
        "-1e300",
        "0.5",
        "-0.0",
        "null",
        "true",
        "\"7\"",
        "\"-1\"",
        "[]",
        "[-1]",
        "{}",
        "{\"a\": -1}",
    ];
    written.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// A negative or huge count in a server's request (llama.cpp, CVE-2026-21869), in every field of every route.
#[test]
fn counts_that_are_negative_or_huge_are_refused_or_harmless() {
    let server = usual();
    let bodies = routes();
    for (path, body) in &bodies {
        let answer = server.post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
    let counts = absurd_counts();
    for (number, name) in COUNTS.iter().enumerate() {
        for (other, count) in counts.iter().enumerate() {
            // Each name and each count meets every route, and every count once each name.
            let (path, body) = &bodies[(number + other) % bodies.len()];
            let mut body = body.clone();
            // Without a limit it would write until its context is full, which is right and slow.
            let is_length = name.contains("tokens") || name.contains("predict");
            let is_refused = count.as_f64().is_none_or(|count| count < -1.0 || count.fract() != 0.0);
            if !is_length || is_refused {
                body[*name] = count.clone();
            }
            if path.starts_with("/api/") && body["options"].is_object() && !is_length {
                body["options"][*name] = count.clone();
            }
            let answer = server.post(path, &body);
            assert!((200..500).contains(&answer.status), "{path} {body}: {answer:?}");
        }
    }
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
}

/// Answers without a bound (vLLM, CVE-2026-34756): choices, prompts, texts, stop strings, biases, probabilities.
#[test]
fn numbers_of_answers_are_bounded() {
    let server = usual();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for n in [json!(17), json!(1 << 20), json!(u64::MAX), json!(-1), json!(0), json!(1e9)] {
        server.post("/v1/completions", &json!({"prompt": "x", "n": n, "max_tokens": 1})).fails(400, "n");
        server
            .post("/v1/chat/completions", &json!({"messages": messages, "n": n, "max_tokens": 1}))
            .fails(400, "n");
    }
    let many = |count: usize| vec!["x"; count];
    server.post("/v1/completions", &json!({"prompt": many(9), "n": 2, "max_tokens": 1})).fails(400, "");
    server.post("/v1/completions", &json!({"prompt": many(10_000), "max_tokens": 1})).fails(400, "");
    server.post("/v1/embeddings", &json!({"input": many(10_000)})).fails(400, "");
    server.post("/v1/rerank", &json!({"query": "x", "documents": many(10_000)})).fails(400, "");
    server.post("/v1/completions", &json!({"prompt": "x", "stop": many(10_000)})).fails(400, "stop");
    let biases: serde_json::Map<String, Value> = (0..5000).map(|id| (id.to_string(), json!(1))).collect();
    server.post("/v1/completions", &json!({"prompt": "x", "logit_bias": biases})).fails(400, "bias");
    server.post("/v1/completions", &json!({"prompt": "x", "logprobs": 1 << 30})).fails(400, "logprobs");
    let top = json!({"messages": messages, "logprobs": true, "top_logprobs": 1 << 30});
    server.post("/v1/chat/completions", &top).fails(400, "top_logprobs");
}

/// Ids that a model does not have, as texts and in place of them.
#[test]
fn token_ids_outside_the_vocabulary_are_refused() {
    let server = usual();
    for id in [
        json!(256),
        json!(-1),
        json!(u32::MAX),
        json!(u64::MAX),
        json!(1e40),
        json!(0.5),
        json!("5"),
        json!([5]),
    ] {
        server.post("/v1/completions", &json!({"prompt": [5, id], "max_tokens": 1})).fails(400, "");
        server.post("/detokenize", &json!({"tokens": [5, id]})).fails(400, "");
        server.post("/v1/embeddings", &json!({"input": [5, id]})).fails(400, "");
    }
    for id in ["256", "-1", "4294967296", "18446744073709551616", "x", ""] {
        server.post("/v1/completions", &json!({"prompt": "x", "logit_bias": {id: 1}})).fails(400, "");
    }
}

/// A request that is cancelled while it runs (llama.cpp, CVE-2026-43631): clients leave at every stage, with neighbours, with memory
/// that does not suffice for all, and with files. Those who stay are answered as if they were alone.
#[test]
fn clients_that_leave_at_any_moment_harm_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let work = SchedulerOptions { most_running: 4, ..SchedulerOptions::default() };
    let serve = |arena, folder| serve_within(crate::tiny::model_bytes(true), options(), work, arena, folder);
    let stay =
        json!({"prompt": "the rain in spain ".repeat(8), "max_tokens": 24, "seed": 3, "temperature": 1.0});
    let alone = serve(Arena::new(), None).ask("/v1/completions", stay.clone());
    let server = serve(Arena::with_cap(2 << 20), Some(folder.path()));
    // A generator of its own: the same moments in every run, as far as a network has moments.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move |most: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % most
    };
    let leaving = [
        (
            "/v1/completions",
            json!({"prompt": "on and on ".repeat(20), "max_tokens": 200, "n": 3, "ignore_eos": true}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "on and on", "max_tokens": 200, "stream": true, "ignore_eos": true}),
        ),
        ("/v1/embeddings", json!({"input": ["a ".repeat(100), "b ".repeat(100)]})),
        (
            "/api/generate",
            json!({"model": MODEL, "prompt": "x ".repeat(80), "options": {"num_predict": 100}}),
        ),
    ];
    for round in 0..48 {
        let (path, body) = &leaving[round % leaving.len()];
        let bytes = request(path, body, "");
        let mut stream = server.connect();
        // Half of a request, all of it, or some of its answer, and gone.
        let sent = match next(3) {
            0 => next(bytes.len() as u64) as usize,
            _ => bytes.len(),
        };
        stream.write_all(&bytes[..sent]).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1 + next(30)))).unwrap();
        let _ = stream.read(&mut vec![0; 1 + next(400) as usize]);
        drop(stream);
        if round % 12 == 11 {
            assert_eq!(server.ask("/v1/completions", stay.clone())["choices"], alone["choices"], "{round}");
        }
    }
    server.wait_until(|counters| counters.running + counters.waiting == 0);
    assert!(server.handle.counters().cancelled > 0, "{:?}", server.handle.counters());
    assert_eq!(server.ask("/v1/completions", stay)["choices"], alone["choices"]);
    assert_eq!(server.get("/health").status, 200);
}

/// Values of the wrong kind, and bodies that go deep, where a parser believes what it was promised.
#[test]
fn values_of_any_kind_in_any_field_are_answered_in_words() {
    let server = usual();
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let odd =
        [json!(null), json!(-1), json!(""), json!("\u{0}\u{fffe}"), json!([null]), json!({"": {}}), deep];
    for (path, body) in routes() {
        let names: Vec<String> = body.as_object().unwrap().keys().cloned().collect();
        for name in names {
            for value in &odd {
                let mut body = body.clone();
                body[&name] = value.clone();
                // Without a limit it would write until its context is full.
                if name != "max_tokens" && name != "max_output_tokens" && name != "options" {
                    let answer = server.post(path, &body);
                    assert!((200..500).contains(&answer.status), "{path} {body}: {answer:?}");
                }
            }
        }
    }
    let text = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n";
    server.raw(format!("{head}Content-Length: {}\r\n\r\n{text}", text.len()).as_bytes()).fails(400, "");
    assert_eq!(server.get("/health").status, 200);
}

/// Settings that leave nothing to say are the request's fault, and not the server's.
#[test]
#[cfg(feature = "grammar")]
fn a_request_that_forbids_every_answer_is_refused() {
    let server = usual();
    let body = json!({"prompt": "x", "max_tokens": 5, "ignore_eos": true, "grammar": "root ::= \"\""});
    let answer = server.post("/v1/completions", &body);
    assert!((200..500).contains(&answer.status), "{answer:?}");
}
