//! Calls of tools.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

const TEMPLATE: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

fn server() -> Running {
    serve(model_with(Some(TEMPLATE)), options(), SchedulerOptions::default())
}

fn tools() -> Value {
    let weather = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"enum": [1, 2, 7]}},
        "required": ["city", "days"],
        "additionalProperties": false,
    });
    json!([
        {"type": "function", "function": {"name": "weather", "description": "Forecasts it.", "parameters": weather}},
        {"type": "function", "function": {"name": "time"}},
    ])
}

fn ask(choice: Value) -> Value {
    json!({"messages": [{"role": "user", "content": "rain?"}], "tools": tools(), "tool_choice": choice,
        "seed": 5, "max_tokens": 200, "temperature": 1.3})
}

#[test]
fn a_call_that_is_wanted_comes_and_fits_its_parameters() {
    let server = server();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    let answer = server.ask(PATH, ask(named.clone()));
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null)
    );
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(
        (calls.len(), &calls[0]["type"], &calls[0]["function"]["name"]),
        (1, &json!("function"), &json!("weather"))
    );
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call-") && calls[0].get("index").is_none());
    let arguments: Value = serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(
        arguments["city"].is_string() && [1, 2, 7].contains(&arguments["days"].as_i64().unwrap()),
        "{arguments}"
    );

    let pieces = server.stream(PATH, ask(named));
    let deltas: Vec<&Value> =
        pieces.iter().filter_map(|piece| piece["choices"][0]["delta"]["tool_calls"].get(0)).collect();
    assert_eq!(deltas.len(), 1);
    assert_eq!((&deltas[0]["index"], &deltas[0]["function"]), (&json!(0), &calls[0]["function"]));
    assert_eq!(pieces.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    for seed in 0..4 {
        let mut body = ask(json!("required"));
        body["seed"] = json!(seed);
        let answer = server.ask(PATH, body);
        let name = &answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"];
        assert!(name == "weather" || name == "time", "{answer}");
    }
}

#[test]
fn the_template_sees_tools_calls_and_results() {
    let server = server();
    let plain = server.ask(PATH, ask(json!("none")));
    let offered = server.ask(PATH, ask(json!("auto")));
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&offered) > tokens(&plain), "none leaves the tools out");
    assert!(offered["choices"][0]["message"]["content"].is_string(), "without a call there is text");
    let mut body = ask(json!("auto"));
    body["messages"] = json!([
        {"role": "user", "content": "rain?"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "call-1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\": \"Oslo\", \"days\": 1}"}}]},
        {"role": "tool", "tool_call_id": "call-1", "content": "sun"},
    ]);
    assert!(tokens(&server.ask(PATH, body)) > tokens(&offered));
}

#[test]
fn models_without_tools_of_their_own_call_them_as_everybody_does() {
    let server = serve(long_model(Some(crate::tiny::TEMPLATE)), options(), SchedulerOptions::default());
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let plain = server.ask(PATH, ask(json!("none")));
    let offered = server.ask(PATH, ask(json!("auto")));
    assert!(prompt(&offered) > prompt(&plain) + 100, "they are told of them");
    let answer = server.ask(PATH, ask(json!({"type": "function", "function": {"name": "weather"}})));
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &call["function"]["name"]),
        (&json!("tool_calls"), &json!("weather"))
    );
    let mut after = ask(json!("auto"));
    after["messages"] = json!([{"role": "user", "content": "rain?"}, answer["choices"][0]["message"],
        {"role": "tool", "tool_call_id": call["id"], "content": "sun"}]);
    assert!(prompt(&server.ask(PATH, after)) > prompt(&offered));
}

#[test]
fn an_answer_in_a_format_may_be_a_call_instead() {
    let server = server();
    let mut both = ask(json!("auto"));
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    both["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    // The first token decides: `<` opens a call, `{` an object.
    for (token, is_call) in [("32", true), ("95", false)] {
        both["logit_bias"] = json!({token: 100});
        let choice = server.ask(PATH, both.clone())["choices"][0].clone();
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!(call.is_object(), is_call, "{choice}");
        match is_call {
            true => {
                assert!(["weather", "time"].contains(&call["function"]["name"].as_str().unwrap()), "{choice}")
            }
            false => {
                let object: Value =
                    serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
                assert!(object["ok"].is_boolean(), "{choice}");
            }
        }
    }
    both["logit_bias"] = json!({});
    both["tool_choice"] = json!("required");
    assert!(server.ask(PATH, both)["choices"][0]["message"]["tool_calls"].is_array());
}

#[test]
fn tools_that_cannot_be_called_are_refused() {
    let server = server();
    let mut broken = ask(json!("required"));
    broken["tools"][1]["function"]["parameters"] = json!({"type": "nonsense"});
    let error = server.post(PATH, &broken).fails(400, "cannot be followed");
    assert_eq!(error["param"], "tools");
}
