//! A byte-level vocabulary of any size: every byte, two control tokens, one merge, and tokens that never come up.

use crate::byte_level::ByteAlphabet;
use crate::gguf::{Writer, WriterValue};
use serde_json::{Map, Value, json};

const BYTES: usize = 256;
const BEGIN: usize = BYTES;
const END: usize = BYTES + 1;

/// The smallest vocabulary there is: all bytes, the two control tokens and the merged one.
pub const LEAST_VOCABULARY: usize = BYTES + 3;

/// Kinds of tokens, by the numbers GGUF gives them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const UNUSED: i32 = 5;

/// All tokens of a vocabulary, and the one merge.
fn tokens(size: usize) -> (Vec<String>, String) {
    let characters = ByteAlphabet::new().characters();
    let (space, letter) = (characters[usize::from(b' ')], characters[usize::from(b't')]);
    let mut tokens: Vec<String> = characters.iter().map(char::to_string).collect();
    tokens.extend(["<|begin|>".to_owned(), "<|end|>".to_owned()]);
    // Readers of this kind of vocabulary insist on a list of merges.
    tokens.push(format!("{space}{letter}"));
    tokens.extend((tokens.len()..size).map(|id| format!("<|unused_{id}|>")));
    (tokens, format!("{space} {letter}"))
}

/// The same as a `tokenizer.json`. Models of fewer tokens than bytes have those bytes alone.
pub fn tokenizer_json(size: usize) -> Value {
    let (tokens, merge) = tokens(size);
    let merges = if size >= LEAST_VOCABULARY { vec![merge] } else { vec![] };
    let control = |id: usize| {
        json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let added: Vec<Value> = [BEGIN, END].into_iter().filter(|&id| id < size).map(control).collect();
    let vocabulary: Map<String, Value> =
        tokens.iter().take(size).enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": bytes,
        "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    })
}

pub fn write(writer: &mut Writer, size: usize) {
    let (tokens, merge) = tokens(size);
    let kinds = (0..tokens.len()).map(|id| match id {
        BEGIN | END => CONTROL,
        LEAST_VOCABULARY.. => UNUSED,
        _ => NORMAL,
    });
    writer.set("tokenizer.ggml.model", WriterValue::String("gpt2".into()));
    writer.set("tokenizer.ggml.pre", WriterValue::String("gpt-2".into()));
    writer.set("tokenizer.ggml.token_type", WriterValue::i32s(kinds));
    writer.set("tokenizer.ggml.tokens", WriterValue::strings(tokens));
    writer.set("tokenizer.ggml.merges", WriterValue::strings([merge]));
    for (key, id) in [("bos", BEGIN), ("eos", END)] {
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), WriterValue::U32(id as u32));
    }
    writer.set("tokenizer.ggml.add_bos_token", WriterValue::Bool(true));
}
