//! Probabilities of tokens, as the two kinds of answers write them.

use kvant_engine::scheduler::Logprobs;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

/// What stands for the logarithm of zero, which JSON cannot write.
const IMPOSSIBLE: f32 = -9999.0;

fn number(logprob: f32) -> f32 {
    logprob.max(IMPOSSIBLE)
}

fn bytes(tokenizer: &Tokenizer, token: u32) -> &[u8] {
    tokenizer.token_bytes(token).unwrap_or_default()
}

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(bytes(tokenizer, token)).into_owned()
}

/// An entry of a chat's `logprobs.content`.
pub fn of_chat(tokenizer: &Tokenizer, token: u32, found: &Logprobs) -> Value {
    let entry = |token: u32, logprob: f32| {
        json!({
            "token": text(tokenizer, token),
            "logprob": number(logprob),
            "bytes": bytes(tokenizer, token),
        })
    };
    let top: Vec<Value> = found.top.iter().map(|&(token, logprob)| entry(token, logprob)).collect();
    let mut whole = entry(token, found.chosen);
    whole["top_logprobs"] = top.into();
    whole
}

/// The four lists of a text's `logprobs`.
#[derive(Debug, Default)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    chosen: Vec<Option<f32>>,
    top: Vec<Option<Map<String, Value>>>,
    offsets: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token that begins at `offset` characters, and moves the offset behind it. The first of a prompt follows nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32, found: Option<&Logprobs>, offset: &mut usize) {
        let text_of = |token| text(tokenizer, token);
        self.chosen.push(found.map(|found| number(found.chosen)));
        let top = |found: &Logprobs| {
            found.top.iter().map(|&(token, logprob)| (text_of(token), number(logprob).into())).collect()
        };
        self.top.push(found.map(top));
        self.offsets.push(*offset);
        let own = text_of(token);
        *offset += own.chars().count();
        self.tokens.push(own);
    }

    /// As they are written.
    pub fn into_value(self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.chosen,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        })
    }
}
