//! Answers as Ollama writes them: a JSON object to a line, or one for all.

use crate::error::{ApiError, Dialect};
use crate::models::Served;
use crate::protocol::openai::logprobs;
use crate::time::timestamp;
use crate::turn::{Ending, Step, StreamFormat, Turn, TurnUsage};
use kvant_engine::reply::ReplyPart;
use kvant_engine::scheduler::Logprobs;
use serde_json::{Value, json};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// What answers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Turns of a conversation.
    Chat,
    /// Texts.
    Generate,
}

/// A stream under way.
pub struct Lines {
    kind: Kind,
    model: String,
    served: Arc<Served>,
    /// Probabilities that no line has told yet.
    scored: Vec<Value>,
    calls: usize,
    end: Option<(Ending, TurnUsage)>,
}

impl Lines {
    pub fn new(kind: Kind, model: String, served: Arc<Served>) -> Self {
        Self { kind, model, served, scored: Vec::new(), calls: 0, end: None }
    }

    /// A token as `logprobs` has it.
    fn entry(&self, token: u32, found: &Logprobs) -> Value {
        logprobs::of_chat(self.served.handle.engine().tokenizer(), token, found)
    }

    fn object(&self, reasoning: &str, text: &str, calls: Vec<Value>) -> Value {
        let mut object = json!({"model": self.model, "created_at": timestamp()});
        match self.kind {
            Kind::Chat => {
                let mut message = json!({"role": "assistant", "content": text});
                if !reasoning.is_empty() {
                    message["thinking"] = reasoning.into();
                }
                if !calls.is_empty() {
                    message["tool_calls"] = calls.into();
                }
                object["message"] = message;
            }
            Kind::Generate => {
                object["response"] = text.into();
                if !reasoning.is_empty() {
                    object["thinking"] = reasoning.into();
                }
            }
        }
        object["done"] = false.into();
        object
    }

    /// The last object: why it ended, and what it took.
    fn finished(&self, mut object: Value, ending: Option<&Ending>, usage: &TurnUsage) -> Value {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        object["done"] = true.into();
        object["done_reason"] = if ending == Some(&Ending::Length) { "length" } else { "stop" }.into();
        object["total_duration"] = nanoseconds(usage.total).into();
        object["load_duration"] = nanoseconds(usage.waited).into();
        object["prompt_eval_count"] = usage.prompt.into();
        object["prompt_eval_duration"] = nanoseconds(usage.first_token.saturating_sub(usage.waited)).into();
        object["eval_count"] = usage.generated.into();
        object["eval_duration"] = nanoseconds(usage.total.saturating_sub(usage.first_token)).into();
        object
    }

    /// The whole answer.
    pub fn whole(self, turn: Turn) -> Value {
        let call = |(number, call): (usize, &crate::turn::NamedCall)| written(number, &call.call);
        let calls = turn.calls.iter().enumerate().map(call).collect();
        let mut object = self.object(&turn.reasoning, &turn.text, calls);
        if !turn.scored.is_empty() {
            let entries = turn.scored.iter().map(|scored| self.entry(scored.token, &scored.found));
            object["logprobs"] = entries.collect();
        }
        self.finished(object, turn.ending.as_ref(), &turn.usage)
    }
}

/// A call, whose arguments are an object here.
fn written(number: usize, call: &kvant_engine::tools::ToolCall) -> Value {
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({"function": {"index": number, "name": call.name, "arguments": arguments}})
}

fn line(out: &mut String, object: &Value) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{object}");
}

impl StreamFormat for Lines {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    /// Nothing: every line is read as an object.
    fn sign_of_life(&self) -> &'static str {
        ""
    }

    fn step(&mut self, step: Step, out: &mut String) {
        let scored = step.logprobs.as_ref().map(|(token, found)| self.entry(*token, found));
        self.scored.extend(scored);
        for part in step.parts {
            let mut object = match part {
                ReplyPart::Reasoning(text) => self.object(&text, "", Vec::new()),
                ReplyPart::Text(text) => self.object("", &text, Vec::new()),
                ReplyPart::Call(call) => {
                    self.calls += 1;
                    self.object("", "", vec![written(self.calls - 1, &call)])
                }
            };
            if !self.scored.is_empty() {
                object["logprobs"] = std::mem::take(&mut self.scored).into();
            }
            line(out, &object);
        }
        self.end = step.end.or(self.end.take());
    }

    fn end(&mut self, out: &mut String) {
        let Some((ending, usage)) = self.end.take() else { return };
        let mut object = self.finished(self.object("", "", Vec::new()), Some(&ending), &usage);
        if !self.scored.is_empty() {
            object["logprobs"] = std::mem::take(&mut self.scored).into();
        }
        line(out, &object);
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        line(out, &error.body_in(Dialect::Ollama));
    }
}
