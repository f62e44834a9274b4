//! `tokenizer.json` and `tokenizer_config.json` of a GGUF file's vocabulary.
//!
//! A `gpt2` vocabulary has all that a byte-level BPE needs; the rule that cuts text into words stands behind its name. A `llama` one
//! has scores in place of merges: every way to make a piece of two others is a merge, best score first.
//!
//! **Invariant:** what is written reads a list of difficult texts as the file's own vocabulary does, or is not written.

use crate::to_gguf::same_tokens;
use kvant_model::gguf::Metadata;
use kvant_text::tokenizer::{GgufVocab, HfFiles, TokenKind, Tokenizer, pre_tokenizer_splits};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The character SentencePiece writes a space as.
const SPACE: &str = "▁";

type Files = Vec<(&'static str, Vec<u8>)>;

/// The files, or why there are none.
pub(super) fn of(metadata: &Metadata) -> (Files, Option<String>) {
    match files(metadata) {
        Ok(files) => (files, None),
        Err(why) => {
            let note = format!(
                "no tokenizer.json is written: {why}; put the one of the original checkpoint beside the weights"
            );
            (Vec::new(), Some(note))
        }
    }
}

fn files(metadata: &Metadata) -> Result<Files, String> {
    let vocab = GgufVocab::read(metadata).map_err(|e| e.to_string())?;
    let original = Tokenizer::from_gguf(&vocab).map_err(|e| e.to_string())?;
    let tokenizer = match vocab.model.as_str() {
        "gpt2" => byte_level(&vocab)?,
        _ => sentence(&vocab),
    };
    let tokenizer = with_prefix(tokenizer, &vocab, original.prefix());
    let settings = settings(&vocab, &original, metadata);
    let generation = json!({"bos_token_id": original.bos(), "eos_token_id": original.end_of_generation()});
    let text = |value: &Value| serde_json::to_string_pretty(value).map_err(|e| e.to_string());
    let (tokenizer, settings, generation) = (text(&tokenizer)?, text(&settings)?, text(&generation)?);
    let written = Tokenizer::from_hf(HfFiles {
        tokenizer: &tokenizer,
        tokenizer_config: Some(&settings),
        generation_config: Some(&generation),
        config: None,
    });
    let written = written.map_err(|e| e.to_string())?;
    same_tokens(&original, &written)?;
    let ends = |tokenizer: &Tokenizer| (tokenizer.bos(), tokenizer.eos(), tokenizer.prefix().to_vec());
    if ends(&original) != ends(&written) {
        return Err("texts would begin or end otherwise".into());
    }
    Ok(vec![
        ("tokenizer.json", tokenizer.into_bytes()),
        ("tokenizer_config.json", settings.into_bytes()),
        ("generation_config.json", generation.into_bytes()),
    ])
}

fn kind(vocab: &GgufVocab, id: usize) -> TokenKind {
    vocab.kinds.get(id).copied().unwrap_or(TokenKind::Normal)
}

fn vocabulary(vocab: &GgufVocab) -> Map<String, Value> {
    (0u32..).zip(&vocab.tokens).map(|(id, token)| (token.clone(), id.into())).collect()
}

fn added(vocab: &GgufVocab) -> Vec<Value> {
    let token = |(id, text): (usize, &String)| {
        let special = match kind(vocab, id) {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => return None,
        };
        Some(json!({
            "id": id, "content": text, "single_word": false, "lstrip": false,
            "rstrip": vocab.strips_after_structure && special, "normalized": false, "special": special,
        }))
    };
    vocab.tokens.iter().enumerate().filter_map(token).collect()
}

fn byte_level(vocab: &GgufVocab) -> Result<Value, String> {
    let name = vocab.pre.as_deref().unwrap_or("default");
    let (splits, ignore_merges) =
        pre_tokenizer_splits(name).ok_or_else(|| format!("its way to cut words, {name:?}, is not known"))?;
    let split = |regex: &&str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Value> = splits.iter().map(split).collect();
    steps.push(
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}),
    );
    let merges: Vec<Value> = vocab.merges.iter().map(|merge| merge.split(' ').collect::<Value>()).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(vocab),
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": ignore_merges, "vocab": vocabulary(vocab), "merges": merges,
        },
    }))
}

fn sentence(vocab: &GgufVocab) -> Value {
    let adds_space = vocab.add_space_prefix.unwrap_or(true);
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let normalizer = match adds_space {
        true => json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}),
        false => replace,
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if adds_space {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = (0..vocab.tokens.len()).find(|&id| kind(vocab, id) == TokenKind::Unknown);
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(vocab),
        "normalizer": normalizer,
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown.map(|id| &vocab.tokens[id]),
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": vocab.kinds.contains(&TokenKind::Byte), "ignore_merges": false,
            "vocab": vocabulary(vocab), "merges": merges(vocab),
        },
    })
}

/// Every way to make a piece of two others; of one piece those of earlier tokens first.
fn merges(vocab: &GgufVocab) -> Vec<[&str; 2]> {
    let is_piece =
        |id: usize| matches!(kind(vocab, id), TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused);
    let ids: HashMap<&str, usize> = vocab
        .tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| is_piece(*id))
        .map(|(id, token)| (token.as_str(), id))
        .collect();
    let mut found: Vec<(f32, usize, usize, [&str; 2])> = Vec::new();
    for (&token, &id) in &ids {
        let score = vocab.scores.get(id).copied().unwrap_or(0.0);
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                found.push((score, l, r, [left, right]));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
    found.into_iter().map(|(.., pair)| pair).collect()
}

/// The tokens before every text.
fn with_prefix(mut tokenizer: Value, vocab: &GgufVocab, prefix: &[u32]) -> Value {
    if let Some(&id) = prefix.first() {
        let token = &vocab.tokens[id as usize];
        let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
        let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
        let mut about = Map::new();
        about.insert(token.clone(), json!({"id": token, "ids": [id], "tokens": [token]}));
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing",
            "single": [special(token), text("A")],
            "pair": [special(token), text("A"), special(token), text("B")],
            "special_tokens": about,
        });
    }
    tokenizer
}

fn settings(vocab: &GgufVocab, original: &Tokenizer, metadata: &Metadata) -> Value {
    let name = |id: Option<u32>| id.and_then(|id| vocab.tokens.get(id as usize)).cloned();
    let mut settings = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": name(original.bos()),
        "eos_token": name(original.eos()),
        "unk_token": name(vocab.unknown),
        "pad_token": name(vocab.padding),
        "add_bos_token": !original.prefix().is_empty(),
        "clean_up_tokenization_spaces": false,
    });
    if let Ok(Some(template)) = metadata.get::<&str>("tokenizer.chat_template") {
        settings["chat_template"] = template.into();
    }
    settings
}
