//! Single requests that once ended the server, or kept everybody waiting.

use crate::support::*;
#[cfg(feature = "grammar")]
use kvant_engine::scheduler::SchedulerOptions;
#[cfg(feature = "grammar")]
use kvant_server::{Limits, ServerOptions};
use serde_json::json;
#[cfg(feature = "grammar")]
use serde_json::{Map, Value};
#[cfg(feature = "grammar")]
use std::io::Write;
#[cfg(feature = "grammar")]
use std::time::Duration;

/// A schema whose compilation once overflowed a thread's stack.
#[cfg(feature = "grammar")]
fn reference_chain(length: usize) -> Value {
    let one = |number: usize| (format!("d{number}"), json!({"$ref": format!("#/$defs/d{}", number + 1)}));
    let mut definitions: Map<String, Value> = (0..length).map(one).collect();
    definitions.insert(format!("d{length}"), json!({"type": "boolean"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

#[test]
#[cfg(feature = "grammar")]
fn no_grammar_overflows_the_stack_of_the_server() {
    let server = usual();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let openai = |schema: Value| json!({"messages": messages, "max_tokens": 3, "json_schema": schema});
    let chain = || reference_chain(5000);
    let bound = "8192 are the most";
    server.post("/v1/chat/completions", &openai(chain())).fails(400, bound);
    let format = json!({"type": "json_schema", "name": "x", "schema": chain()});
    server.post("/v1/responses", &json!({"input": "Hi", "text": {"format": format}})).fails(400, bound);
    let ollama = server.post("/api/chat", &json!({"messages": messages, "stream": false, "format": chain()}));
    assert_eq!(ollama.status, 400);
    assert!(ollama.json()["error"].as_str().unwrap().contains(bound));
    let rules: String = (1..5000).map(|n| format!("r{n} ::= \"(\" r{} \")\"\n", n + 1)).collect();
    let grammar = format!("root ::= r1\n{rules}r5000 ::= \"x\" root?\n");
    let asked = json!({"messages": messages, "max_tokens": 3, "grammar": grammar});
    server.post("/v1/chat/completions", &asked).fails(400, "4096 are the most");
    // What is within the bounds is answered.
    assert_eq!(server.post("/v1/chat/completions", &openai(reference_chain(2000))).status, 200);
}

#[test]
fn prompts_that_cannot_fit_are_refused_by_their_length() {
    let server = usual();
    let digits = "7".repeat(1 << 20);
    let chat = json!({"messages": [{"role": "user", "content": digits}]});
    for (path, body) in [
        ("/v1/chat/completions", &chat),
        ("/v1/completions", &json!({"prompt": digits})),
        ("/v1/embeddings", &json!({"input": digits})),
        ("/tokenize", &json!({"content": digits})),
    ] {
        let error = server.post(path, body).fails(400, "the prompt has at least");
        assert_eq!(error["code"], "context_length_exceeded", "{path}");
    }
}

/// A schema whose patterns have automata of exponential size, one larger than the other.
#[cfg(feature = "grammar")]
fn exponential_patterns() -> Value {
    let pattern = |i: usize| json!({"type": "string", "pattern": format!("^(a|b)*a(a|b){{{i}}}$")});
    let properties: Map<String, Value> = (0..30).map(|i| (format!("p{i}"), pattern(i))).collect();
    let required: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

/// One place to prepare requests in, for so long.
#[cfg(feature = "grammar")]
fn one_preparation(preparation: Duration) -> Running {
    let limits = Limits { preparations: 1, preparation, ..Limits::default() };
    start(ServerOptions { limits, ..options() }, SchedulerOptions::default())
}

#[test]
#[cfg(feature = "grammar")]
fn a_schema_of_exponential_patterns_ends_and_holds_no_place() {
    let server = one_preparation(Duration::from_secs(20));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": messages, "max_tokens": 3, "json_schema": exponential_patterns()});
    // It is compiled while it is used, so it may be answered.
    let status = server.post("/v1/chat/completions", &body).status;
    assert!(status == 200 || status == 400, "{status}");
    server.ask("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3}));
}

#[test]
#[cfg(feature = "grammar")]
fn the_preparation_of_a_client_that_has_gone_is_broken_off() {
    let server = one_preparation(Duration::from_secs(3600));
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let body = json!({"messages": messages, "max_tokens": 3, "json_schema": exponential_patterns()});
    let mut stream = server.connect();
    stream.write_all(&request("/v1/chat/completions", &body, "")).unwrap();
    // It has begun, or begins and ends at once.
    std::thread::sleep(Duration::from_millis(100));
    drop(stream);
    server.ask("/v1/chat/completions", json!({"messages": messages, "max_tokens": 3}));
}

/// Grammars with more and more ways to read the same text.
#[test]
#[cfg(feature = "grammar")]
fn ambiguous_grammars_do_not_hold_up_a_neighbour() {
    let server = usual();
    let grammar = "root ::= s\ns ::= s s s | s s | [a-z ] | [a-z ]{2,9} | \"\"\n";
    let body =
        json!({"prompt": "x", "max_tokens": 400, "stream": true, "ignore_eos": true, "grammar": grammar});
    let ambiguous: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(&request("/v1/completions", &body, "")).unwrap();
            stream
        })
        .collect();
    server.wait_until(|counters| counters.accepted == 8);
    let plain = json!({"prompt": "y", "max_tokens": 50, "ignore_eos": true});
    assert_eq!(server.ask("/v1/completions", plain)["usage"]["completion_tokens"], 50);
    // Those clients leave, and with them what is still being computed for them.
    drop(ambiguous);
    server.wait_until(|counters| counters.running + counters.waiting == 0);
    assert_eq!(server.get("/health").status, 200);
}
