//! `/v1/responses`.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use kvant_server::{Keys, Limits, ServerOptions};
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";
const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

fn ask(input: Value) -> Value {
    json!({"model": MODEL, "input": input, "temperature": 0, "max_output_tokens": 12})
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn text_of(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

#[test]
fn a_response_says_what_a_chat_says() {
    let server = usual();
    let body = with(ask(json!("hello there")), json!({"instructions": "Be brief."}));
    let response = server.ask(PATH, body);
    let turns =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello there"}]);
    let chat =
        server.ask("/v1/chat/completions", json!({"messages": turns, "temperature": 0, "max_tokens": 12}));
    assert_eq!(text_of(&response), chat["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!((&response["object"], &response["instructions"]), (&json!("response"), &json!("Be brief.")));
    let ended = chat["choices"][0]["finish_reason"] == "length";
    assert_eq!(response["status"], if ended { "incomplete" } else { "completed" });
}

#[test]
fn a_conversation_may_be_kept_by_the_server() {
    let server = usual();
    let first = server.ask(PATH, ask(json!("one")));
    let second = server.ask(PATH, with(ask(json!("two")), json!({"previous_response_id": first["id"]})));
    let whole = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": [{"type": "output_text", "text": text_of(&first)}]},
        {"role": "user", "content": "two"},
    ]);
    let repeated = server.ask(PATH, ask(whole));
    assert_eq!(text_of(&second), text_of(&repeated));
    assert_eq!(second["usage"]["input_tokens"], repeated["usage"]["input_tokens"]);
    assert_eq!(
        (&second["previous_response_id"], &repeated["previous_response_id"]),
        (&first["id"], &Value::Null)
    );
    // And by one that was streamed.
    let events = server.events(PATH, with(ask(json!("two")), json!({"previous_response_id": first["id"]})));
    let streamed = &events.last().unwrap().1["response"];
    let third = json!({"previous_response_id": streamed["id"]});
    assert_eq!(server.post(PATH, &with(ask(json!("three")), third)).status, 200);
    // It can be looked at, and forgotten.
    let path = format!("{PATH}/{}", first["id"].as_str().unwrap());
    assert_eq!(server.get(&path).json(), first);
    let delete = format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(server.raw(delete.as_bytes()).json()["deleted"], true);
    let error = server
        .post(PATH, &with(ask(json!("x")), json!({"previous_response_id": first["id"]})))
        .fails(404, "whole conversation");
    assert_eq!(
        (&error["code"], &error["param"]),
        (&json!("response_not_found"), &json!("previous_response_id"))
    );
    // What is not to be kept is not.
    let passing = server.ask(PATH, with(ask(json!("x")), json!({"store": false})));
    server.post(PATH, &with(ask(json!("x")), json!({"previous_response_id": passing["id"]}))).fails(404, "");
}

#[test]
fn kept_responses_are_bounded_and_apart_for_every_key() {
    let limits = Limits { stored: 2, ..Limits::default() };
    let server = start(
        ServerOptions { limits, keys: Keys::new(["a", "b"]), ..options() },
        SchedulerOptions::default(),
    );
    let post = |key: &str, body: &Value| {
        server.raw(&request(PATH, body, &format!("Authorization: Bearer {key}\r\n")))
    };
    let ids: Vec<Value> = (0..3).map(|_| post("a", &ask(json!("x"))).json()["id"].clone()).collect();
    let after = |key: &str, id: &Value| {
        post(key, &with(ask(json!("y")), json!({"previous_response_id": id, "store": false}))).status
    };
    assert_eq!((after("a", &ids[0]), after("a", &ids[1]), after("a", &ids[2])), (404, 200, 200));
    assert_eq!(after("b", &ids[2]), 404);
}

#[test]
fn a_stream_numbers_its_events_and_ends_with_the_whole() {
    let server = usual();
    let whole = server.ask(PATH, ask(json!("tell me")));
    let events = server.events(PATH, ask(json!("tell me")));
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    let end = if whole["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
    assert_eq!(
        names[names.len() - 4..],
        ["response.output_text.done", "response.content_part.done", "response.output_item.done", end]
    );
    for (number, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
    }
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect();
    let last = &events.last().unwrap().1["response"];
    assert_eq!((text.as_str(), text_of(last)), (text_of(&whole), text_of(&whole)));
    assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
}

#[cfg(feature = "grammar")]
#[test]
fn functions_are_called_and_other_tools_are_named() {
    let server = serve(model_with(Some(TOOLS)), options(), SchedulerOptions::default());
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": false});
    let tools = json!([{"type": "function", "name": "weather", "parameters": schema, "strict": true}, {"type": "web_search"}]);
    let body = with(
        ask(json!("rain?")),
        json!({"tools": tools, "tool_choice": "required", "max_output_tokens": 200}),
    );
    let answer = server.post(PATH, &body);
    assert!(answer.head.contains("x-kvant-ignored-fields: tools[1] (web_search)"), "{}", answer.head);
    let response = answer.json();
    let call = &response["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &response["status"]),
        (&json!("function_call"), &json!("weather"), &json!("completed"))
    );
    let events = server.events(PATH, body.clone());
    let done = events.iter().find(|(name, _)| name == "response.function_call_arguments.done").unwrap();
    assert_eq!(done.1["arguments"], call["arguments"]);
    // The result alone, after a response that the server keeps.
    let result = json!([{"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}]);
    let after = with(ask(result), json!({"previous_response_id": response["id"], "tools": tools}));
    let after = server.ask(PATH, after);
    assert!(after["usage"]["input_tokens"].as_u64() > response["usage"]["input_tokens"].as_u64());
    let format =
        json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "boolean"}}}});
    let formatted = server.ask(PATH, with(ask(json!("x")), format));
    assert!(["true", "false"].contains(&text_of(&formatted)), "{formatted}");
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    let server = usual();
    for (body, param) in [
        (json!({}), "input"),
        (ask(json!(5)), "input"),
        (with(ask(json!("x")), json!({"background": true})), "background"),
        (with(ask(json!("x")), json!({"text": {"format": {"type": "xml"}}})), "text.format.type"),
        (with(ask(json!("x")), json!({"tool_choice": "required"})), "tool_choice"),
        (with(ask(json!("x")), json!({"max_output_tokens": 0})), "max_output_tokens"),
    ] {
        let error = server.post(PATH, &body).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}
