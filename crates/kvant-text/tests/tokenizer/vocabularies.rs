//! The vocabularies the tests run on.

use std::io::Read;
use std::path::PathBuf;

use kvant_text::tokenizer::{EncodeOptions, GgufVocab, TokenKind, Tokenizer};
use serde_json::Value;

pub const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
pub const SPECIAL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/tokenizer").join(name)
}

pub fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(data(name)).expect(name);
    serde_json::from_str(&text).expect(name)
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// A released vocabulary: its merges in order, and the tokens that no merge makes.
pub fn released(name: &str) -> GgufVocab {
    let file = std::fs::File::open(data(&format!("{name}.vocab.gz"))).expect(name);
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect(name);
    let (head, merges) = text.split_once('\n').expect(name);
    let head: Value = serde_json::from_str(head).expect(name);
    let merges: Vec<String> = merges.split('\n').map(String::from).collect();
    let mut made = merges.iter().map(|merge| merge.replacen(' ', "", 1));
    let (mut tokens, mut kinds) = (Vec::new(), Vec::new());
    for id in 0..head["len"].as_u64().unwrap() {
        let listed = &head["listed"][id.to_string()];
        if let Some(text) = listed[0].as_str() {
            tokens.push(text.to_owned());
            kinds.push(TokenKind::from_gguf(listed[1].as_i64().unwrap() as i32));
        } else {
            tokens.push(made.next().unwrap());
            kinds.push(TokenKind::Normal);
        }
    }
    let id = |key: &str| head[key].as_u64().map(|id| id as u32);
    GgufVocab {
        model: head["model"].as_str().unwrap().to_owned(),
        pre: head["pre"].as_str().map(String::from),
        bos: id("bos_token_id"),
        eos: id("eos_token_id"),
        unknown: id("unknown_token_id"),
        padding: id("padding_token_id"),
        add_bos: head["add_bos_token"].as_bool(),
        add_space_prefix: head["add_space_prefix"].as_bool(),
        tokens,
        kinds,
        merges,
        ..GgufVocab::default()
    }
}

/// The made-up SentencePiece vocabulary.
pub fn sentence(add_space_prefix: bool) -> GgufVocab {
    let file = json("sentence.json");
    let kinds = file["kinds"].as_array().unwrap();
    let scores = file["scores"].as_array().unwrap();
    GgufVocab {
        model: "llama".into(),
        tokens: strings(&file["tokens"]),
        scores: scores.iter().map(|s| s.as_f64().unwrap() as f32).collect(),
        kinds: kinds.iter().map(|k| TokenKind::from_gguf(k.as_i64().unwrap() as i32)).collect(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        add_space_prefix: Some(add_space_prefix),
        ..GgufVocab::default()
    }
}

/// The spelling of a text in GPT-2's byte alphabet.
pub fn spell(text: &str) -> String {
    let literal = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let spell_byte = |b: u8| {
        let others_before = (0..b).filter(|&b| !literal(b)).count() as u32;
        if literal(b) { char::from(b) } else { char::from_u32(256 + others_before).unwrap() }
    };
    text.bytes().map(spell_byte).collect()
}

/// All bytes, and every string of up to three of a few telling characters: as in `make_references.py`.
pub fn probe(pre: &str) -> GgufVocab {
    let bytes: Vec<String> = (0..=255u8)
        .map(|b| match std::str::from_utf8(&[b]) {
            Ok(text) => spell(text),
            // A byte above 0x7F is no text by itself; in the alphabet these are literal, but for the controls.
            Err(_) if matches!(b, 0xA1..=0xAC | 0xAE..=0xFF) => char::from(b).to_string(),
            Err(_) if b == 0xAD => '\u{143}'.to_string(),
            Err(_) => char::from_u32(256 + 33 + 1 + u32::from(b - 0x80)).unwrap().to_string(),
        })
        .collect();
    let mut tokens = bytes;
    let mut merges: Vec<String> = Vec::new();
    let mut seen: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    let mut merge = |left: &str, right: &str| {
        merges.push(format!("{left} {right}"));
        let joined = format!("{left}{right}");
        if seen.insert(joined.clone()) {
            tokens.push(joined);
        }
    };
    let symbols: Vec<String> =
        strings(&json("texts.json")["probe_symbols"]).iter().map(|s| spell(s)).collect();
    let mut inner = Vec::new();
    for symbol in &symbols {
        let chars: Vec<char> = symbol.chars().collect();
        for n in 1..chars.len() {
            let pair = (String::from_iter(&chars[..n]), chars[n].to_string());
            if !inner.contains(&pair) {
                merge(&pair.0, &pair.1);
                inner.push(pair);
            }
        }
    }
    let pairs: Vec<(&str, &str)> =
        symbols.iter().flat_map(|a| symbols.iter().map(move |b| (a.as_str(), b.as_str()))).collect();
    for (a, b) in &pairs {
        merge(a, b);
    }
    for (a, b) in &pairs {
        for c in &symbols {
            merge(&format!("{a}{b}"), c);
        }
    }
    GgufVocab { model: "gpt2".into(), pre: Some(pre.into()), tokens, merges, ..GgufVocab::default() }
}

pub fn tokenizer(vocab: &GgufVocab) -> Tokenizer {
    Tokenizer::from_gguf(vocab).unwrap()
}
