//! Agents: many turns with a long front, in the request shapes of three of them. The text is generated; only its shape and its
//! length are theirs.

use crate::support::*;
use kvant_engine::Arena;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::ServerOptions;
use serde_json::{Value, json};
use std::path::Path;

/// Words that depend on a number.
fn words(number: usize, count: usize) -> String {
    let letters = b"etaoinshrdlu";
    let word = |i: usize| -> String {
        (0..4).map(|k| char::from(letters[(i * 7919 + number * 104_729 + k * 31) % letters.len()])).collect()
    };
    (0..count).map(word).collect::<Vec<_>>().join(" ")
}

fn server(folder: Option<&Path>, strip: bool) -> Running {
    let options = ServerOptions { strip_volatile: strip, ..options() };
    serve_within(
        long_model(Some(crate::tiny::TEMPLATE)),
        options,
        SchedulerOptions::default(),
        Arena::new(),
        folder,
    )
}

/// A tool whose description is long.
fn description() -> String {
    words(77, 120)
}

/// How an agent asks, and what came of it: (path, body of a turn, answer's text, prompt and cached tokens).
struct Agent {
    path: &'static str,
    /// The body of turn `turn`, after these answers.
    body: fn(usize, &[String]) -> Value,
    text: fn(&Value) -> String,
    /// Tokens of the prompt, and those of them that were cached.
    tokens: fn(&Value) -> (u64, u64),
}

/// A line with a hash of the request first, and a count that falls last.
fn volatile_system(turn: usize) -> Value {
    let hash = format!("{:05x}", turn * 7919 + 4099);
    json!([
        {"type": "text", "text": format!("x-anthropic-billing-header: cc_version=1.2.3; cc_entrypoint=cli; cch={hash};")},
        {"type": "text", "text": words(1, 1400), "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": format!("{}\n<total_tokens>{} tokens left</total_tokens>", words(2, 200), 900_000 - turn * 1234)},
    ])
}

const MESSAGES: Agent = Agent {
    path: "/v1/messages",
    body: |turn, answers| {
        let mut turns = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            turns.push(json!({"role": "user", "content": [{"type": "text", "text": words(10 + index, 40)}]}));
            turns.push(json!({"role": "assistant", "content": [{"type": "text", "text": answer}]}));
            turns.push(json!({"role": "system", "content": format!("<total_tokens>{} tokens left</total_tokens>", 800_000 - index)}));
        }
        turns.push(json!({"role": "user", "content": [{"type": "text", "text": words(10 + turn, 40)}]}));
        let tools =
            json!([{"name": "edit", "description": description(), "input_schema": {"type": "object"}}]);
        json!({"system": volatile_system(turn), "messages": turns, "tools": tools, "max_tokens": 24, "temperature": 0})
    },
    text: |answer| answer["content"][0]["text"].as_str().unwrap().to_owned(),
    tokens: |answer| {
        let read = answer["usage"]["input_tokens"].as_u64().unwrap();
        let cached = answer["usage"]["cache_read_input_tokens"].as_u64().unwrap();
        (read + cached, cached)
    },
};

const RESPONSES: Agent = Agent {
    path: "/v1/responses",
    body: |turn, answers| {
        let mut items = vec![
            json!({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": words(3, 80)}]}),
        ];
        for (index, answer) in answers.iter().enumerate() {
            items.push(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words(10 + index, 40)}]}));
            items.push(json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}));
        }
        items.push(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": words(10 + turn, 40)}]}));
        let tools = json!([{"type": "function", "name": "shell", "description": description(), "parameters": {"type": "object"}},
            {"type": "web_search"}]);
        json!({"instructions": words(1, 1600), "input": items, "tools": tools, "store": false, "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": format!("session-{turn}"), "max_output_tokens": 24, "temperature": 0})
    },
    text: |answer| answer["output"][0]["content"][0]["text"].as_str().unwrap().to_owned(),
    tokens: |answer| {
        let usage = &answer["usage"];
        (
            usage["input_tokens"].as_u64().unwrap(),
            usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        )
    },
};

const CHAT: Agent = Agent {
    path: "/v1/chat/completions",
    body: |turn, answers| {
        let mut turns = vec![json!({"role": "system", "content": words(1, 1600)})];
        for (index, answer) in answers.iter().enumerate() {
            turns.push(json!({"role": "user", "content": words(10 + index, 40)}));
            turns.push(json!({"role": "assistant", "content": answer}));
        }
        turns.push(json!({"role": "user", "content": words(10 + turn, 40)}));
        let tools = json!([{"type": "function", "function": {"name": "read", "description": description(), "parameters": {"type": "object"}}}]);
        json!({"messages": turns, "tools": tools, "max_tokens": 24, "temperature": 0})
    },
    text: |answer| answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned(),
    tokens: |answer| {
        let usage = &answer["usage"];
        (
            usage["prompt_tokens"].as_u64().unwrap(),
            usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        )
    },
};

const TURNS: usize = 6;

/// The share of prompt tokens that were reused, from the second turn on.
fn reused(server: &Running, agent: &Agent, first: usize) -> f64 {
    let mut answers: Vec<String> = (0..first).map(|i| words(500 + i, 6)).collect();
    let (mut prompt, mut cached) = (0, 0);
    for turn in first..first + TURNS {
        let answer = server.ask(agent.path, (agent.body)(turn, &answers));
        let tokens = (agent.tokens)(&answer);
        if turn > first {
            prompt += tokens.0;
            cached += tokens.1;
        }
        answers.push((agent.text)(&answer));
    }
    cached as f64 / prompt as f64
}

#[test]
fn agents_reuse_what_they_said_before() {
    for agent in [&MESSAGES, &RESPONSES, &CHAT] {
        let server = server(None, true);
        let share = reused(&server, agent, 0);
        println!("{}: {:.1} % of prompt tokens reused", agent.path, 100.0 * share);
        assert!(share >= 0.95, "{}: {share}", agent.path);
    }
}

#[test]
fn lines_that_change_with_every_request_defeat_the_cache_unless_they_are_left_out() {
    let kept = server(None, false);
    assert!(reused(&kept, &MESSAGES, 0) < 0.2);
    let stripping = server(None, true);
    let answer = stripping.post(MESSAGES.path, &(MESSAGES.body)(0, &[]));
    assert!(answer.head.contains("x-kvant-stripped: billing-header, token-count"), "{}", answer.head);
    let answer = stripping.post(CHAT.path, &(CHAT.body)(0, &[]));
    assert!(!answer.head.contains("x-kvant-stripped"), "{}", answer.head);
}

#[test]
fn a_server_started_anew_goes_on_from_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut answers = Vec::new();
    {
        let first = server(Some(folder.path()), true);
        for turn in 0..3 {
            let answer = first.ask(MESSAGES.path, (MESSAGES.body)(turn, &answers));
            answers.push((MESSAGES.text)(&answer));
        }
        first.end();
    }
    let second = server(Some(folder.path()), true);
    let answer = second.ask(MESSAGES.path, (MESSAGES.body)(3, &answers));
    let (prompt, cached) = (MESSAGES.tokens)(&answer);
    assert!(cached as f64 >= 0.95 * prompt as f64, "{cached} of {prompt}");
}
