//! A message in pieces, in Anthropic's words: blocks that are begun, added to and ended.

use super::response::{ending_words, usage, usage_of};
use crate::error::{ApiError, Dialect};
use crate::turn::{Ending, Step, StreamFormat, sse};
use kvant_engine::reply::ReplyPart;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
}

/// A stream under way.
pub struct MessageEvents {
    id: String,
    model: String,
    prompt: usize,
    /// The block that is open.
    open: Option<Block>,
    /// Blocks so far, the open one included.
    blocks: usize,
    calls: usize,
    end: Option<(Ending, Value)>,
}

impl MessageEvents {
    pub fn new(id: String, model: String, prompt: usize) -> Self {
        Self { id, model, prompt, open: None, blocks: 0, calls: 0, end: None }
    }

    /// Begins a block, after the end of the one before.
    fn begin(&mut self, block: Option<Block>, content: &Value, out: &mut String) {
        self.close(out);
        self.open = block;
        let event = json!({"type": "content_block_start", "index": self.blocks, "content_block": content});
        self.blocks += 1;
        sse(out, Some("content_block_start"), &event);
    }

    fn delta(&self, delta: &Value, out: &mut String) {
        let event = json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta});
        sse(out, Some("content_block_delta"), &event);
    }

    fn close(&mut self, out: &mut String) {
        if self.open.take().is_some() {
            self.stop(out);
        }
    }

    fn stop(&self, out: &mut String) {
        let event = json!({"type": "content_block_stop", "index": self.blocks - 1});
        sse(out, Some("content_block_stop"), &event);
    }

    fn part(&mut self, part: ReplyPart, out: &mut String) {
        match part {
            ReplyPart::Reasoning(text) => {
                if self.open != Some(Block::Thinking) {
                    let content = json!({"type": "thinking", "thinking": "", "signature": ""});
                    self.begin(Some(Block::Thinking), &content, out);
                }
                self.delta(&json!({"type": "thinking_delta", "thinking": text}), out);
            }
            ReplyPart::Text(text) => {
                if self.open != Some(Block::Text) {
                    self.begin(Some(Block::Text), &json!({"type": "text", "text": ""}), out);
                }
                self.delta(&json!({"type": "text_delta", "text": text}), out);
            }
            ReplyPart::Call(call) => {
                let id = format!("toolu_{}_{}", self.id, self.calls);
                self.calls += 1;
                let content = json!({"type": "tool_use", "id": id, "name": call.name, "input": {}});
                self.begin(None, &content, out);
                self.delta(&json!({"type": "input_json_delta", "partial_json": call.arguments}), out);
                self.stop(out);
            }
        }
    }
}

impl StreamFormat for MessageEvents {
    fn sign_of_life(&self) -> &'static str {
        "event: ping\ndata: {\"type\": \"ping\"}\n\n"
    }

    fn step(&mut self, step: Step, out: &mut String) {
        if let Some(cached) = step.started {
            let message = json!({
                "id": self.id,
                "type": "message",
                "role": "assistant",
                "model": self.model,
                "content": [],
                "stop_reason": null,
                "stop_sequence": null,
                "usage": usage_of(self.prompt, cached, 0),
            });
            sse(out, Some("message_start"), &json!({"type": "message_start", "message": message}));
            sse(out, Some("ping"), &json!({"type": "ping"}));
        }
        step.parts.into_iter().for_each(|part| self.part(part, out));
        if let Some((ending, took)) = step.end {
            self.end = Some((ending, usage(&took)));
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.blocks == 0 {
            self.begin(Some(Block::Text), &json!({"type": "text", "text": ""}), out);
        }
        self.close(out);
        let (ending, usage) = self.end.take().unzip();
        let (reason, stop) = ending_words(ending.as_ref());
        let delta = json!({"stop_reason": reason, "stop_sequence": stop});
        sse(out, Some("message_delta"), &json!({"type": "message_delta", "delta": delta, "usage": usage}));
        sse(out, Some("message_stop"), &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        sse(out, Some("error"), &error.body_in(Dialect::Anthropic));
    }
}
