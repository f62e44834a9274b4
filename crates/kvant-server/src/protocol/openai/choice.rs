//! One answer of several: what has come of it, or a piece of it.

use super::Form;
use super::logprobs::{self, TextLogprobs};
use crate::request::custom::CustomTools;
use kvant_engine::reply::ReplyPart;
use kvant_engine::scheduler::Logprobs;
use kvant_text::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Text with what belongs to it.
#[derive(Debug, Default)]
pub struct Choice {
    text: String,
    reasoning: String,
    finish: Option<&'static str>,
    calls: Vec<Value>,
    /// What calls are named after, and how many there were.
    id: String,
    called: usize,
    /// Of a chat.
    content: Option<Vec<Value>>,
    /// Of a text.
    lists: Option<TextLogprobs>,
    /// Characters before the next token.
    offset: usize,
    /// The sum of the logarithms of its tokens' probabilities, and how many there are.
    likelihood: (f64, usize),
}

impl Choice {
    /// An answer that begins with a text of its own; calls in it are named after `id`.
    pub fn new(echo: &str, id: String) -> Self {
        Self { text: echo.to_owned(), offset: echo.chars().count(), id, ..Self::default() }
    }

    /// Ends it.
    pub fn end(&mut self, finish: &'static str) {
        self.finish = Some(finish);
    }

    /// Adds parts of it.
    pub fn add(&mut self, parts: Vec<ReplyPart>, custom: &CustomTools) {
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => self.reasoning.push_str(&text),
                ReplyPart::Text(text) => self.text.push_str(&text),
                ReplyPart::Call(call) => {
                    let id = format!("call-{}-{}", self.id, self.called);
                    let mut written = json!({"index": self.called, "id": id});
                    match custom.input(&call) {
                        Some(input) => {
                            written["type"] = "custom".into();
                            written["custom"] = json!({"name": call.name, "input": input});
                        }
                        None => {
                            written["type"] = "function".into();
                            written["function"] = json!({"name": call.name, "arguments": call.arguments});
                        }
                    }
                    self.calls.push(written);
                    self.called += 1;
                }
            }
        }
    }

    /// Counts a token's probability.
    pub fn weigh(&mut self, found: &Logprobs) {
        self.likelihood.0 += f64::from(found.chosen);
        self.likelihood.1 += 1;
    }

    /// The mean logarithm of its tokens' probabilities; that of an answer without tokens is the highest.
    pub fn mean_logprob(&self) -> f64 {
        self.likelihood.0 / self.likelihood.1.max(1) as f64
    }

    /// Adds the probabilities of a token.
    pub fn add_logprobs(&mut self, tokenizer: &Tokenizer, form: &Form, token: u32, found: &Logprobs) {
        match form {
            Form::Chat => {
                let entry = logprobs::of_chat(tokenizer, token, found);
                self.content.get_or_insert_default().push(entry);
            }
            Form::Text { .. } => {
                self.lists.get_or_insert_default().push(tokenizer, token, Some(found), &mut self.offset);
            }
        }
    }

    /// Adds those of the prompt, whose first token has none.
    pub fn add_prompt(&mut self, tokenizer: &Tokenizer, tokens: &[u32], scored: &[Logprobs]) {
        let lists = self.lists.get_or_insert_default();
        let mut offset = 0;
        for (&token, found) in tokens.iter().zip([None].into_iter().chain(scored.iter().map(Some))) {
            lists.push(tokenizer, token, found, &mut offset);
        }
    }

    /// Takes what has come since the last time; the rest goes on from there.
    pub fn take_piece(&mut self) -> Self {
        let (offset, called) = (self.offset, self.called);
        let id = std::mem::take(&mut self.id);
        std::mem::replace(self, Self { offset, called, id, ..Self::default() })
    }

    /// True if there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        let is_silent = self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
        is_silent && self.finish.is_none() && self.content.is_none() && self.lists.is_none()
    }

    fn logprobs(&mut self) -> Value {
        match (self.content.take(), self.lists.take()) {
            (Some(content), _) => json!({"content": content, "refusal": null}),
            (None, Some(lists)) => lists.into_value(),
            (None, None) => Value::Null,
        }
    }

    /// As a whole.
    pub fn into_whole(mut self, index: usize, form: &Form) -> Value {
        let logprobs = self.logprobs();
        let Self { text, reasoning, finish, mut calls, .. } = self;
        match form {
            Form::Chat => {
                let mut message = json!({"role": "assistant", "content": text, "refusal": null});
                add_reasoning(&mut message, reasoning);
                if !calls.is_empty() {
                    // Their order is that of the list.
                    calls
                        .iter_mut()
                        .filter_map(Value::as_object_mut)
                        .for_each(|call| drop(call.shift_remove("index")));
                    message["tool_calls"] = calls.into();
                    if text.is_empty() {
                        message["content"] = Value::Null;
                    }
                }
                json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish})
            }
            Form::Text { .. } => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
        }
    }

    /// As a piece of a stream.
    pub fn into_piece(mut self, index: usize, form: &Form) -> Value {
        let logprobs = self.logprobs();
        let Self { text, reasoning, finish, calls, .. } = self;
        match form {
            Form::Chat => {
                let mut delta = json!({});
                if !text.is_empty() || (finish.is_none() && calls.is_empty() && reasoning.is_empty()) {
                    delta["content"] = text.into();
                }
                add_reasoning(&mut delta, reasoning);
                if !calls.is_empty() {
                    delta["tool_calls"] = calls.into();
                }
                json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
            }
            Form::Text { .. } => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
        }
    }
}

/// Reasoning under both names that clients know.
fn add_reasoning(message: &mut Value, reasoning: String) {
    if !reasoning.is_empty() {
        message["reasoning"] = reasoning.as_str().into();
        message["reasoning_content"] = reasoning.into();
    }
}
