//! Answers that are kept to a format.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn ask(format: Value, seed: u64) -> Value {
    json!({"messages": [{"role": "user", "content": "json"}], "seed": seed, "max_tokens": 300,
        "temperature": 1.5, "response_format": format})
}

fn schema(schema: Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "thing", "strict": true, "schema": schema}})
}

#[test]
fn whatever_the_model_would_say_the_schema_is_followed() {
    let server = usual();
    let person = schema(json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 130},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    }));
    for seed in 0..6 {
        let answer = server.ask(PATH, ask(person.clone(), seed));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{choice}");
        let text = choice["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["name", "age", "tags"]);
        assert!(value["name"].as_str().unwrap().chars().count() <= 8);
        assert!(value["age"].as_u64().unwrap() <= 130);
        assert!(value["tags"].as_array().unwrap().iter().all(|tag| tag == "red" || tag == "green"));
        // The same in pieces, in company and again.
        let pieces = server.stream(PATH, ask(person.clone(), seed));
        let streamed: String =
            pieces.iter().filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str()).collect();
        assert_eq!(streamed, text);
    }
}

#[test]
fn several_answers_follow_the_schema_each_for_itself() {
    let server = usual();
    let mut body = ask(schema(json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 4})), 1);
    body["n"] = json!(4);
    let answer = server.ask(PATH, body);
    for choice in answer["choices"].as_array().unwrap() {
        let value: Value = serde_json::from_str(choice["message"]["content"].as_str().unwrap()).unwrap();
        assert!(value.as_array().unwrap().iter().all(Value::is_boolean));
    }
}

#[test]
fn grammars_and_plain_objects_are_followed_too() {
    let server = usual();
    let text = |format: Value| {
        let choice = server.ask(PATH, ask(format, 3))["choices"][0].clone();
        choice["message"]["content"].as_str().unwrap().to_owned()
    };
    let date = text(json!({"type": "grammar", "syntax": "regex", "definition": "[12][0-9]{3}-[01][0-9]"}));
    assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    let list = "start: \"a\" (\",\" item)~1..4\nitem: /[xyz]{2}/";
    let words = text(json!({"type": "grammar", "syntax": "lark", "definition": list}));
    assert!(words.starts_with("a,") && words.len() <= 13, "{words}");
    // An object of any kind; it may be cut off by its length.
    assert!(text(json!({"type": "json_object"})).starts_with('{'));
}

#[test]
fn formats_that_cannot_be_followed_are_refused() {
    let server = strict();
    for (format, param) in [
        (json!({"type": "xml"}), "response_format.type"),
        (json!({"type": "json_schema"}), "response_format.json_schema"),
        (json!({"type": "json_schema", "json_schema": {"name": "x"}}), "response_format.json_schema.schema"),
        (schema(json!("x")), "response_format.json_schema.schema"),
        (schema(json!({"type": "nonsense"})), "response_format"),
        (schema(json!({"$ref": "https://example.org/schema.json"})), "response_format"),
        (schema(json!({"enum": ["x".repeat(1_100_000)]})), "response_format"),
        (json!({"type": "grammar", "syntax": "ebnf", "definition": "x"}), "response_format.syntax"),
        (
            json!({"type": "grammar", "syntax": "gbnf", "definition": "root ::= x"}),
            "response_format.definition",
        ),
        (json!({"type": "grammar", "syntax": "lark", "definition": "start: missing"}), "response_format"),
        (json!({"type": "grammar", "syntax": "regex"}), "response_format.definition"),
        (json!({"type": "json_object", "schema": {}}), "response_format.schema"),
        (json!("json"), "response_format"),
    ] {
        let error = server.post(PATH, &ask(format.clone(), 1)).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}

#[test]
fn llama_cpps_fields_for_grammars_and_schemas_are_followed() {
    let server = usual();
    let ask = |more: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "seed": 2, "max_tokens": 60});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let text = |more: Value| {
        server.ask(PATH, ask(more))["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({"grammar": "root ::= \"a\" x\nx ::= [b] \"c\""})), "abc");
    // Recursive, and in Lark's notation.
    let nested = text(json!({"grammar": "root ::= \"(\" root? \")\""}));
    // It may be cut off by its length.
    assert!(nested.starts_with('(') && nested.chars().all(|c| "()".contains(c)), "{nested}");
    assert_eq!(text(json!({"grammar": "start: \"x\"{3}"})), "xxx");
    assert_eq!(text(json!({"json_schema": {"const": "x"}})), "\"x\"");
    let definition = json!({"type": "grammar", "syntax": "gbnf", "definition": "root ::= \"yes\""});
    assert_eq!(text(json!({"response_format": definition})), "yes");
    let completion = json!({"prompt": "x", "grammar": "root ::= \"no\"", "max_tokens": 9});
    assert_eq!(server.ask("/v1/completions", completion)["choices"][0]["text"], "no");
    // Nothing is no grammar.
    assert!(!text(json!({"grammar": ""})).is_empty());
    for (more, words) in [
        (
            json!({"grammar": "root ::= other"}),
            "grammar cannot be read: line 1: the rule `other` is not defined",
        ),
        (json!({"grammar": "root ::= \"a\"", "json_schema": {}}), "may not be given together"),
        (json!({"grammar": 5}), "grammar must be a string"),
        (json!({"grammar": "start: missing"}), "cannot be followed"),
        (json!({"json_schema": "x"}), "json_schema must be an object"),
    ] {
        server.post(PATH, &ask(more)).fails(400, words);
    }
}

#[test]
fn a_format_does_not_continue_a_message() {
    let server = usual();
    let turns = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]);
    let body = json!({"messages": turns, "response_format": {"type": "json_object"}, "max_tokens": 4});
    server.post("/v1/chat/completions", &body).fails(400, "cannot continue the last message");
}
