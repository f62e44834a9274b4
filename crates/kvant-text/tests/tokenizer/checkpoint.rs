//! Tokenizers from the files of a checkpoint.

use kvant_text::tokenizer::{EncodeOptions, GgufVocab, HfFiles, TokenKind, Tokenizer};
use serde_json::{Value, json};

use crate::vocabularies::{self, PLAIN, SPECIAL, ids, released, strings};

/// The `tokenizer.json` a byte-level vocabulary is released with.
fn tokenizer_json(vocab: &GgufVocab, pre_tokenizer: Value) -> String {
    let added = |id: usize| {
        json!({"id": id, "content": vocab.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": vocab.kinds[id] == TokenKind::Control})
    };
    let is_added = |id: &usize| matches!(vocab.kinds[*id], TokenKind::Control | TokenKind::UserDefined);
    let tokens: serde_json::Map<String, Value> =
        vocab.tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    json!({
        "version": "1.0",
        // Left over from training, and not to be heeded.
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<pad>"},
        "normalizer": null, "post_processor": null,
        "added_tokens": (0..vocab.tokens.len()).filter(is_added).map(added).collect::<Vec<_>>(),
        "pre_tokenizer": pre_tokenizer,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": tokens, "merges": vocab.merges},
    })
    .to_string()
}

#[test]
fn a_byte_level_checkpoint_gives_the_ids_of_its_gguf() {
    let vocab = released("smollm2");
    let file = tokenizer_json(
        &vocab,
        json!({"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]}),
    );
    let tokenizer = Tokenizer::from_hf(HfFiles {
        tokenizer: &file,
        tokenizer_config: Some(r#"{"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}"#),
        generation_config: Some(r#"{"eos_token_id": [2, 7, 4000000000]}"#),
        config: Some(r#"{"eos_token_id": 9}"#),
    })
    .unwrap();
    let expected = vocabularies::json("smollm2.ids.json");
    for (index, text) in strings(&vocabularies::json("texts.json")["texts"]).iter().enumerate() {
        assert_eq!(tokenizer.encode(text, PLAIN).unwrap(), ids(&expected["plain"][index]), "{text:?}");
        assert_eq!(tokenizer.encode(text, SPECIAL).unwrap(), ids(&expected["special"][index]), "{text:?}");
    }
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.end_of_generation(), [0, 2, 4, 7, 9]);
    assert_eq!(tokenizer.vocab_len(), vocab.tokens.len());
}

#[test]
fn a_sentencepiece_checkpoint_encodes_as_its_reference() {
    let file = vocabularies::json("llama_style.json");
    let text = file["tokenizer"].to_string();
    let tokenizer = Tokenizer::from_hf(HfFiles {
        tokenizer: &text,
        tokenizer_config: Some(r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}"#),
        ..HfFiles::default()
    })
    .unwrap();
    for case in file["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, SPECIAL).unwrap(), ids(&case["ids"]), "{text:?}");
        let whole = EncodeOptions { add_special: true, parse_special: true };
        assert_eq!(tokenizer.encode(text, whole).unwrap(), ids(&case["whole"]), "{text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["ids"])).unwrap(), case["decoded"].as_str().unwrap());
    }
    assert_eq!(tokenizer.end_of_generation(), [2]);
}
