//! Vocabularies of `tokenizer.json` in GGUF files, and back.

use kvant_convert::{Conversion, ConvertError, Format, Weights};
use kvant_model::Checkpoint;
use kvant_model::checkpoint::ConfigSource;
use kvant_model::safetensors::Safetensors;
use kvant_text::tokenizer::{EncodeOptions, Tokenizer};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Rows that the tables are given: more than any vocabulary here has tokens.
const TOKENS: usize = 320;

/// The llama fixture with this tokenizer, and tables that are long enough for it.
fn folder(tokenizer: &Value, settings: &Value) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/llama");
    let source = place.path().join("tiny");
    fs::create_dir(&source).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(fixture.join("config.json")).unwrap()).unwrap();
    config["vocab_size"] = TOKENS.into();
    fs::write(source.join("config.json"), config.to_string()).unwrap();
    let tensors = Safetensors::open(&fixture.join("model.safetensors")).unwrap();
    let longer: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .names()
        .map(|name| {
            let tensor = tensors.tensor(name).unwrap().unwrap();
            let (mut shape, mut bytes) = (tensor.shape().to_vec(), tensor.bytes().to_vec());
            if shape[0] == 256 {
                shape[0] = TOKENS;
                bytes.resize(TOKENS * tensor.row_bytes(), 0);
            }
            (name.to_owned(), shape, bytes)
        })
        .collect();
    let view = |(name, shape, bytes): &'_ (String, Vec<usize>, Vec<u8>)| {
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes.clone().leak()).unwrap())
    };
    let file = serialize(longer.iter().map(view), None).unwrap();
    fs::write(source.join("model.safetensors"), file).unwrap();
    fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(source.join("tokenizer_config.json"), settings.to_string()).unwrap();
    (place, source)
}

fn converted(place: &TempDir, source: &Path) -> Result<Checkpoint, ConvertError> {
    let path = place.path().join("tiny.gguf");
    Conversion::new(&Checkpoint::open(source)?, Weights::F16, Format::Gguf, None)?
        .write(&path, &mut |_, _| ControlFlow::Continue(()))?;
    Ok(Checkpoint::open(path)?)
}

/// The folder that a GGUF file becomes.
fn back(place: &TempDir, gguf: &Checkpoint) -> Checkpoint {
    let path = place.path().join("back/model.safetensors");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let conversion = Conversion::new(gguf, Weights::F16, Format::Safetensors, None).unwrap();
    assert!(conversion.notes().is_empty(), "{:?}", conversion.notes());
    conversion.write(&path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Checkpoint::open(path).unwrap()
}

/// Bytes of ASCII in GPT-2's spelling, some merges, and two added tokens.
fn byte_level(rule: &str) -> Value {
    let mut tokens: Vec<String> = (33..127u8).map(|byte| char::from(byte).to_string()).collect();
    tokens.extend(["Ġ", "Ċ", "ĉ", "č"].map(String::from));
    let merges = ["t h", "th e", "Ġ t", "Ġ the", "i n", "Ġ in", "1 2", "Ċ Ċ", "Ġ Ġ"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let added = |id: usize, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    };
    json!({
        "version": "1.0",
        "added_tokens": [added(tokens.len(), "<|end|>", true), added(tokens.len() + 1, "<tool>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
}

#[test]
fn a_byte_level_vocabulary_reads_the_same_from_gguf() {
    let settings =
        json!({"eos_token": "<|end|>", "pad_token": {"content": "<|end|>"}, "chat_template": "{{ x }}"});
    let (place, source) = folder(&byte_level(QWEN2), &settings);
    let gguf = converted(&place, &source).unwrap();
    let ConfigSource::Gguf(metadata) = gguf.config() else { panic!("not GGUF") };
    let text = |key: &str| metadata.need::<&str>(key).unwrap();
    assert_eq!((text("tokenizer.ggml.model"), text("tokenizer.ggml.pre")), ("gpt2", "qwen2"));
    assert_eq!((text("tokenizer.chat_template"), text("general.name")), ("{{ x }}", "tiny"));
    assert_eq!(metadata.need::<Vec<&str>>("tokenizer.ggml.tokens").unwrap().len(), TOKENS);
    let (ours, theirs) =
        (Tokenizer::of(&Checkpoint::open(&source).unwrap()).unwrap(), Tokenizer::of(&gguf).unwrap());
    assert_eq!((ours.eos(), ours.bos(), ours.prefix()), (theirs.eos(), theirs.bos(), theirs.prefix()));
    for parse_special in [false, true] {
        let options = EncodeOptions { add_special: true, parse_special };
        let text = "the thin tin in 1212 <tool> there\n\n  <|end|> is";
        assert_eq!(ours.encode(text, options).unwrap(), theirs.encode(text, options).unwrap());
    }
    let folder = back(&place, &gguf);
    let again = Tokenizer::of(&folder).unwrap();
    assert_eq!((ours.eos(), ours.bos(), ours.prefix()), (again.eos(), again.bos(), again.prefix()));
    assert_eq!(theirs.end_of_generation(), again.end_of_generation());
    for parse_special in [false, true] {
        let options = EncodeOptions { add_special: true, parse_special };
        let text = "the thin tin in 1212 <tool> there\n\n  <|end|> is";
        assert_eq!(ours.encode(text, options).unwrap(), again.encode(text, options).unwrap());
    }
    let settings = folder.companion_text("tokenizer_config.json").unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&settings).unwrap()["chat_template"], "{{ x }}");
}

/// A vocabulary of a kind that is not read goes without one, and says so.
#[test]
fn a_folder_without_a_vocabulary_says_so() {
    let (place, source) = folder(&byte_level(QWEN2), &json!({}));
    fs::remove_file(source.join("tokenizer.json")).unwrap();
    let gguf = converted(&place, &source).unwrap();
    let conversion = Conversion::new(&gguf, Weights::F16, Format::Safetensors, None).unwrap();
    assert!(conversion.notes()[0].contains("no tokenizer.json"), "{:?}", conversion.notes());
}

#[test]
fn a_rule_that_gguf_has_no_name_for_is_refused() {
    let (place, source) = folder(&byte_level("[aeiou]+"), &json!({}));
    let refused = converted(&place, &source).unwrap_err().to_string();
    assert!(refused.contains("[aeiou]+") && refused.contains("safetensors"), "{refused}");
    assert!(!place.path().join("tiny.gguf").exists());
}

/// Characters with bytes to fall back on, as Llama 2 has them: every way to make a piece is a merge, best pieces first.
fn sentence() -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    let pieces = ["th", "the", "▁t", "▁th", "▁the", "in", "▁i", "▁in", "12", "▁▁"];
    tokens.extend(
        ["▁", "t", "h", "e", "i", "n", "1", "2"].iter().chain(&pieces).map(|&piece| piece.to_owned()),
    );
    let known = |part: &str| tokens.iter().any(|token| token == part);
    let mut merges = Vec::new();
    for piece in pieces {
        let cuts = piece.char_indices().skip(1).map(|(at, _)| piece.split_at(at));
        merges.extend(
            cuts.filter(|(left, right)| known(left) && known(right)).map(|(l, r)| format!("{l} {r}")),
        );
    }
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let special = |id: usize| {
        json!({"id": id, "content": tokens[id], "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    };
    json!({
        "version": "1.0",
        "added_tokens": [special(0), special(1), special(2)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    })
}

#[test]
fn a_sentencepiece_vocabulary_reads_the_same_from_gguf() {
    let settings =
        json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": true});
    let (place, source) = folder(&sentence(), &settings);
    let gguf = converted(&place, &source).unwrap();
    let (ours, theirs) =
        (Tokenizer::of(&Checkpoint::open(&source).unwrap()).unwrap(), Tokenizer::of(&gguf).unwrap());
    assert_eq!((ours.prefix(), ours.eos()), (theirs.prefix(), theirs.eos()));
    for text in ["the thin   tin 1212", "in then", "ö the\n"] {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(ids(&ours), ids(&theirs), "{text:?}");
        assert!(ids(&ours).iter().any(|&id| id >= 267), "{text:?} has a joined piece");
    }
    let again = Tokenizer::of(&back(&place, &gguf)).unwrap();
    assert_eq!((ours.prefix(), ours.eos()), (again.prefix(), again.eos()));
    for text in ["the thin   tin 1212", "in then", "ö the\n", "", " "] {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, EncodeOptions::default()).unwrap();
        assert_eq!(ids(&theirs), ids(&again), "{text:?}");
        assert_eq!(theirs.decode(&ids(&theirs)).unwrap(), again.decode(&ids(&again)).unwrap());
    }
}

/// A pair that no merge joins, though both together are a token: pieces would be joined all the same.
#[test]
fn a_vocabulary_that_would_read_otherwise_is_refused() {
    let mut tokenizer = sentence();
    tokenizer["model"]["merges"].as_array_mut().unwrap().retain(|merge| merge != "th e" && merge != "▁th e");
    let (place, source) = folder(&tokenizer, &json!({}));
    let refused = converted(&place, &source).unwrap_err().to_string();
    assert!(refused.contains("would be read as other tokens"), "{refused}");
}
