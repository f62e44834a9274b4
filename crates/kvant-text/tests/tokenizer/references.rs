//! Ids against those of llama.cpp, for texts chosen to be difficult.

use kvant_text::tokenizer::{EncodeOptions, GgufVocab, Tokenizer};
use serde_json::Value;

use crate::vocabularies::{PLAIN, SPECIAL, ids, json, probe, released, sentence, strings, tokenizer};

fn fnv1a(ids: &[u32]) -> String {
    let hash = ids
        .iter()
        .flat_map(|id| id.to_le_bytes())
        .fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
    format!("{hash:016x}")
}

fn assert_ids(tokenizer: &Tokenizer, text: &str, options: EncodeOptions, expected: &[u32], what: &str) {
    let found = tokenizer.encode(text, options).unwrap();
    assert_eq!(found, expected, "{what}, {options:?}: {text:?}");
}

fn check(vocab: &GgufVocab, expected: &Value, what: &str) {
    let tokenizer = tokenizer(vocab);
    let texts = json("texts.json");
    for (index, text) in strings(&texts["texts"]).iter().enumerate() {
        assert_ids(&tokenizer, text, PLAIN, &ids(&expected["plain"][index]), what);
        assert_ids(&tokenizer, text, SPECIAL, &ids(&expected["special"][index]), what);
    }
    for (long, expected) in texts["long"].as_array().unwrap().iter().zip(expected["long"].as_array().unwrap())
    {
        let text = long[0].as_str().unwrap().repeat(long[1].as_u64().unwrap() as usize);
        let found = tokenizer.encode(&text, PLAIN).unwrap();
        assert_eq!(expected[0], found.len(), "{what}: {long}");
        assert_eq!(expected[1], fnv1a(&found), "{what}: {long}");
    }
    let whole = EncodeOptions { add_special: true, parse_special: false };
    assert_ids(&tokenizer, "Hello", whole, &ids(&expected["whole"]), what);
    assert_eq!(tokenizer.end_of_generation(), ids(&expected["end"]), "{what}: ends of generation");
}

#[test]
fn smollm2() {
    check(&released("smollm2"), &json("smollm2.ids.json"), "smollm2");
}

#[test]
fn qwen2() {
    check(&released("qwen2"), &json("qwen2.ids.json"), "qwen2");
}

#[test]
fn sentencepiece_with_a_space_in_front() {
    check(&sentence(true), &json("sentence.json")["with_space"], "sentence");
}

#[test]
fn sentencepiece_without() {
    check(&sentence(false), &json("sentence.json")["without_space"], "sentence");
}

#[test]
fn every_pre_tokenizer_splits_as_its_reference() {
    let file = json("texts.json");
    let texts = [strings(&file["texts"]), strings(&file["random"])].concat();
    let mut wrong = Vec::new();
    for (pre, expected) in json("pre.ids.json").as_object().unwrap() {
        let tokenizer = tokenizer(&probe(pre));
        for (text, expected) in texts.iter().zip(expected.as_array().unwrap()) {
            let found = tokenizer.encode(text, PLAIN).unwrap();
            if found != ids(expected) {
                let pieces = |ids: &[u32]| -> Vec<String> {
                    ids.iter().map(|&id| tokenizer.token_name(id).unwrap()).collect()
                };
                wrong.push(format!(
                    "{pre}: {text:?}\n  {:?}\n  {:?}",
                    pieces(&found),
                    pieces(&ids(expected))
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ from the reference\n{}", wrong.len(), wrong.join("\n"));
}
