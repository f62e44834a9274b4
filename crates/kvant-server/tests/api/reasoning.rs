//! Reasoning apart from the answer.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

const TEMPLATE: &str = include_str!("../../../kvant-model/tests/support/thinking.jinja");

fn server() -> Running {
    serve(model_with(Some(TEMPLATE)), options(), SchedulerOptions::default())
}

fn ask(fields: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "why?"}], "seed": 5, "max_tokens": 60});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

fn prompt_tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

/// Everything a stream says of one field.
fn joined(pieces: &[Value], field: &str) -> String {
    pieces.iter().filter_map(|piece| piece["choices"][0]["delta"][field].as_str()).collect()
}

#[cfg(feature = "grammar")]
#[test]
fn reasoning_and_answer_come_apart() {
    let server = server();
    // Whatever the model would say, it says this.
    let said = json!({"response_format": {"type": "grammar", "syntax": "regex", "definition": "<think>h m</think>y es"}});
    let answer = server.ask(PATH, ask(said.clone()));
    // Marks and all; what is left are `y es` and the end.
    let usage = &answer["usage"];
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let after = usage["completion_tokens"].as_u64().unwrap() - reasoning;
    assert!(reasoning >= 3 && (2..=5).contains(&after), "{usage}");
    let message = answer["choices"][0]["message"].clone();
    let fields = ["reasoning_content", "reasoning", "content"].map(|name| message[name].as_str().unwrap());
    assert_eq!(fields, ["h m", "h m", "y es"]);
    let pieces = server.stream(PATH, ask(said));
    let fields = ["reasoning_content", "reasoning", "content"].map(|name| joined(&pieces, name));
    assert_eq!(fields, ["h m", "h m", "y es"]);
    assert!(pieces.len() > 6, "it came as it was said");
}

#[test]
fn a_prompt_that_opens_the_reasoning_begins_with_it() {
    let server = server();
    let plain = server.ask(PATH, ask(json!({})));
    let message = &plain["choices"][0]["message"];
    assert!(
        message.get("reasoning").is_none() && message["content"].as_str().unwrap().len() > 9,
        "{message}"
    );
    let asked = [
        json!({"enable_thinking": true}),
        json!({"chat_template_kwargs": {"enable_thinking": true}}),
        json!({"reasoning_effort": "high"}),
    ];
    let answers = asked.map(|fields| server.ask(PATH, ask(fields)));
    for answer in &answers {
        let message = &answer["choices"][0]["message"];
        assert_eq!((&answer["choices"], &message["content"]), (&answers[0]["choices"], &json!("")));
        assert!(message["reasoning_content"].as_str().unwrap().len() > 9, "{message}");
        let usage = &answer["usage"];
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]);
        assert!(prompt_tokens(answer) > prompt_tokens(&plain));
    }
    let pieces = server.stream(PATH, ask(json!({"enable_thinking": true})));
    assert_eq!(
        joined(&pieces, "reasoning_content"),
        answers[0]["choices"][0]["message"]["reasoning_content"]
    );
    assert_eq!(joined(&pieces, "content"), "");
    let quiet = server.ask(PATH, ask(json!({"reasoning_effort": "none"})));
    assert_eq!(quiet["choices"], plain["choices"]);
}

#[cfg(feature = "grammar")]
#[test]
fn what_is_constrained_is_answered_at_once() {
    let server = server();
    let format = json!({"enable_thinking": true, "response_format": {"type": "json_schema", "json_schema":
        {"name": "x", "schema": {"type": "boolean"}}}});
    let answer = server.ask(PATH, ask(format));
    let message = &answer["choices"][0]["message"];
    assert!(["true", "false"].contains(&message["content"].as_str().unwrap()), "{message}");
    assert!(message.get("reasoning").is_none());
    let tools = json!([{"type": "function", "function": {"name": "time"}}]);
    let call = json!({"enable_thinking": true, "tools": tools, "tool_choice": "required"});
    let answer = server.ask(PATH, ask(call));
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "time", "{answer}");
}

#[test]
fn reasoning_that_comes_back_is_shown_to_the_template() {
    let server = server();
    let with = |fields: Value| {
        let mut turn = json!({"role": "assistant", "content": "so"});
        turn.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let turns = json!([{"role": "user", "content": "a"}, turn, {"role": "user", "content": "b"}]);
        prompt_tokens(&server.ask(PATH, ask(json!({"messages": turns, "max_tokens": 1}))))
    };
    let plain = with(json!({}));
    assert!(with(json!({"reasoning_content": "because"})) > plain);
    assert_eq!(with(json!({"reasoning_content": "because"})), with(json!({"reasoning": "because"})));
    assert_eq!(with(json!({"reasoning_content": null})), plain);
}

#[test]
fn what_a_template_does_not_know_is_refused_where_the_server_is_strict() {
    let server = strict();
    for field in ["reasoning_effort", "enable_thinking"] {
        let value = if field == "enable_thinking" { json!(true) } else { json!("high") };
        let error = server.post(PATH, &ask(json!({field: value}))).fails(400, "does not know it");
        assert_eq!(error["param"], field);
    }
    server.ask(PATH, ask(json!({"reasoning_effort": "none"})));
    server.post(PATH, &ask(json!({"reasoning_effort": "some"}))).fails(400, "xhigh");
    let mistral = "{% if tools %}[TOOL_CALLS]{% endif %}{{ messages[0].content }}";
    let server = serve(model_with(Some(mistral)), options(), SchedulerOptions::default());
    let tools = json!([{"type": "function", "function": {"name": "time"}}]);
    server.ask(PATH, ask(json!({"tools": tools})));
    let error =
        server.post(PATH, &ask(json!({"tools": tools, "tool_choice": "required"}))).fails(400, "auto");
    assert_eq!(error["param"], "tool_choice");
}
