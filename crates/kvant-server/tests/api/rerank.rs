//! `/v1/rerank`.

use crate::support::*;
use serde_json::{Value, json};

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
