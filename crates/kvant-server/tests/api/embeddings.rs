//! `/v1/embeddings`.

use crate::support::*;
use serde_json::{Value, json};

const PATH: &str = "/v1/embeddings";

fn vector(entry: &Value) -> Vec<f64> {
    entry["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn texts_and_tokens_have_vectors_of_length_one() {
    let server = usual();
    let both = server.ask(PATH, json!({"input": ["the rain", "in spain"], "model": MODEL}));
    assert_eq!((&both["object"], both["data"].as_array().unwrap().len()), (&json!("list"), 2));
    for (index, entry) in both["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(index)));
        let vector = vector(entry);
        assert_eq!(vector.len(), 64);
        assert!((vector.iter().map(|x| x * x).sum::<f64>() - 1.0).abs() < 1e-5);
    }
    assert_ne!(vector(&both["data"][0]), vector(&both["data"][1]));
    let ids = server.ask("/tokenize", json!({"content": "in spain"}));
    let again = server.ask(PATH, json!({"input": ids["tokens"]}));
    assert_eq!(vector(&again["data"][0]), vector(&both["data"][1]));
    assert_eq!(again["usage"]["prompt_tokens"], ids["count"]);
    let last = server.ask(PATH, json!({"input": "in spain", "pooling": "last", "dimensions": 64}));
    assert_ne!(vector(&last["data"][0]), vector(&both["data"][1]));
}

#[test]
fn packed_vectors_hold_the_same_numbers() {
    let server = usual();
    let plain = server.ask(PATH, json!({"input": "the rain"}));
    let packed = server.ask(PATH, json!({"input": "the rain", "encoding_format": "base64"}));
    let text = packed["data"][0]["embedding"].as_str().unwrap();
    let digit = |c: u8| -> u32 {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        digits.iter().position(|&d| d == c).unwrap_or(0) as u32
    };
    let bytes: Vec<u8> = text
        .as_bytes()
        .chunks(4)
        .flat_map(|four| {
            let whole = four.iter().fold(0, |sum, &c| (sum << 6) | digit(c));
            whole.to_be_bytes()[1..].to_vec()
        })
        .collect();
    let numbers: Vec<f32> =
        bytes.chunks_exact(4).take(64).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(numbers, vector(&plain["data"][0]).iter().map(|&x| x as f32).collect::<Vec<f32>>());
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let server = strict();
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": vec!["x"; 65]}), "input"),
        (json!({"input": "x", "pooling": "max"}), "pooling"),
        (json!({"input": "x", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "x", "dimensions": 32}), "dimensions"),
        (json!({"input": "x", "mood": 1}), "mood"),
    ] {
        let error = server.post(PATH, &body).fails(400, "");
        assert_eq!(error["param"], param, "{error}");
    }
}
