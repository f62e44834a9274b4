//! `/v1/completions`, `/tokenize` and `/detokenize`.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

#[test]
fn texts_and_tokens_are_continued_one_or_several_at_a_time() {
    let server = usual();
    let one = server.ask(PATH, json!({"prompt": "the rain", "seed": 1}));
    assert_eq!(one["object"], "text_completion");
    assert!(one["usage"]["completion_tokens"].as_u64().unwrap() <= 16, "16 tokens unless asked for more");
    let ids = server.ask("/tokenize", json!({"content": "the rain"}))["tokens"].clone();
    let other = server.ask("/tokenize", json!({"content": "nothing"}))["tokens"].clone();
    let by_ids = server.ask(PATH, json!({"prompt": ids, "seed": 1}));
    assert_eq!(one["choices"], by_ids["choices"]);
    let apart = server.ask(PATH, json!({"prompt": "nothing", "seed": 1}));
    for prompts in [json!(["the rain", "nothing"]), json!([ids, other])] {
        let both = server.ask(PATH, json!({"prompt": prompts, "seed": 1}));
        assert_eq!(both["choices"][0]["text"], one["choices"][0]["text"]);
        assert_eq!(both["choices"][1]["text"], apart["choices"][0]["text"]);
        let sum = |name: &str| one["usage"][name].as_u64().unwrap() + apart["usage"][name].as_u64().unwrap();
        assert_eq!(both["usage"]["prompt_tokens"], sum("prompt_tokens"));
        assert_eq!(both["usage"]["total_tokens"], sum("total_tokens"));
    }
}

#[test]
fn streams_echoes_and_probabilities_agree_with_the_whole() {
    let server = usual();
    let body = json!({"prompt": ["ab", "the"], "n": 2, "seed": 3, "max_tokens": 9});
    let with = |fields: Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let text = |whole: &Value, choice: usize| whole["choices"][choice]["text"].as_str().unwrap().to_owned();
    let streamed = |pieces: &[Value], choice: usize| -> String {
        let choices = pieces.iter().flat_map(|piece| piece["choices"].as_array().unwrap());
        choices
            .filter(|found| found["index"] == choice)
            .map(|found| found["text"].as_str().unwrap())
            .collect()
    };
    let (plain, echoed) = (server.ask(PATH, body.clone()), server.ask(PATH, with(json!({"echo": true}))));
    let (pieces, echoes) =
        (server.stream(PATH, body.clone()), server.stream(PATH, with(json!({"echo": true}))));
    for choice in 0..4 {
        let prompt = if choice < 2 { "ab" } else { "the" };
        assert_eq!(text(&echoed, choice), format!("{prompt}{}", text(&plain, choice)));
        assert_eq!(streamed(&pieces, choice), text(&plain, choice));
        assert_eq!(streamed(&echoes, choice), text(&echoed, choice));
    }
    let found = server.ask(PATH, with(json!({"logprobs": 2})));
    let pieces = server.stream(PATH, with(json!({"logprobs": 2})));
    let lists = &found["choices"][3]["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    let (tokens, offsets) = (list("tokens"), list("text_offset"));
    let mut at = 0;
    for (token, offset) in tokens.iter().zip(&offsets) {
        assert_eq!(*offset, at);
        at += token.as_str().unwrap().chars().count();
    }
    assert!(list("top_logprobs").iter().all(|top| (1..=2).contains(&top.as_object().unwrap().len())));
    let last: Vec<Value> = pieces
        .iter()
        .flat_map(|piece| piece["choices"].as_array().unwrap())
        .filter(|found| found["index"] == 3)
        .filter_map(|found| found["logprobs"]["text_offset"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(last, offsets);
}

#[test]
fn nothing_can_be_asked_for_and_the_context_ends_what_is_not_ended() {
    let server = usual();
    let nothing = server.ask(PATH, json!({"prompt": "abc", "max_tokens": 0, "echo": true}));
    assert_eq!(
        (&nothing["choices"][0]["text"], &nothing["usage"]["completion_tokens"]),
        (&json!("abc"), &json!(0))
    );
    let long = server.ask(PATH, json!({"prompt": "abc", "max_tokens": 100_000, "ignore_eos": true}));
    assert_eq!(long["choices"][0]["finish_reason"], "length");
    assert_eq!(long["usage"]["total_tokens"], 481, "the last token is never read");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let server = usual();
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": 5}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": [[1, -1]]}), "prompt"),
        (json!({"prompt": [1, "x"]}), "prompt"),
        (json!({"prompt": vec!["x"; 9], "n": 2}), "prompt"),
        (json!({"prompt": "x", "logprobs": 6}), "logprobs"),
        (json!({"prompt": "x", "logprobs": 1, "echo": true}), "echo"),
        (json!({"prompt": "x", "best_of": 3}), "best_of"),
        (json!({"prompt": "x", "suffix": "y"}), "suffix"),
        (json!({"prompt": "x", "messages": []}), "messages"),
    ] {
        let error = server.post(PATH, &body).fails(400, "");
        assert_eq!(error["param"], param, "{body}: {error}");
    }
    server.post(PATH, &json!({"prompt": [999_999]})).fails(400, "vocabulary");
    server.post("/tokenize", &json!({"content": 5})).fails(400, "content");
    server.post("/tokenize", &json!({})).fails(400, "messages");
    server.post("/detokenize", &json!({"tokens": "x"})).fails(400, "tokens");
    server.post("/detokenize", &json!({"tokens": [999_999]})).fails(400, "999999");
}
