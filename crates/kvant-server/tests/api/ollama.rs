//! Ollama's routes.

use crate::support::*;
use crate::tiny::model_with;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::{Value, json};

const THINKING: &str = include_str!("../../../kvant-model/tests/support/thinking.jinja");
const TOOLS: &str = include_str!("../../../kvant-model/tests/support/tools.jinja");

fn chat(text: &str) -> Value {
    json!({"model": "tiny:latest", "messages": [{"role": "user", "content": text}], "options": {"temperature": 0, "num_predict": 12}})
}

fn whole(mut body: Value) -> Value {
    body["stream"] = json!(false);
    body
}

/// The objects of a stream.
#[track_caller]
fn lines(server: &Running, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post(path, body);
    assert!(answer.status == 200 && answer.head.contains("application/x-ndjson"), "{answer:?}");
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn clients_find_the_model_before_they_ask_it() {
    let server = usual();
    assert!(server.get("/api/version").json()["version"].as_str().unwrap().contains('.'));
    let tags = server.get("/api/tags").json();
    assert_eq!((&tags["models"][0]["name"], tags["models"].as_array().unwrap().len()), (&json!(MODEL), 1));
    let loaded = server.get("/api/ps").json();
    assert_eq!(loaded["models"][0]["context_length"], 480);
    let show = server.ask("/api/show", json!({"model": MODEL}));
    assert_eq!(show["model_info"]["general.architecture"], "qwen2");
    assert_eq!(show["model_info"]["qwen2.context_length"], 480);
    assert_eq!(show["capabilities"], json!(["completion", "embedding", "tools"]));
    let thinker = serve(model_with(Some(THINKING)), options(), SchedulerOptions::default());
    assert!(
        thinker.ask("/api/show", json!({"model": MODEL}))["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("thinking"))
    );
}

#[test]
fn a_chat_comes_line_by_line_or_whole() {
    let server = usual();
    let expected = json!({"messages": chat("hello there")["messages"], "temperature": 0, "max_tokens": 12});
    let expected = server.ask("/v1/chat/completions", expected);
    let answer = server.ask("/api/chat", whole(chat("hello there")));
    assert_eq!(answer["message"]["content"], expected["choices"][0]["message"]["content"]);
    assert_eq!((&answer["model"], &answer["done"]), (&json!("tiny:latest"), &json!(true)));
    assert_eq!(answer["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert_eq!(answer["eval_count"], expected["usage"]["completion_tokens"]);
    let lines = lines(&server, "/api/chat", &chat("hello there"));
    let (last, before) = lines.split_last().unwrap();
    let text: String = before.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, answer["message"]["content"].as_str().unwrap());
    assert!(before.iter().all(|line| line["done"] == false) && last["done"] == true);
    assert_eq!((&last["done_reason"], &last["eval_count"]), (&answer["done_reason"], &answer["eval_count"]));
    let empty = server.ask("/api/chat", json!({"model": MODEL, "messages": []}));
    assert_eq!((&empty["done_reason"], &empty["done"]), (&json!("load"), &json!(true)));
}

#[test]
fn repeat_last_n_is_how_far_back_penalties_look() {
    let server = usual();
    let ask = |more: Value| {
        let mut options =
            json!({"temperature": 0, "num_predict": 24, "repeat_penalty": 2.0, "presence_penalty": 2.0});
        options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let body =
            json!({"model": MODEL, "prompt": "the rain", "raw": true, "options": options, "stream": false});
        server.ask("/api/generate", body)["response"].clone()
    };
    let unpenalised = ask(json!({"repeat_penalty": 1.0, "presence_penalty": 0.0}));
    assert_eq!(ask(json!({"repeat_last_n": 0})), unpenalised);
    assert_eq!(ask(json!({"repeat_last_n": -1})), ask(json!({})));
    assert_ne!(ask(json!({})), unpenalised);
}

#[test]
fn a_text_is_answered_by_the_template_or_continued_as_it_is() {
    let server = usual();
    let options = json!({"temperature": 0, "num_predict": 8});
    let ask = |more: Value| {
        let mut body = json!({"model": MODEL, "prompt": "the rain", "options": options, "stream": false});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/api/generate", body)
    };
    let raw = server.ask("/v1/completions", json!({"prompt": "the rain", "temperature": 0, "max_tokens": 8}));
    assert_eq!(ask(json!({"raw": true}))["response"], raw["choices"][0]["text"]);
    let turns = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "the rain"}]);
    let chat =
        server.ask("/v1/chat/completions", json!({"messages": turns, "temperature": 0, "max_tokens": 8}));
    assert_eq!(ask(json!({"system": "Be brief."}))["response"], chat["choices"][0]["message"]["content"]);
    assert_eq!(ask(json!({"prompt": ""}))["done_reason"], "load");
    let lines =
        lines(&server, "/api/generate", &json!({"prompt": "the rain", "raw": true, "options": options}));
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, raw["choices"][0]["text"].as_str().unwrap());
}

#[cfg(feature = "grammar")]
#[test]
fn formats_tools_and_thinking_are_understood() {
    let server = serve(model_with(Some(TOOLS)), options(), SchedulerOptions::default());
    let mut body = whole(chat("rain?"));
    body["options"]["num_predict"] = json!(200);
    body["format"] = json!({"type": "boolean"});
    let answer = server.ask("/api/chat", body.clone());
    assert!(["true", "false"].contains(&answer["message"]["content"].as_str().unwrap()), "{answer}");
    body.as_object_mut().unwrap().remove("format");
    body["tools"] = json!([{"type": "function", "function": {"name": "time", "description": "The time.", "parameters": {"type": "object"}}}]);
    body["messages"] = json!([
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "time", "arguments": {"city": "Oslo"}}}]},
        {"role": "tool", "tool_name": "time", "content": "noon"},
    ]);
    body["tool_choice"] = json!("required");
    let answer = server.ask("/api/chat", body);
    assert_eq!(answer["message"]["tool_calls"][0]["function"]["name"], "time", "{answer}");
    assert!(answer["message"]["tool_calls"][0]["function"]["arguments"].is_object());
    let thinker = serve(model_with(Some(THINKING)), options(), SchedulerOptions::default());
    let mut body = whole(chat("why?"));
    body["think"] = json!(true);
    let answer = thinker.ask("/api/chat", body);
    assert!(answer["message"]["thinking"].as_str().unwrap().len() > 2, "{answer}");
}

#[test]
fn texts_become_vectors() {
    let server = usual();
    let vectors = server.ask("/api/embed", json!({"model": MODEL, "input": ["red", "green"]}));
    let expected = server.ask("/v1/embeddings", json!({"input": ["red", "green"]}));
    for index in 0..2 {
        assert_eq!(vectors["embeddings"][index], expected["data"][index]["embedding"]);
    }
    let one = server.ask("/api/embeddings", json!({"model": MODEL, "prompt": "red"}));
    assert_eq!(one["embedding"], vectors["embeddings"][0]);
    let answer = server.post("/api/embed", &json!({"input": "red", "dimensions": 3}));
    assert!(
        answer.status == 400 && answer.json()["error"].as_str().unwrap().contains("cannot be shortened"),
        "{answer:?}"
    );
}

#[test]
fn errors_have_ollamas_shape() {
    let server = strict();
    for (path, body, status, words) in [
        ("/api/chat", json!({"model": "other"}), 404, "other"),
        ("/api/chat", json!({"messages": [{"role": "alien"}]}), 400, "alien"),
        ("/api/generate", json!({"prompt": 5}), 400, "prompt"),
        ("/api/nothing", json!({}), 404, "/api/nothing"),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.json()["error"].as_str().unwrap().contains(words), "{answer:?}");
    }
}

#[test]
fn durations_of_a_whole_answer_are_those_of_prompt_and_answer() {
    let server = usual();
    let answer = server.ask("/api/chat", whole(chat("hello there")));
    let nanoseconds = |name: &str| answer[name].as_u64().unwrap();
    let parts = ["load_duration", "prompt_eval_duration", "eval_duration"].map(nanoseconds);
    assert!(parts[1] > 0 && parts[2] > 0, "{answer}");
    assert_eq!(parts.iter().sum::<u64>(), nanoseconds("total_duration"));
}

#[test]
fn probabilities_come_with_every_line_or_whole() {
    let server = usual();
    let mut body = chat("hello there");
    (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(2));
    let expected = json!({"messages": body["messages"], "temperature": 0, "max_tokens": 12, "logprobs": true, "top_logprobs": 2});
    let expected = server.ask("/v1/chat/completions", expected);
    let answer = server.ask("/api/chat", whole(body.clone()));
    assert_eq!(answer["logprobs"], expected["choices"][0]["logprobs"]["content"]);
    let lines = lines(&server, "/api/chat", &body);
    let told = lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().cloned();
    assert_eq!(json!(told.collect::<Vec<Value>>()), answer["logprobs"]);
    let raw = json!({"prompt": "the rain", "raw": true, "stream": false, "logprobs": true, "options": {"num_predict": 3}});
    assert_eq!(server.ask("/api/generate", raw)["logprobs"].as_array().unwrap().len(), 3);
    let wrong = server.post("/api/chat", &json!({"messages": body["messages"], "top_logprobs": 2}));
    assert!(wrong.status == 400 && wrong.body.contains("logprobs: true"), "{wrong:?}");
}

#[test]
fn answers_have_the_models_own_name() {
    let server = usual();
    let mut body = whole(chat("hi"));
    for (asked, told) in [("tiny:latest", "tiny:latest"), ("tiny", MODEL), ("llama3", MODEL)] {
        body["model"] = json!(asked);
        assert_eq!(server.ask("/api/chat", body.clone())["model"], told);
    }
}
