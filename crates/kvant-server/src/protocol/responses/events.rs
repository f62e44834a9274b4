//! A response in pieces: items that are added, grow and are done, each event with its number.

use super::output::{self, Draft};
use crate::error::ApiError;
use crate::turn::{Step, StreamFormat, Turn, sse};
use kvant_engine::reply::ReplyPart;
use kvant_text::chat::Message;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Reasoning,
    Text,
}

/// An item that grows.
struct Growing {
    kind: Open,
    id: String,
    text: String,
    /// Probabilities of its tokens.
    logprobs: Vec<Value>,
}

/// Keeps a response under its name, where that is wanted.
type Keep = Box<dyn FnOnce(&str, Vec<Message>, Value) + Send>;

/// A stream under way.
pub struct ResponseEvents {
    draft: Draft,
    conversation: Vec<Message>,
    keep: Option<Keep>,
    number: u64,
    /// The item that grows.
    open: Option<Growing>,
    items: Vec<Value>,
    turn: Turn,
}

impl Growing {
    fn new(kind: Open, id: String) -> Self {
        Self { kind, id, text: String::new(), logprobs: Vec::new() }
    }
}

impl ResponseEvents {
    pub fn new(draft: Draft, conversation: Vec<Message>, keep: Keep) -> Self {
        let (items, turn) = (Vec::new(), Turn::default());
        Self { draft, conversation, keep: Some(keep), number: 0, open: None, items, turn }
    }

    fn say(&mut self, kind: &str, mut fields: Value, out: &mut String) {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.number.into();
        self.number += 1;
        sse(out, Some(kind), &fields);
    }

    fn begin(&mut self, open: Open, out: &mut String) {
        self.close("completed", out);
        let index = self.items.len();
        match open {
            Open::Reasoning => {
                let id = self.draft.item_id("rs", index);
                let item = json!({"id": id, "type": "reasoning", "summary": [], "content": [], "status": "in_progress"});
                self.say("response.output_item.added", json!({"output_index": index, "item": item}), out);
                self.open = Some(Growing::new(open, id));
            }
            Open::Text => {
                let id = self.draft.item_id("msg", index);
                let item = json!({"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []});
                self.say("response.output_item.added", json!({"output_index": index, "item": item}), out);
                let part = json!({"item_id": id, "output_index": index, "content_index": 0, "part": output::part("", Vec::new())});
                self.say("response.content_part.added", part, out);
                self.open = Some(Growing::new(open, id));
            }
        }
    }

    fn grow(&mut self, wanted: Open, text: &str, logprobs: Vec<Value>, out: &mut String) {
        if self.open.as_ref().is_none_or(|open| open.kind != wanted) {
            self.begin(wanted, out);
        }
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        open.logprobs.extend(logprobs.iter().cloned());
        let mut delta =
            json!({"item_id": open.id, "output_index": self.items.len(), "content_index": 0, "delta": text});
        let kind = match wanted {
            Open::Reasoning => "response.reasoning_text.delta",
            Open::Text => {
                delta["logprobs"] = logprobs.into();
                "response.output_text.delta"
            }
        };
        self.say(kind, delta, out);
    }

    /// Ends the item that grows, in this state.
    fn close(&mut self, status: &str, out: &mut String) {
        let Some(Growing { kind, id, text, logprobs }) = self.open.take() else { return };
        let index = self.items.len();
        let place = |more: Value| {
            let mut fields = json!({"item_id": id, "output_index": index, "content_index": 0});
            fields
                .as_object_mut()
                .into_iter()
                .for_each(|all| all.extend(more.as_object().cloned().unwrap_or_default()));
            fields
        };
        let item = match kind {
            Open::Reasoning => {
                self.say("response.reasoning_text.done", place(json!({"text": text})), out);
                output::reasoning(&id, &text, status)
            }
            Open::Text => {
                self.say(
                    "response.output_text.done",
                    place(json!({"text": text, "logprobs": logprobs})),
                    out,
                );
                let part = output::part(&text, logprobs);
                self.say("response.content_part.done", place(json!({"part": part})), out);
                output::message(&id, &part, status)
            }
        };
        self.say("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.items.push(item);
    }

    fn call(&mut self, out: &mut String) {
        self.close("completed", out);
        let Some(named) = self.turn.calls.last().cloned() else { return };
        let index = self.items.len();
        let item = self.draft.call(index, &named);
        let (field, event) = match item["type"] == "custom_tool_call" {
            true => ("input", "response.custom_tool_call_input"),
            false => ("arguments", "response.function_call_arguments"),
        };
        let mut begun = item.clone();
        begun[field] = "".into();
        begun["status"] = "in_progress".into();
        self.say("response.output_item.added", json!({"output_index": index, "item": begun}), out);
        let delta = json!({"item_id": item["id"], "output_index": index, "delta": item[field]});
        self.say(&format!("{event}.delta"), delta, out);
        let mut done = json!({"item_id": item["id"], "output_index": index, "name": item["name"]});
        done[field] = item[field].clone();
        self.say(&format!("{event}.done"), done, out);
        self.say("response.output_item.done", json!({"output_index": index, "item": item}), out);
        self.items.push(item);
    }
}

impl StreamFormat for ResponseEvents {
    fn step(&mut self, step: Step, out: &mut String) {
        if step.started.is_some() {
            let begun = self.draft.begun();
            self.say("response.created", json!({"response": begun}), out);
            self.say("response.in_progress", json!({"response": begun}), out);
        }
        let scored = self.turn.score(&step).to_vec();
        let mut logprobs = self.draft.logprobs(&scored);
        for part in step.parts {
            let shown = part.clone();
            let id = self.draft.id.clone();
            self.turn.add(vec![part], |number| format!("call_{id}_{number}"));
            match shown {
                ReplyPart::Reasoning(text) => self.grow(Open::Reasoning, &text, Vec::new(), out),
                ReplyPart::Text(text) => self.grow(Open::Text, &text, std::mem::take(&mut logprobs), out),
                ReplyPart::Call(_) => self.call(out),
            }
        }
        if let Some((ending, usage)) = step.end {
            (self.turn.ending, self.turn.usage) = (Some(ending), usage);
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.open.is_none() && self.items.is_empty() {
            self.begin(Open::Text, out);
        }
        self.close(output::status(&self.turn), out);
        let response = self.draft.ended(&self.turn, &self.items);
        if let Some(keep) = self.keep.take() {
            let conversation = std::mem::take(&mut self.conversation);
            keep(&self.draft.id, output::with_answer(conversation, &self.turn), response.clone());
        }
        let kind = match response["status"].as_str() {
            Some("incomplete") => "response.incomplete",
            _ => "response.completed",
        };
        self.say(kind, json!({"response": response}), out);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        let response = self.draft.failed(error.message());
        self.say("response.failed", json!({"response": response}), out);
    }
}
