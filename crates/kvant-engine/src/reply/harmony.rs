//! Replies of gpt-oss: messages with a header each, in channels.
//!
//! ```text
//! <|channel|>analysis<|message|>It rains.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>
//! ```
//!
//! The first header has begun in the prompt, which ends with `<|start|>assistant`. `analysis` is reasoning, `final` the answer,
//! `commentary` an answer on the way to a call. A recipient stands before or after the channel.

use super::markers::{Found, find};
use super::parser::{ReplyPart, add};
use crate::tools::{ToolSet, ToolStyle};

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];

/// All of them.
pub(super) const MARKERS: [&str; 7] = [START, CHANNEL, CONSTRAIN, MESSAGE, ENDS[0], ENDS[1], ENDS[2]];

/// Bytes between markers of a header. More is no header.
const LONGEST_FIELD: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
enum HarmonyState {
    Header,
    Reasoning,
    Answer,
    /// A message to this function.
    Call(String),
}

/// A reply under way.
#[derive(Debug, Clone)]
pub(super) struct Harmony {
    tools: ToolSet,
    state: HarmonyState,
    /// What has come and is not decided yet.
    held: String,
    /// Bytes of it in which no marker begins.
    scanned: usize,
    /// The header as it stands in the text, up to the message.
    header: String,
    /// Something was thought; something was said.
    thought: bool,
    spoke: bool,
    /// The next text begins a message of its own.
    is_new: bool,
}

impl Harmony {
    pub fn new(tools: ToolSet) -> Self {
        Self {
            tools,
            state: HarmonyState::Header,
            held: String::new(),
            scanned: 0,
            header: String::new(),
            thought: false,
            spoke: false,
            is_new: true,
        }
    }

    /// Goes on with the message that the prompt has begun.
    pub fn begin_after(&mut self, prompt_end: &str) {
        if let Some(start) = prompt_end.rfind(START) {
            let begun = prompt_end[start..].strip_prefix("<|start|>assistant").unwrap_or_default();
            self.push(begun, &mut Vec::new());
        }
    }

    pub fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.step(parts) {}
    }

    pub fn finish(&mut self, parts: &mut Vec<ReplyPart>) {
        let rest = self.take(self.held.len());
        match self.state {
            HarmonyState::Header => {
                self.header.push_str(&rest);
                self.spill_header(parts);
            }
            HarmonyState::Call(_) => self.end_call(&rest, parts),
            HarmonyState::Reasoning | HarmonyState::Answer => self.say(&rest, parts),
        }
    }

    /// Decides about the next part of what is held; false when more has to come first.
    fn step(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let (end, marker) = match find(&self.held, self.scanned, &MARKERS) {
            Found::Marker(at, marker) => (at, Some(marker)),
            Found::Nothing(held) => (held, None),
        };
        match self.state {
            HarmonyState::Header => return self.read_header(end, marker, parts),
            HarmonyState::Call(_) => match marker {
                Some(MESSAGE | CONSTRAIN) => {
                    self.scanned = end + 1;
                    return true;
                }
                Some(_) => {
                    let body = self.take(end);
                    self.end_call(&body, parts);
                }
                None => self.scanned = end,
            },
            HarmonyState::Reasoning | HarmonyState::Answer => {
                let text = self.take(end);
                self.say(&text, parts);
            }
        }
        match marker {
            None => return false,
            Some(marker @ (MESSAGE | CONSTRAIN)) => {
                self.take(marker.len());
                self.say(marker, parts);
            }
            Some(marker) => {
                self.state = HarmonyState::Header;
                self.is_new = true;
                // What opens the next header without the end of this message is part of that.
                if ENDS.contains(&marker) {
                    self.take(marker.len());
                }
            }
        }
        true
    }

    fn read_header(&mut self, end: usize, marker: Option<&'static str>, parts: &mut Vec<ReplyPart>) -> bool {
        let field = &self.held[..end];
        if field.len() > LONGEST_FIELD || (self.header.is_empty() && !may_begin_header(field)) {
            // No header, so the answer has begun.
            self.spill_header(parts);
            self.state = HarmonyState::Answer;
            return true;
        }
        let Some(marker) = marker else { return false };
        let field = self.take(end);
        self.take(marker.len());
        self.header.push_str(&field);
        match marker {
            MESSAGE => {
                let header = std::mem::take(&mut self.header);
                self.is_new = true;
                match self.addressed(&header) {
                    Some(state) => {
                        self.header =
                            if matches!(state, HarmonyState::Call(_)) { header } else { String::new() };
                        self.state = state;
                    }
                    None => {
                        self.state = HarmonyState::Answer;
                        self.say(&header, parts);
                        self.say(MESSAGE, parts);
                    }
                }
            }
            START => {
                self.spill_header(parts);
                self.header.push_str(START);
            }
            CHANNEL | CONSTRAIN => self.header.push_str(marker),
            _ => self.spill_header(parts),
        }
        true
    }

    /// What a message with this header is; none where that is not known.
    fn addressed(&self, header: &str) -> Option<HarmonyState> {
        let header =
            header.strip_prefix(START).map_or(Some(header), |rest| rest.strip_prefix("assistant"))?;
        if let Some((_, recipient)) = header.split_once("to=") {
            let end = recipient.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(recipient.len());
            let name = recipient[..end].strip_prefix("functions.").filter(|name| self.tools.has(name))?;
            return Some(HarmonyState::Call(name.to_owned()));
        }
        match header.trim().strip_prefix(CHANNEL).map_or(header.trim(), str::trim) {
            "analysis" => Some(HarmonyState::Reasoning),
            "final" | "commentary" | "" => Some(HarmonyState::Answer),
            _ => None,
        }
    }

    /// Says a header that no message followed.
    fn spill_header(&mut self, parts: &mut Vec<ReplyPart>) {
        let header = std::mem::take(&mut self.header);
        if !is_cut_short(&header) {
            self.state = HarmonyState::Answer;
            self.is_new = true;
            self.say(&header, parts);
            self.state = HarmonyState::Header;
        }
    }

    fn end_call(&mut self, body: &str, parts: &mut Vec<ReplyPart>) {
        let HarmonyState::Call(name) = std::mem::replace(&mut self.state, HarmonyState::Answer) else {
            return;
        };
        let header = std::mem::take(&mut self.header);
        match ToolStyle::harmony(&name, body, &self.tools) {
            Some(call) => parts.push(ReplyPart::Call(call)),
            None => [header.as_str(), MESSAGE, body].into_iter().for_each(|text| self.say(text, parts)),
        }
    }

    fn take(&mut self, bytes: usize) -> String {
        self.scanned = 0;
        let rest = self.held.split_off(bytes);
        std::mem::replace(&mut self.held, rest)
    }

    fn say(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        let is_reasoning = self.state == HarmonyState::Reasoning;
        let has_begun = if is_reasoning { &mut self.thought } else { &mut self.spoke };
        // White space between messages is nobody's.
        let text = if *has_begun && !self.is_new { text } else { text.trim_start() };
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.is_new) && *has_begun {
            add(parts, "\n\n", is_reasoning);
        }
        *has_begun = true;
        add(parts, text, is_reasoning);
    }
}

/// Whether a header is the beginning of one, so that nothing is lost with it.
fn is_cut_short(header: &str) -> bool {
    let rest = match header.strip_prefix(START) {
        Some(role) if "assistant".starts_with(role) => return true,
        Some(role) => role.strip_prefix("assistant").unwrap_or(role),
        None => header,
    };
    let channels = ["analysis", "commentary", "final"];
    match rest.trim().strip_prefix(CHANNEL) {
        Some(channel) => channels.iter().any(|name| name.starts_with(channel.trim())),
        None => rest.trim().is_empty(),
    }
}

/// Whether a text may stand between `<|start|>assistant` and the first marker: nothing, or a recipient.
fn may_begin_header(text: &str) -> bool {
    let text = text.trim_start();
    "to=".starts_with(text) || text.starts_with("to=")
}
