//! From a model's text to its tool calls, as the text comes.

use super::ToolStyle;
use serde_json::Value;

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// The function.
    pub name: String,
    /// Its arguments, as the text of a JSON object.
    pub arguments: String,
}

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplyPart {
    /// What is said.
    Text(String),
    /// What is to be called.
    Call(ToolCall),
}

/// Takes an answer apart. Text is held back only while it may be part of a call.
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    style: ToolStyle,
    names: Vec<String>,
    held: String,
    /// Something was said that is no call.
    spoke: bool,
    called: bool,
}

impl ToolCallParser {
    /// For calls of these functions; what looks like a call of another is text.
    pub fn new(style: ToolStyle, names: Vec<String>) -> Self {
        Self { style, names, held: String::new(), spoke: false, called: false }
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<ReplyPart> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        let begins = self.held.trim_start();
        // Small models forget the tags. Only the end tells whether an answer in braces was a call.
        let may_be_bare = !self.spoke && !self.called && begins.starts_with('{');
        match self.style {
            _ if may_be_bare => {}
            ToolStyle::Hermes => while self.tagged(&mut parts) {},
            ToolStyle::Llama3 if begins.is_empty() && !self.spoke => {}
            ToolStyle::Llama3 => {
                let text = std::mem::take(&mut self.held);
                self.say(text, &mut parts);
            }
        }
        parts
    }

    /// Ends the answer.
    pub fn finish(&mut self) -> Vec<ReplyPart> {
        let held = std::mem::take(&mut self.held);
        let mut parts = Vec::new();
        let call = match held.strip_prefix(ToolStyle::OPEN) {
            // The closing tag may be missing at the end.
            Some(inner) if self.style == ToolStyle::Hermes => self.call(inner),
            _ if !self.spoke && !self.called => self.call(&held),
            _ => None,
        };
        match call {
            Some(call) => parts.push(ReplyPart::Call(call)),
            None => self.say(held, &mut parts),
        }
        parts
    }

    /// Takes the next text or call off what is held; false when more has to come first.
    fn tagged(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        if !self.held.starts_with(ToolStyle::OPEN) {
            let end = self.held.find(ToolStyle::OPEN).unwrap_or_else(|| self.held.len() - self.beginning());
            let rest = self.held.split_off(end);
            let text = std::mem::replace(&mut self.held, rest);
            self.say(text, parts);
            return self.held.starts_with(ToolStyle::OPEN);
        }
        let Some(close) = self.held.find(ToolStyle::CLOSE) else { return false };
        let rest = self.held.split_off(close + ToolStyle::CLOSE.len());
        let whole = std::mem::replace(&mut self.held, rest);
        match self.call(&whole[ToolStyle::OPEN.len()..close]) {
            Some(call) => {
                self.called = true;
                parts.push(ReplyPart::Call(call));
            }
            None => self.say(whole, parts),
        }
        !self.held.is_empty()
    }

    /// Bytes at the end of what is held that may be the beginning of a tag.
    fn beginning(&self) -> usize {
        let is_beginning = |count: &usize| self.held.ends_with(&ToolStyle::OPEN[..*count]);
        (1..ToolStyle::OPEN.len()).rev().find(is_beginning).unwrap_or(0)
    }

    fn say(&mut self, text: String, parts: &mut Vec<ReplyPart>) {
        // White space between calls is nobody's text.
        if text.is_empty() || (self.called && text.trim().is_empty()) {
            return;
        }
        self.spoke |= !text.trim().is_empty();
        parts.push(ReplyPart::Text(text));
    }

    fn call(&self, text: &str) -> Option<ToolCall> {
        let value: Value = serde_json::from_str(text.trim()).ok()?;
        let name = value["name"].as_str().filter(|name| self.names.iter().any(|known| known == name))?;
        let arguments = match &value[self.style.arguments()] {
            Value::String(text) => text.clone(),
            Value::Null => "{}".to_owned(),
            arguments => arguments.to_string(),
        };
        Some(ToolCall { name: name.to_owned(), arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything, with neighbouring texts joined.
    fn read(style: ToolStyle, text: &str, cut: usize) -> Vec<ReplyPart> {
        let mut parser = ToolCallParser::new(style, vec!["f".into(), "g".into()]);
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(cut).map(|piece| piece.iter().collect::<String>());
        let mut all: Vec<ReplyPart> = pieces.flat_map(|piece| parser.push(&piece)).collect();
        all.extend(parser.finish());
        let mut joined: Vec<ReplyPart> = Vec::new();
        for part in all {
            match (joined.last_mut(), part) {
                (Some(ReplyPart::Text(before)), ReplyPart::Text(more)) => before.push_str(&more),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn call(name: &str, arguments: &str) -> ReplyPart {
        ReplyPart::Call(ToolCall { name: name.into(), arguments: arguments.into() })
    }

    #[test]
    fn calls_are_found_however_the_text_is_cut() {
        let two = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"</é>\"}}\n</tool_call>\n\
                   <tool_call>{\"name\": \"g\"}</tool_call>\n";
        let expected =
            [ReplyPart::Text("Let me see.\n".into()), call("f", "{\"x\":\"</é>\"}"), call("g", "{}")];
        for cut in [1, 2, 3, 7, 1000] {
            assert_eq!(read(ToolStyle::Hermes, two, cut), expected, "{cut}");
        }
        let open = "<tool_call>{\"name\": \"f\", \"arguments\": {}}";
        assert_eq!(read(ToolStyle::Hermes, open, 3), [call("f", "{}")]);
        let untagged = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n";
        assert_eq!(read(ToolStyle::Hermes, untagged, 2), [call("f", "{\"x\":1}")]);
        let bare = " {\"name\": \"f\", \"parameters\": {\"x\": 1}}";
        assert_eq!(read(ToolStyle::Llama3, bare, 2), [call("f", "{\"x\":1}")]);
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "a < b, <tool, <tool_call",
            "<tool_call>nonsense</tool_call> and more",
            "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"f\"",
            "{\"answer\": 42}",
            "Yes: {\"name\": \"f\", \"arguments\": {}}",
        ] {
            for cut in [1, 4, 1000] {
                assert_eq!(read(ToolStyle::Hermes, text, cut), [ReplyPart::Text(text.into())], "{text}");
            }
        }
        for text in ["{\"name\": \"unknown\"}", "Hello {\"name\": \"f\"}", "{ not json"] {
            assert_eq!(read(ToolStyle::Llama3, text, 3), [ReplyPart::Text(text.into())], "{text}");
        }
    }

    #[test]
    fn text_is_not_held_back_longer_than_it_must() {
        let mut parser = ToolCallParser::new(ToolStyle::Hermes, vec!["f".into()]);
        assert_eq!(parser.push("1 <"), [ReplyPart::Text("1 ".into())]);
        assert_eq!(parser.push(" 2"), [ReplyPart::Text("< 2".into())]);
    }
}
