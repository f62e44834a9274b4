//! A response as it is written.

use super::request::ResponseRequest;
use crate::app::now;
use crate::models::Served;
use crate::protocol::openai::logprobs;
use crate::request::custom::CustomTools;
use crate::turn::{Ending, NamedCall, Scored, Turn};
use kvant_text::chat::Message;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A response that is not there yet.
pub struct Draft {
    pub id: String,
    served: Arc<Served>,
    custom: CustomTools,
    previous: Option<String>,
    created: u64,
    store: bool,
    echoed: Map<String, Value>,
}

impl Draft {
    pub fn new(id: String, served: Arc<Served>, previous: Option<String>, request: &ResponseRequest) -> Self {
        let (store, echoed) = (request.store, request.echoed.clone());
        let custom = request.turn.tools.as_ref().map(|tools| tools.custom.clone()).unwrap_or_default();
        Self { id, served, custom, previous, created: now(), store, echoed }
    }

    /// Probabilities of text.
    pub fn logprobs(&self, scored: &[Scored]) -> Vec<Value> {
        let tokenizer = self.served.handle.engine().tokenizer();
        let text = scored.iter().filter(|scored| scored.is_text);
        text.map(|scored| logprobs::of_chat(tokenizer, scored.token, &scored.found)).collect()
    }

    /// An item that calls.
    pub fn call(&self, index: usize, named: &NamedCall) -> Value {
        let (name, call_id) = (&named.call.name, &named.id);
        match self.custom.input(&named.call) {
            Some(input) => json!({
                "id": self.item_id("ctc", index), "type": "custom_tool_call", "status": "completed", "call_id": call_id,
                "name": name, "input": input,
            }),
            None => json!({
                "id": self.item_id("fc", index), "type": "function_call", "status": "completed", "call_id": call_id,
                "name": name, "arguments": named.call.arguments,
            }),
        }
    }

    /// What is known before it is done.
    pub fn begun(&self) -> Value {
        self.frame("in_progress", &[], &Value::Null, &Value::Null)
    }

    /// The whole response.
    pub fn completed(&self, turn: &Turn) -> Value {
        self.ended(turn, &self.items(turn))
    }

    /// The whole response with these items.
    pub fn ended(&self, turn: &Turn, items: &[Value]) -> Value {
        let usage = json!({
            "input_tokens": turn.usage.prompt,
            "input_tokens_details": {"cached_tokens": turn.usage.cached},
            "output_tokens": turn.usage.generated,
            "output_tokens_details": {"reasoning_tokens": turn.usage.reasoning},
            "total_tokens": turn.usage.prompt + turn.usage.generated,
        });
        let cut = json!({"reason": "max_output_tokens"});
        match turn.ending {
            Some(Ending::Length) => self.frame("incomplete", items, &cut, &usage),
            _ => self.frame("completed", items, &Value::Null, &usage),
        }
    }

    /// A response that failed on the way.
    pub fn failed(&self, message: &str) -> Value {
        let mut response = self.frame("failed", &[], &Value::Null, &Value::Null);
        response["error"] = json!({"code": "server_error", "message": message});
        response
    }

    fn frame(&self, status: &str, output: &[Value], incomplete: &Value, usage: &Value) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
            "model": self.served.name,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": self.previous,
            "reasoning": {"effort": null, "summary": null},
            "store": self.store,
            "truncation": "disabled",
            "usage": usage,
            "user": null,
            "metadata": {},
        });
        for (name, value) in &self.echoed {
            response[name] = value.clone();
        }
        response
    }

    /// What an item is called.
    pub fn item_id(&self, prefix: &str, index: usize) -> String {
        format!("{prefix}_{}_{index}", self.id)
    }

    /// The items of a whole turn.
    fn items(&self, turn: &Turn) -> Vec<Value> {
        let status = status(turn);
        let has_more = !turn.text.is_empty() || !turn.calls.is_empty();
        let mut items = Vec::new();
        if !turn.reasoning.is_empty() {
            let status = if has_more { "completed" } else { status };
            items.push(reasoning(&self.item_id("rs", items.len()), &turn.reasoning, status));
        }
        if !turn.text.is_empty() || (turn.calls.is_empty() && items.is_empty()) {
            let part = part(&turn.text, self.logprobs(&turn.scored));
            items.push(message(&self.item_id("msg", items.len()), &part, status));
        }
        for named in &turn.calls {
            items.push(self.call(items.len(), named));
        }
        items
    }
}

/// The state of the item that was under way when a turn ended.
pub fn status(turn: &Turn) -> &'static str {
    if turn.ending == Some(Ending::Length) { "incomplete" } else { "completed" }
}

/// An item of reasoning.
pub fn reasoning(id: &str, text: &str, status: &str) -> Value {
    json!({
        "id": id,
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "status": status,
    })
}

/// A part of a message.
pub fn part(text: &str, logprobs: Vec<Value>) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}

/// An item of text.
pub fn message(id: &str, part: &Value, status: &str) -> Value {
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part]})
}

/// The conversation with the answer at its end.
pub fn with_answer(mut conversation: Vec<Message>, turn: &Turn) -> Vec<Message> {
    let text = (!turn.text.is_empty()).then(|| turn.text.clone());
    let mut message = match turn.calls.is_empty() {
        true => Message::new("assistant", text.unwrap_or_default()),
        false => {
            let call = |named: &crate::turn::NamedCall| {
                let function = json!({"name": named.call.name, "arguments": named.call.arguments});
                json!({"id": named.id, "type": "function", "function": function})
            };
            Message::calling(text, turn.calls.iter().map(call).collect())
        }
    };
    if !turn.reasoning.is_empty() {
        message = message.with("reasoning_content", turn.reasoning.clone());
    }
    conversation.push(message);
    conversation
}
