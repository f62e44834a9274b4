//! The parser of every family behind one interface.

use super::format::{ChatFormat, ReasoningStyle};
use super::harmony::Harmony;
use super::tagged::Tagged;
use crate::tools::{ToolCall, ToolSet};
use serde_json::Value;

/// A part of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPart {
    /// What is thought before the answer.
    Reasoning(String),
    /// What is said.
    Text(String),
    /// What is to be called.
    Call(ToolCall),
}

/// Splits a reply as it comes. Text is held back only while it may be part of a marker or a call.
#[derive(Debug, Clone)]
pub struct ReplyParser(Machine);

#[derive(Debug, Clone)]
enum Machine {
    Tagged(Tagged),
    Harmony(Harmony),
}

impl ReplyParser {
    /// For replies in this format that may call these tools, given in OpenAI's form; what looks like a call of another is text.
    pub fn new(format: &ChatFormat, tools: &[Value]) -> Self {
        let tools = ToolSet::new(tools);
        Self(match format.reasoning {
            Some(ReasoningStyle::Harmony) => Machine::Harmony(Harmony::new(tools)),
            reasoning => {
                let style = format.tools.filter(|_| !tools.is_empty());
                Machine::Tagged(Tagged::new(reasoning, style, tools))
            }
        })
    }

    /// The same for a reply to a prompt that ends like this: it may have opened the reasoning.
    #[must_use]
    pub fn after(mut self, prompt_end: &str) -> Self {
        match &mut self.0 {
            Machine::Tagged(tagged) => tagged.begin_after(prompt_end),
            Machine::Harmony(harmony) => harmony.begin_after(prompt_end),
        }
        self
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        match &mut self.0 {
            Machine::Tagged(tagged) => tagged.push(text, &mut parts),
            Machine::Harmony(harmony) => harmony.push(text, &mut parts),
        }
        parts
    }

    /// Ends the reply.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let mut parts = Vec::new();
        match &mut self.0 {
            Machine::Tagged(tagged) => tagged.finish(&mut parts),
            Machine::Harmony(harmony) => harmony.finish(&mut parts),
        }
        parts
    }

    /// Takes a whole reply.
    pub fn read(mut self, text: &str) -> ParsedReply {
        let mut parsed = ParsedReply::default();
        parsed.extend(self.push(text));
        parsed.extend(self.finish());
        parsed
    }
}

/// A whole reply, split.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedReply {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub text: String,
    /// What is to be called, in order.
    pub calls: Vec<ToolCall>,
}

impl Extend<ReplyPart> for ParsedReply {
    fn extend<T: IntoIterator<Item = ReplyPart>>(&mut self, parts: T) {
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => self.reasoning.push_str(&text),
                ReplyPart::Text(text) => self.text.push_str(&text),
                ReplyPart::Call(call) => self.calls.push(call),
            }
        }
    }
}

/// Adds text of one kind, to the last part if that is of its kind.
pub(super) fn add(parts: &mut Vec<ReplyPart>, text: &str, is_reasoning: bool) {
    match (parts.last_mut(), is_reasoning) {
        _ if text.is_empty() => {}
        (Some(ReplyPart::Reasoning(last)), true) | (Some(ReplyPart::Text(last)), false) => {
            last.push_str(text)
        }
        (_, true) => parts.push(ReplyPart::Reasoning(text.to_owned())),
        (_, false) => parts.push(ReplyPart::Text(text.to_owned())),
    }
}
