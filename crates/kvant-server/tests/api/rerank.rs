//! `/v1/rerank`.

use crate::support::*;
use kvant_engine::{Arena, Engine, LoadOptions};
use kvant_model::Checkpoint;
use serde_json::{Value, json};
use std::path::Path;

/// A model whose chats are ChatML, and for which "yes" and "no" are tokens.
fn judge() -> Running {
    let words = ["▁y", "▁yes", "▁no", "<|im_start|>", "<|im_end|>"];
    serve(crate::tiny::model_with_tokens(None, &words), options(), Default::default())
}

#[test]
fn a_judge_says_how_likely_its_yes_is() {
    let server = judge();
    let documents = ["zzz", "the rain in spain", "a train"];
    let ask = |more: Value| {
        let mut body = json!({"query": "rain", "documents": documents, "scoring": "yes_no"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/v1/rerank", body)
    };
    let ranking = ask(json!({}));
    assert_eq!(ranking["scoring"], "yes_no");
    let scores = |ranking: &Value| {
        let results = ranking["results"].as_array().unwrap();
        results
            .iter()
            .map(|r| (r["index"].as_u64().unwrap(), r["relevance_score"].as_f64().unwrap()))
            .collect::<Vec<_>>()
    };
    let all = scores(&ranking);
    assert!(all.iter().all(|(_, score)| (0.0..=1.0).contains(score)) && all.is_sorted_by(|a, b| a.1 >= b.1));
    assert!(all[0].1 > all[2].1, "{all:?}");
    // The same alone, and another with another task.
    for &(index, score) in &all {
        let alone = ask(json!({"documents": [documents[index as usize]]}));
        assert_eq!(scores(&alone), [(0, score)]);
    }
    assert_ne!(scores(&ask(json!({"instruction": "Find nonsense"}))), all);
    let plain = server.ask("/v1/rerank", json!({"query": "rain", "documents": documents}));
    assert_eq!(plain["scoring"], "cosine", "its file does not say that it was made for this");
    let error = usual()
        .post("/v1/rerank", &json!({"query": "x", "documents": ["y"], "scoring": "yes_no"}))
        .fails(400, "ChatML");
    assert_eq!(error["param"], "scoring");
}

/// A tiny encoder of the engine's tests.
fn encoder(name: &str) -> Running {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-engine/tests/fixtures/encoders").join(name);
    let engine = Engine::load(&Checkpoint::open(folder).unwrap(), LoadOptions::default()).unwrap();
    serve_engine(engine, options(), Default::default(), Arena::new(), None)
}

#[test]
fn a_cross_encoder_scores_pairs_and_nothing_else() {
    let server = encoder("bert_rank");
    let documents = ["rain and wind", "the mat", "unbelievable cats"];
    let body = json!({"query": "what falls", "documents": documents});
    let ranking = server.ask("/v1/rerank", body.clone());
    assert_eq!(ranking["scoring"], "cross_encoder");
    let results = ranking["results"].as_array().unwrap();
    let of = |index: u64| {
        results.iter().find(|r| r["index"] == index).unwrap()["relevance_score"].as_f64().unwrap()
    };
    // The first pair of the fixture, whose logit the formulas gave.
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-engine/tests/fixtures/encoders/bert_rank");
    let text = std::fs::read_to_string(Path::new(folder).join("expected.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let logit = expected[0]["logits"][0].as_f64().unwrap();
    assert!((of(0) - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-4, "{ranking}");
    let cosine = json!({"query": "x", "documents": ["y"], "scoring": "cosine"});
    server.post("/v1/rerank", &cosine).fails(400, "cross-encoder");
    server.post("/v1/embeddings", &json!({"input": "x"})).fails(400, "cross-encoder");
    server.post("/v1/completions", &json!({"prompt": "x"})).fails(400, "cross-encoder");
}

#[test]
fn an_encoder_gives_vectors_and_cosines_and_no_text() {
    let server = encoder("bert");
    let vectors = server.ask("/v1/embeddings", json!({"input": ["the cat", "rain"]}));
    let vector = |index: usize| -> Vec<f64> {
        let numbers = vectors["data"][index]["embedding"].as_array().unwrap();
        numbers.iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let near: f64 = vector(0).iter().zip(vector(1)).map(|(a, b)| a * b).sum();
    let ranking = server.ask("/v1/rerank", json!({"query": "the cat", "documents": ["rain"]}));
    assert_eq!(ranking["scoring"], "cosine", "a fallback, and the answer says so");
    assert!((ranking["results"][0]["relevance_score"].as_f64().unwrap() - near).abs() < 1e-6);
    let named = |pooling: &str| {
        server.ask("/v1/embeddings", json!({"input": ["the cat"], "pooling": pooling}))["data"].clone()
    };
    assert_eq!(named("cls")[0], vectors["data"][0], "as the model's files say");
    assert_ne!(named("mean")[0], vectors["data"][0]);
    server.post("/v1/embeddings", &json!({"input": "x", "pooling": "max"})).fails(400, "cls");
    server.post("/v1/completions", &json!({"prompt": "x"})).fails(400, "encoder");
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    server.post("/v1/chat/completions", &chat).fails(400, "encoder");
    server
        .post("/v1/rerank", &json!({"query": "x", "documents": ["y"], "scoring": "cross_encoder"}))
        .fails(400, "none");
}

#[test]
fn texts_come_by_how_near_they_are() {
    let server = usual();
    let body = json!({"query": "the rain in spain", "documents": ["zzz", "the rain in spain", {"text": "the rain"}], "top_n": 2});
    let ranking = server.ask("/v1/rerank", body.clone());
    let results = ranking["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["index"]), (2, &json!(1)));
    assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-4, "{ranking}");
    assert_eq!(results[0]["document"]["text"], "the rain in spain");
    assert_eq!(ranking["scoring"], "cosine", "the tiny model was not made for this, and the answer says so");
    assert_eq!(server.ask("/rerank", body)["results"], ranking["results"]);
    // The naive way: products of the vectors.
    let texts = json!(["the rain in spain", "zzz", "the rain"]);
    let vectors = server.ask("/v1/embeddings", json!({"input": texts}))["data"].clone();
    let vector = |index: usize| -> Vec<f64> {
        vectors[index]["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let near = |index: usize| vector(0).iter().zip(vector(index)).map(|(a, b)| a * b).sum::<f64>();
    let plain = server.ask(
        "/v1/rerank",
        json!({"query": texts[0], "documents": [texts[1], texts[2]], "return_documents": false}),
    );
    for result in plain["results"].as_array().unwrap() {
        let expected = near(result["index"].as_u64().unwrap() as usize + 1);
        assert!(
            (result["relevance_score"].as_f64().unwrap() - expected).abs() < 1e-6
                && result.get("document").is_none()
        );
    }
    for (body, param) in [
        (json!({"documents": ["x"]}), "query"),
        (json!({"query": "x"}), "documents"),
        (json!({"query": "x", "documents": []}), "documents"),
        (json!({"query": "x", "documents": [5]}), "documents"),
        (json!({"query": "x", "documents": ["y"], "top_n": 0}), "top_n"),
        (json!({"query": "x", "documents": ["y"], "scoring": "best"}), "scoring"),
    ] {
        let error: Value = server.post("/v1/rerank", &body).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}
