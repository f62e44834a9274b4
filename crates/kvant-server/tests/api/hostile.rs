//! Single requests that once ended the server, or kept everybody waiting.

use crate::support::*;
use serde_json::json;
#[cfg(feature = "grammar")]
use serde_json::{Map, Value};

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
