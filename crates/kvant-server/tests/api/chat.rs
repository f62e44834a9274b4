//! `/v1/chat/completions`.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn ask(text: &str) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}], "seed": 7, "max_tokens": 12})
}

fn with(mut body: Value, fields: Value) -> Value {
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

/// The text of one choice of a stream.
fn text_of(pieces: &[Value], choice: u64) -> String {
    let choices = pieces.iter().flat_map(|piece| piece["choices"].as_array().unwrap());
    let own = choices.filter(|found| found["index"] == choice);
    own.filter_map(|found| found["delta"]["content"].as_str()).collect()
}

#[test]
fn an_answer_has_the_shape_clients_expect() {
    let server = usual();
    let answer = server.ask(PATH, ask("hello there"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!(MODEL)));
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["message"]["role"]), (&json!(0), &json!("assistant")));
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert!(["stop", "length"].contains(&choice["finish_reason"].as_str().unwrap()));
    let usage = &answer["usage"];
    let [prompt, completion, total] =
        ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].as_u64().unwrap());
    assert_eq!((completion <= 12, prompt + completion), (true, total));
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
    // The same again, from the cache.
    let long = ask(&"hello there ".repeat(12));
    let (first, second) = (server.ask(PATH, long.clone()), server.ask(PATH, long));
    assert_eq!(first["choices"], second["choices"]);
    assert!(second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 68);
    assert_ne!(first["id"], second["id"]);
}

#[test]
fn a_stream_says_what_the_whole_says() {
    let server = usual();
    let body = with(ask("tell me"), json!({"n": 3, "temperature": 1.2, "max_tokens": 30}));
    let whole = server.ask(PATH, body.clone());
    let pieces = server.stream(PATH, with(body, json!({"stream_options": {"include_usage": true}})));
    for choice in 0..3u64 {
        let expected = &whole["choices"][choice as usize];
        assert_eq!(text_of(&pieces, choice), expected["message"]["content"].as_str().unwrap());
        let own: Vec<&Value> = pieces
            .iter()
            .flat_map(|piece| piece["choices"].as_array().unwrap())
            .filter(|found| found["index"] == choice)
            .collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let (last, others) = own.split_last().unwrap();
        assert_eq!(last["finish_reason"], expected["finish_reason"]);
        assert!(others.iter().all(|found| found["finish_reason"].is_null()));
    }
    let texts: Vec<&Value> =
        whole["choices"].as_array().unwrap().iter().map(|choice| &choice["message"]["content"]).collect();
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "answers have seeds of their own");
    let (usage, before) = pieces.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert_eq!(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert!(
        before.iter().all(|piece| piece["usage"].is_null() && piece["object"] == "chat.completion.chunk")
    );
    assert!(before.iter().all(|piece| piece["id"] == usage["id"]));
}

#[test]
fn probabilities_are_given_on_request() {
    let server = usual();
    let body = with(ask("numbers"), json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 5}));
    let whole = server.ask(PATH, body.clone());
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert!(!content.is_empty());
    for entry in &content {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        assert!(entry["logprob"].as_f64().unwrap() <= top[0]["logprob"].as_f64().unwrap());
        let bytes: Vec<u8> =
            entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), entry["token"].as_str().unwrap());
    }
    let pieces = server.stream(PATH, body);
    let streamed: Vec<Value> = pieces
        .iter()
        .filter_map(|piece| piece["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, content);
    assert!(server.ask(PATH, ask("x"))["choices"][0]["logprobs"].is_null());
}

#[test]
fn settings_do_what_they_say() {
    let server = usual();
    let greedy = |fields: Value| {
        let body = with(ask("go on"), json!({"temperature": 0, "max_tokens": 20}));
        server.ask(PATH, with(body, fields))["choices"][0].clone()
    };
    let plain = greedy(json!({}));
    let text = plain["message"]["content"].as_str().unwrap();
    assert_eq!(plain, greedy(json!({"seed": 8})), "the likeliest tokens need no seed");
    // A stop string ends the text before it.
    let stop: String = text.chars().skip(3).take(2).collect();
    for stops in [json!(stop), json!(["\u{1}", stop])] {
        let stopped = greedy(json!({"stop": stops}));
        assert_eq!(stopped["message"]["content"], text[..text.find(&stop).unwrap()]);
        assert_eq!(stopped["finish_reason"], "stop");
    }
    // A bias of 100 decides, and penalties keep it from going on.
    let biased = greedy(json!({"logit_bias": {"40": 100}, "max_completion_tokens": 4}));
    let tokens = server.ask("/detokenize", json!({"tokens": [40, 40, 40, 40]}));
    assert_eq!(biased["message"]["content"], tokens["content"]);
    let penalised = greedy(json!({"logit_bias": {"40": 4}, "frequency_penalty": 2.0, "presence_penalty": 2}));
    assert_ne!(
        penalised["message"]["content"],
        greedy(json!({"logit_bias": {"40": 4}}))["message"]["content"]
    );
    // With one token left to draw from, the draw is the likeliest.
    for cut in [json!({"top_k": 1}), json!({"top_p": 0.0}), json!({"min_p": 1.0})] {
        let drawn = greedy(with(json!({"temperature": 2}), cut));
        assert_eq!(drawn["message"]["content"], text);
    }
}

#[test]
fn a_conversation_keeps_its_turns() {
    let server = usual();
    let mut body = ask("one");
    body["messages"] = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three", "name": "Ann"},
    ]);
    let tokens = server.ask("/tokenize", json!({"messages": body["messages"]}));
    let usage = server.ask(PATH, body)["usage"]["prompt_tokens"].clone();
    assert_eq!(tokens["count"], usage);
    let text = server.ask("/detokenize", json!({"tokens": tokens["tokens"]}));
    assert_eq!(
        text["content"],
        "[system] Be brief.\n[user] one\n[assistant] two\n[user] three\n[assistant] "
    );
}

#[test]
fn a_last_message_of_the_assistant_is_continued_in_every_protocol() {
    let server = usual();
    let turns = json!([{"role": "user", "content": "one"}, {"role": "assistant", "content": "two th"}]);
    let open = json!({"messages": turns, "continue_final_message": true});
    assert_eq!(server.ask("/apply-template", open.clone())["prompt"], "[user] one\n[assistant] two th");
    let prompt = server.ask("/tokenize", open)["tokens"].clone();
    let expected =
        server.ask("/v1/completions", json!({"prompt": prompt, "max_tokens": 8, "temperature": 0}));
    let expected = expected["choices"][0]["text"].as_str().unwrap().to_owned();
    let body = json!({"model": MODEL, "messages": turns, "max_tokens": 8, "temperature": 0});
    let answer = server.ask(PATH, body.clone());
    assert_eq!(answer["choices"][0]["message"]["content"], expected);
    assert_eq!(answer["usage"]["prompt_tokens"], prompt.as_array().unwrap().len());
    let anthropic = server.ask("/v1/messages", body.clone());
    assert_eq!(anthropic["content"][0]["text"], expected);
    let options = json!({"num_predict": 8, "temperature": 0});
    let ollama = json!({"model": MODEL, "messages": turns, "stream": false, "options": options});
    assert_eq!(server.ask("/api/chat", ollama)["message"]["content"], expected);
    // A new turn, where that is asked for.
    for fields in [json!({"continue_final_message": false}), json!({"add_generation_prompt": true})] {
        let new = server.ask(PATH, with(body.clone(), fields));
        assert_ne!(new["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    }
    let both = with(body, json!({"continue_final_message": true, "add_generation_prompt": true}));
    assert_eq!(server.post(PATH, &both).fails(400, "both")["param"], "continue_final_message");
    let none = with(ask("one"), json!({"continue_final_message": true}));
    server.post(PATH, &none).fails(400, "not the assistant's");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let server = strict();
    let refused = |fields: Value, status: u16, param: &str| {
        let error = server.post(PATH, &with(ask("x"), fields)).fails(status, "");
        assert_eq!(error["param"], param, "{error}");
        error
    };
    for (fields, param) in [
        (json!({"temperature": 3}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 1.5}), "top_p"),
        (json!({"n": 0}), "n"),
        (json!({"n": 17}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"stop": [1]}), "stop"),
        (json!({"stop": ""}), "stop"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": "x".repeat(600)}), "stop"),
        (json!({"seed": "x"}), "seed"),
        (json!({"top_logprobs": 3}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"5": 1000}}), "logit_bias"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0]"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content"),
        (json!({"temprature": 1}), "temprature"),
    ] {
        refused(fields, 400, param);
    }
    let error = server.post(PATH, &with(ask("x"), json!({"model": "other"}))).fails(404, "other");
    assert_eq!(error["code"], "model_not_found");
    let error = server.post(PATH, &ask(&"long ".repeat(400))).fails(400, "context holds 480");
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("context_length_exceeded"), &json!("invalid_request_error"))
    );
    // What asks for nothing is no obstacle.
    let idle = json!({"user": "me", "metadata": {"a": "b"}, "store": false, "response_format": {"type": "text"},
        "tools": [], "tool_choice": "auto", "service_tier": "auto", "stop": null, "logit_bias": {}});
    server.ask(PATH, with(ask("x"), idle));
}

#[test]
fn one_model_answers_to_every_name() {
    let server = usual();
    let answer = server.ask(PATH, with(ask("x"), json!({"model": "gpt-4o"})));
    assert_eq!(answer["model"], MODEL);
    let named = server.ask(PATH, ask("x"));
    assert_eq!(answer["choices"], named["choices"]);
}

#[test]
fn unknown_fields_are_ignored_and_named() {
    let server = usual();
    let plain = server.ask(PATH, ask("x"));
    let mut odd =
        with(ask("x"), json!({"temprature": 1, "frobnicate": {"a": 1}, "reasoning_effort": "high"}));
    odd["messages"][0]["mood"] = json!("odd");
    let answer = server.post(PATH, &odd);
    assert_eq!((answer.status, answer.json()["choices"] == plain["choices"]), (200, true), "{answer:?}");
    for name in ["temprature", "frobnicate", "messages[0].mood", "reasoning_effort"] {
        let header = answer.head.lines().find(|line| line.starts_with("x-kvant-ignored-fields:")).unwrap();
        assert!(header.contains(name), "{header}");
    }
    assert!(!server.post(PATH, &ask("x")).head.contains("x-kvant-ignored"));
    strict().post(PATH, &with(ask("x"), json!({"temprature": 1}))).fails(400, "temprature");
}

#[test]
fn no_limit_is_minus_one_and_the_cache_may_be_left_alone() {
    let server = usual();
    let endless = json!({"max_tokens": -1, "ignore_eos": true});
    let answer = server.ask(PATH, with(ask("x"), endless));
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["total_tokens"], 481, "the context ends it");
    let long = ask(&"hello there ".repeat(12));
    let cached = |body: &Value| {
        server.ask(PATH, body.clone())["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    cached(&long);
    assert!(cached(&long) > 0);
    assert_eq!(cached(&with(long, json!({"cache_prompt": false}))), 0);
}

#[test]
fn settings_that_are_left_out_are_the_servers() {
    let mut forced = kvant_engine::SamplingOverrides::default();
    forced.set("temperature", "0").unwrap();
    let greedy = kvant_server::ServerOptions { forced_sampling: forced, ..options() };
    let server = start(greedy, Default::default());
    let mut free = ask("go on");
    free.as_object_mut().unwrap().remove("seed");
    let expected = usual().ask(PATH, with(ask("go on"), json!({"temperature": 0})));
    for _ in 0..2 {
        assert_eq!(server.ask(PATH, free.clone())["choices"], expected["choices"]);
    }
    assert_ne!(
        server.ask(PATH, with(ask("go on"), json!({"temperature": 2})))["choices"],
        expected["choices"]
    );
    // The seed is one of them.
    let free = with(free, json!({"temperature": 2}));
    let server = usual();
    let seeded = |seed: u64| server.ask(PATH, with(free.clone(), json!({"seed": seed})))["choices"].clone();
    assert_eq!(server.ask(PATH, free.clone())["choices"], seeded(1));
    assert_ne!(seeded(1), seeded(2));
}
