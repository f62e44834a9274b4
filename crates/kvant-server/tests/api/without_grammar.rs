//! A server that was built without grammars refuses what it would need them for, by name.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

const TEMPLATE: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "seed": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn formats_and_required_calls_are_refused_and_texts_and_offered_tools_are_not() {
    let server = serve(model_with(Some(TEMPLATE)), options(), SchedulerOptions::default());
    let tools = json!([{"type": "function", "function": {"name": "time"}}]);
    for (more, param) in [
        (json!({"response_format": {"type": "json_object"}}), "response_format"),
        (json!({"tools": tools, "tool_choice": "required"}), "tools"),
    ] {
        let error = server.post(PATH, &ask(more)).fails(400, "built without grammars");
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("unsupported_parameter")));
    }
    for more in [json!({"response_format": {"type": "text"}}), json!({"tools": tools})] {
        let answer = server.ask(PATH, ask(more));
        assert!(answer["choices"][0]["message"].is_object(), "{answer}");
    }
}
