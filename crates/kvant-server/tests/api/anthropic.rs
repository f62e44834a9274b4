//! `/v1/messages`.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::{Keys, ServerOptions};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const THINKING: &str = include_str!("../../../kvant-model/tests/support/thinking.jinja");
const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

fn ask(text: &str) -> Value {
    json!({"model": "claude-anything", "max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": text}]})
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn weather() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    json!([{"name": "weather", "description": "Forecasts it.", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search"}])
}

/// The text that a stream's deltas of one kind have.
fn joined(events: &[(String, Value)], field: &str) -> String {
    events.iter().filter_map(|(_, data)| data["delta"][field].as_str()).collect()
}

#[test]
fn a_message_says_what_a_chat_says() {
    let server = usual();
    let message = server.ask(PATH, ask("hello there"));
    let chat =
        json!({"messages": [{"role": "user", "content": "hello there"}], "temperature": 0, "max_tokens": 12});
    let chat = server.ask("/v1/chat/completions", chat);
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
    );
    assert_eq!(
        (&message["type"], &message["role"], &message["model"]),
        (&json!("message"), &json!("assistant"), &json!(MODEL))
    );
    assert!(message["id"].as_str().unwrap().starts_with("msg-"));
    let usage = &message["usage"];
    assert_eq!(usage["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(usage["output_tokens"], chat["usage"]["completion_tokens"]);
    let count = server.ask("/v1/messages/count_tokens", json!({"messages": ask("hello there")["messages"]}));
    assert_eq!(count["input_tokens"], usage["input_tokens"]);
    // What is in the cache is no part of the input.
    let long = ask(&"hello there ".repeat(12));
    let (first, second) = (server.ask(PATH, long.clone()), server.ask(PATH, long));
    let tokens = |message: &Value, name: &str| message["usage"][name].as_u64().unwrap();
    assert!(tokens(&second, "cache_read_input_tokens") >= 68);
    assert_eq!(
        tokens(&first, "input_tokens"),
        tokens(&second, "input_tokens") + tokens(&second, "cache_read_input_tokens")
    );
}

#[test]
fn a_stream_has_blocks_that_begin_grow_and_end() {
    let server = usual();
    let whole = server.ask(PATH, ask("tell me"));
    let events = server.events(PATH, ask("tell me"));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..3], ["message_start", "ping", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    assert!(events.iter().all(|(name, data)| data["type"] == name.as_str()));
    assert_eq!(joined(&events, "text"), whole["content"][0]["text"].as_str().unwrap());
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
    let last = &events[events.len() - 2].1;
    assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[test]
fn stop_sequences_and_limits_are_named() {
    let server = usual();
    let text = server.ask(PATH, with(ask("go on"), json!({"max_tokens": 20})))["content"][0]["text"].clone();
    let stop: String = text.as_str().unwrap().chars().skip(3).take(2).collect();
    let stopped = server.ask(PATH, with(ask("go on"), json!({"max_tokens": 20, "stop_sequences": [stop]})));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    let cut = server.ask(PATH, with(ask("go on"), json!({"max_tokens": 1})));
    assert_eq!(cut["stop_reason"], "max_tokens");
}

#[cfg(feature = "grammar")]
#[test]
fn tools_are_called_and_their_results_come_back() {
    let server = serve(model_with(Some(TOOLS)), options(), SchedulerOptions::default());
    let body =
        with(ask("rain?"), json!({"tools": weather(), "tool_choice": {"type": "any"}, "max_tokens": 200}));
    let answer = server.post(PATH, &body);
    assert!(
        answer.head.contains("x-kvant-ignored-fields: tools[1] (web_search_20250305)"),
        "{}",
        answer.head
    );
    let message = answer.json();
    let call = &message["content"][0];
    assert_eq!(
        (&message["stop_reason"], &call["type"], &call["name"]),
        (&json!("tool_use"), &json!("tool_use"), &json!("weather"))
    );
    assert!(["Oslo", "Rome"].contains(&call["input"]["city"].as_str().unwrap()), "{call}");
    let events = server.events(PATH, body.clone());
    let arguments: Value = serde_json::from_str(&joined(&events, "partial_json")).unwrap();
    assert_eq!(arguments, call["input"]);
    let begun = events.iter().find(|(name, _)| name == "content_block_start").unwrap();
    assert_eq!(
        (&begun.1["content_block"]["type"], &begun.1["content_block"]["input"]),
        (&json!("tool_use"), &json!({}))
    );
    // The result goes to the template as a turn of its own, and text beside it as another.
    let turns = json!([
        {"role": "user", "content": "rain?"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "sun"}]},
            {"type": "text", "text": "and now?"},
        ]},
    ]);
    let count = |turns: &Value| {
        let body = json!({"messages": turns, "tools": weather()});
        server.ask("/v1/messages/count_tokens", body)["input_tokens"].as_u64().unwrap()
    };
    let without = json!([turns[0], turns[1]]);
    assert!(count(&turns) > count(&without) + 10);
    server
        .ask(PATH, with(body, json!({"messages": turns, "tool_choice": {"type": "auto"}, "max_tokens": 4})));
}

#[test]
fn thinking_is_a_block_of_its_own() {
    let server = serve(model_with(Some(THINKING)), options(), SchedulerOptions::default());
    let body =
        with(ask("why?"), json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 40}));
    let message = server.ask(PATH, body.clone());
    assert_eq!(message["content"][0]["type"], "thinking", "{message}");
    let events = server.events(PATH, body);
    assert_eq!(joined(&events, "thinking"), message["content"][0]["thinking"].as_str().unwrap());
    let plain = server.ask(PATH, with(ask("why?"), json!({"thinking": {"type": "disabled"}})));
    assert_eq!(plain["content"][0]["type"], "text");
}

#[test]
fn errors_have_anthropics_shape() {
    let server = usual();
    for (body, words) in [
        (json!({}), "messages is required"),
        (json!({"messages": []}), "1 to"),
        (with(ask("x"), json!({"temperature": 9})), "temperature"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}), "image"),
        (with(ask("x"), json!({"tool_choice": {"type": "any"}})), "there are none"),
    ] {
        let answer = server.post(PATH, &body);
        let error = answer.json();
        assert_eq!((answer.status, &error["type"]), (400, &json!("error")), "{answer:?}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].as_str().unwrap().contains(words), "{error}");
    }
    let keyed = ServerOptions { keys: Keys::new(["sesame"]), ..options() };
    let server = start(keyed, SchedulerOptions::default());
    let answer = server.post(PATH, &ask("x"));
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (401, &json!("authentication_error")));
    assert_eq!(server.raw(&request(PATH, &ask("x"), "x-api-key: sesame\r\n")).status, 200);
}

#[cfg(feature = "grammar")]
#[test]
fn a_format_is_followed_under_both_of_its_names() {
    let server = usual();
    let format = json!({"type": "json_schema", "schema": {"const": "x"}});
    for more in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 30});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.ask("/v1/messages", body)["content"][0]["text"], "\"x\"", "{more}");
    }
}
