//! One answer of several: what has come of it, or a piece of it.

use super::Form;
use super::logprobs::{self, TextLogprobs};
use kvant_engine::scheduler::Logprobs;
use kvant_model::tokenizer::Tokenizer;
use serde_json::{Value, json};

/// Text with what belongs to it.
#[derive(Debug, Default)]
pub struct Choice {
    pub text: String,
    pub finish: Option<&'static str>,
    /// Of a chat.
    content: Option<Vec<Value>>,
    /// Of a text.
    lists: Option<TextLogprobs>,
    /// Characters before the next token.
    offset: usize,
}

impl Choice {
    /// An answer that begins with a text of its own.
    pub fn new(echo: &str) -> Self {
        Self { text: echo.to_owned(), offset: echo.chars().count(), ..Self::default() }
    }

    /// Adds a token, and the text it let out.
    pub fn add(
        &mut self,
        tokenizer: &Tokenizer,
        form: &Form,
        token: u32,
        text: &str,
        found: Option<Logprobs>,
    ) {
        self.text.push_str(text);
        let Some(found) = found else { return };
        match form {
            Form::Chat => {
                let entry = logprobs::of_chat(tokenizer, token, &found);
                self.content.get_or_insert_default().push(entry);
            }
            Form::Text { .. } => {
                self.lists.get_or_insert_default().push(tokenizer, token, &found, &mut self.offset);
            }
        }
    }

    /// Takes what has come since the last time; the rest goes on from there.
    pub fn take_piece(&mut self) -> Self {
        let offset = self.offset;
        std::mem::replace(self, Self { offset, ..Self::default() })
    }

    /// True if there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.finish.is_none() && self.content.is_none() && self.lists.is_none()
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
        let Self { text, finish, .. } = self;
        match form {
            Form::Chat => json!({
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": logprobs,
                "finish_reason": finish,
            }),
            Form::Text { .. } => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
        }
    }

    /// As a piece of a stream.
    pub fn into_piece(mut self, index: usize, form: &Form) -> Value {
        let logprobs = self.logprobs();
        let Self { text, finish, .. } = self;
        match form {
            Form::Chat => {
                let is_last = finish.is_some() && text.is_empty();
                let delta = if is_last { json!({}) } else { json!({"content": text}) };
                json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish})
            }
            Form::Text { .. } => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
            }
        }
    }
}
