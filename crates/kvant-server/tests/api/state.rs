//! What can be seen from outside.

use crate::support::*;
use kvant_engine::Arena;
use kvant_engine::scheduler::SchedulerOptions;
use serde_json::json;
use std::io::Write;

#[test]
fn the_model_is_listed_and_found_by_name() {
    let server = usual();
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!(MODEL)));
    assert_eq!(server.get("/v1/models/tiny").json(), list["data"][0]);
    assert_eq!(list["data"][0]["max_model_len"], 480);
    server.get("/v1/models/%ff").fails(400, "invalid name of a model");
    let error = server.get("/v1/models/org/other").fails(404, "org/other");
    assert_eq!(error["code"], "model_not_found");
}

#[test]
fn the_cache_can_be_looked_at_while_it_is_used() {
    let server = usual();
    let empty = server.get("/v1/kv").json();
    assert_eq!((&empty["sequences"], &empty["arena"]["pages"]), (&json!([]), &json!(0)));
    let body = json!({"prompt": "the rain in spain ".repeat(12), "max_tokens": 300, "stream": true, "logit_bias": {"2": -100}});
    let mut stream = server.connect();
    stream.write_all(&request("/v1/completions", &body, "")).unwrap();
    server.wait_until(|counters| counters.generated_tokens > 0);
    let busy = server.get("/v1/kv").json();
    assert!(busy["arena"]["used_bytes"].as_u64().unwrap() > 0, "{busy}");
    assert!(busy["prefixes"]["tokens"].as_u64().unwrap() >= 68, "{busy}");
    // The answer may be finished by now.
    if let Some(sequence) = busy["sequences"].as_array().unwrap().first() {
        let bytes = |name: &str| sequence[name].as_u64().unwrap();
        assert!(bytes("held_tokens") > 0 && bytes("encoded_bytes") < bytes("f16_bytes"), "{sequence}");
        assert!(bytes("stored_bytes") <= bytes("f16_bytes"), "{sequence}");
    }
    let answer = Answer::read(&mut stream);
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
    let after = server.get("/v1/kv").json();
    assert_eq!((&after["sequences"], &after["generated_tokens"]), (&json!([]), &json!(300)));
}

#[test]
fn counters_count() {
    let server = usual();
    for _ in 0..2 {
        server.ask(
            "/v1/completions",
            json!({"prompt": "the rain ".repeat(30), "max_tokens": 3, "seed": 1, "logit_bias": {"2": -100}}),
        );
    }
    // Answers come a moment before they are counted.
    server.wait_until(|counters| counters.finished == 2);
    let answer = server.get("/metrics");
    assert!(answer.head.contains("text/plain; version=0.0.4"));
    let value = |name: &str| -> f64 {
        let line = answer
            .body
            .lines()
            .find(|line| line.starts_with(&format!("kvant_{name}{{model_name=\"tiny\"}} ")))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!((value("request_accepted_total"), value("request_success_total")), (2.0, 2.0));
    assert_eq!(value("generation_tokens_total"), 6.0);
    assert!(value("prefix_cache_hits_total") >= 68.0);
    assert_eq!(value("time_to_first_token_seconds_count"), 2.0);
    assert_eq!(value("inter_token_latency_seconds_count"), 4.0);
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
}

#[test]
fn prefixes_on_disk_are_counted_and_found_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let serve = |folder| {
        let model = crate::tiny::model_bytes(true);
        serve_within(model, options(), SchedulerOptions::default(), Arena::new(), folder)
    };
    let body =
        json!({"prompt": "the rain in spain ".repeat(12), "max_tokens": 30, "seed": 3, "temperature": 1.0});
    let alone = serve(None).ask("/v1/completions", body.clone());
    let first = serve(Some(folder.path()));
    assert_eq!(first.get("/v1/kv").json()["disk"]["files"], 0);
    assert_eq!(first.ask("/v1/completions", body.clone())["choices"], alone["choices"]);
    first.end();
    drop(first);

    let second = serve(Some(folder.path()));
    let disk = second.get("/v1/kv").json()["disk"].clone();
    assert!(disk["files"].as_u64() > Some(1) && disk["bytes"].as_u64() > Some(1000), "{disk}");
    assert_eq!((&disk["cap_bytes"], &disk["loaded_tokens"]), (&json!(64 << 20), &json!(0)));
    let answer = second.ask("/v1/completions", body);
    assert_eq!(answer["choices"], alone["choices"]);
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64() > Some(0), "{answer}");
    second.wait_until(|counters| counters.finished == 1);
    assert_eq!(&second.get("/v1/kv").json()["disk"]["loaded_tokens"], cached);
    let metrics = second.get("/metrics").body;
    let loaded = format!("\nkvant_disk_tokens_loaded_total{{model_name=\"tiny\"}} {cached}\n");
    assert!(metrics.contains(&loaded) && metrics.contains("\nkvant_disk_files{"), "{metrics}");
    assert_eq!(serve(None).get("/v1/kv").json()["disk"], json!(null));
}

#[test]
fn the_cache_is_never_shown_larger_than_f16() {
    let server = usual();
    // Too short for a page: everything is exact.
    let body = json!({"prompt": "hi", "max_tokens": 40, "stream": true, "ignore_eos": true});
    let mut stream = server.connect();
    stream.write_all(&request("/v1/completions", &body, "")).unwrap();
    let mut seen = 0;
    while seen == 0 && server.handle.counters().finished == 0 {
        let view = server.get("/v1/kv").json();
        for sequence in view["sequences"].as_array().unwrap() {
            let bytes = |name: &str| sequence[name].as_u64().unwrap();
            if bytes("held_tokens") > 0 {
                seen += 1;
                assert_eq!(bytes("stored_bytes"), bytes("f16_bytes"), "{sequence}");
            }
        }
        let costs = view["costs"].as_array().unwrap();
        let last = costs.last().unwrap();
        assert_eq!(last["tokens"], view["context"]);
        assert!(last["bytes"].as_u64().unwrap() * 3 < last["f16_bytes"].as_u64().unwrap(), "{last}");
    }
    drop(Answer::read(&mut stream));
}
