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

#[test]
fn probabilities_of_text_are_given_whole_and_in_pieces() {
    let server = usual();
    let body = with(ask(json!("hello there")), json!({"top_logprobs": 2}));
    let response = server.ask(PATH, body.clone());
    let chat = json!({"messages": [{"role": "user", "content": "hello there"}], "temperature": 0, "max_tokens": 12,
        "logprobs": true, "top_logprobs": 2});
    let chat = server.ask("/v1/chat/completions", chat);
    let told = &response["output"][0]["content"][0]["logprobs"];
    let (told, all) =
        (told.as_array().unwrap(), chat["choices"][0]["logprobs"]["content"].as_array().unwrap());
    assert!(!told.is_empty() && told[..] == all[..told.len()], "{response}");
    assert_eq!(response["top_logprobs"], 2);
    let events = server.events(PATH, body);
    let of = |name: &'static str| events.iter().filter(move |(event, _)| event == name);
    let deltas =
        of("response.output_text.delta").flat_map(|(_, data)| data["logprobs"].as_array().unwrap().clone());
    assert_eq!(deltas.collect::<Vec<Value>>(), *told);
    assert_eq!(of("response.output_text.done").next().unwrap().1["logprobs"], json!(told));
    let included = with(ask(json!("x")), json!({"include": ["message.output_text.logprobs"]}));
    let included = server.ask(PATH, included);
    assert_eq!(included["output"][0]["content"][0]["logprobs"][0]["top_logprobs"], json!([]));
    assert_eq!(server.ask(PATH, ask(json!("x")))["output"][0]["content"][0]["logprobs"], json!([]));
}

#[test]
fn items_that_were_cut_are_incomplete() {
    let server = usual();
    let body = with(ask(json!("tell me")), json!({"max_output_tokens": 3}));
    let response = server.ask(PATH, body.clone());
    assert_eq!(
        (&response["status"], &response["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    let events = server.events(PATH, body);
    let done = events.iter().find(|(name, _)| name == "response.output_item.done").unwrap();
    assert_eq!(done.1["item"]["status"], "incomplete");
    let thinking = include_str!("../../../kvant-model/tests/support/thinking.jinja");
    let thinker = serve(model_with(Some(thinking)), options(), SchedulerOptions::default());
    let body = with(ask(json!("why?")), json!({"reasoning": {"effort": "high"}, "max_output_tokens": 4}));
    let response = thinker.ask(PATH, body.clone());
    let items = |response: &Value| {
        let item = |item: &Value| (item["type"].clone(), item["status"].clone());
        response["output"].as_array().unwrap().iter().map(item).collect::<Vec<_>>()
    };
    assert_eq!(items(&response), [(json!("reasoning"), json!("incomplete"))], "{response}");
    let events = thinker.events(PATH, body);
    assert_eq!(items(&events.last().unwrap().1["response"]), items(&response));
}

#[test]
fn what_a_response_was_made_from_is_listed() {
    let server = usual();
    let first = server.ask(PATH, ask(json!("one")));
    let second =
        with(ask(json!([{"role": "user", "content": "two"}])), json!({"previous_response_id": first["id"]}));
    let second = server.ask(PATH, second);
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let list = server.get(&format!("{path}?order=asc")).json();
    let items = list["data"].as_array().unwrap();
    assert_eq!(items.len(), 3, "{list}");
    assert_eq!(items[0]["content"][0], json!({"type": "input_text", "text": "one"}));
    assert_eq!((&items[1], &items[2]["content"]), (&first["output"][0], &json!("two")));
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&items[0]["id"], &items[2]["id"], &json!(false))
    );
    let newest = server.get(&format!("{path}?limit=1")).json();
    assert_eq!((&newest["data"][0], &newest["has_more"]), (&items[2], &json!(true)));
    let after = server.get(&format!("{path}?after={}", items[2]["id"].as_str().unwrap())).json();
    assert_eq!(after["data"][0], items[1]);
    server.get(&format!("{path}?limit=0")).fails(400, "from 1 to 100");
    server.get(&format!("{PATH}/nothing/input_items")).fails(404, "whole conversation");
}

#[cfg(feature = "grammar")]
#[test]
fn custom_and_allowed_tools_are_called_in_their_own_words() {
    let server = serve(model_with(Some(TOOLS)), options(), SchedulerOptions::default());
    let pattern = json!({"type": "grammar", "syntax": "regex", "definition": "yes|no"});
    let tools =
        json!([{"type": "custom", "name": "vote", "format": pattern}, {"type": "function", "name": "other"}]);
    let choice =
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "vote"}]});
    let body =
        with(ask(json!("rain?")), json!({"tools": tools, "tool_choice": choice, "max_output_tokens": 200}));
    let response = server.ask(PATH, body.clone());
    let call = &response["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("custom_tool_call"), &json!("vote")), "{response}");
    assert!(["yes", "no"].contains(&call["input"].as_str().unwrap()), "{call}");
    let events = server.events(PATH, body);
    let done = events.iter().find(|(name, _)| name == "response.custom_tool_call_input.done").unwrap();
    assert_eq!(done.1["input"], call["input"]);
    // The call and its result, sent back.
    let input = json!([{"role": "user", "content": "rain?"}, call,
        {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "counted"}]);
    assert_eq!(server.post(PATH, &with(ask(input), json!({"tools": tools}))).status, 200);
    // The same in a chat.
    let tools = json!([{"type": "custom", "custom": {"name": "vote", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "yes|no"}}}}]);
    let chat = json!({"messages": [{"role": "user", "content": "rain?"}], "temperature": 0, "max_tokens": 200, "tools": tools,
        "tool_choice": {"type": "custom", "custom": {"name": "vote"}}});
    let answer = server.ask("/v1/chat/completions", chat.clone());
    let message = &answer["choices"][0]["message"];
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("vote")), "{answer}");
    assert!(["yes", "no"].contains(&call["custom"]["input"].as_str().unwrap()), "{call}");
    let mut again = chat;
    again["messages"] = json!([{"role": "user", "content": "rain?"}, message, {"role": "tool", "tool_call_id": call["id"], "content": "counted"}]);
    again["tool_choice"] = json!("none");
    assert_eq!(server.post("/v1/chat/completions", &again).status, 200);
}
