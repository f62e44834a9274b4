//! `/v1/rerank`.

use crate::support::*;
use serde_json::{Value, json};

#[test]
fn texts_come_by_how_near_they_are() {
    let server = usual();
    let body = json!({"query": "the rain in spain", "documents": ["zzz", "the rain in spain", {"text": "the rain"}], "top_n": 2});
    let ranking = server.ask("/v1/rerank", body.clone());
    let results = ranking["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["index"]), (2, &json!(1)));
    assert!((results[0]["relevance_score"].as_f64().unwrap() - 1.0).abs() < 1e-4, "{ranking}");
    assert_eq!(results[0]["document"]["text"], "the rain in spain");
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
    ] {
        let error: Value = server.post("/v1/rerank", &body).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}
