//! Replies whose parts stand between tags: every family but gpt-oss.

use super::format::ReasoningStyle;
use super::markers::{Found, find};
use super::parser::{ReplyPart, add};
use crate::tools::{RawCall, ToolSet, ToolStyle, fenced_calls};

/// Small models write calls as blocks of code, whatever they were taught. Where such a block is a call of a known function with
/// its arguments it is taken for one, else it is text.
const FENCES: [&str; 3] = ["```json\n", "```tool_call\n", "```tool_code\n"];
const FENCE_END: &str = "```";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagState {
    Answer,
    /// The answer is in braces. Only its end tells whether it is a call.
    Braces,
    Reasoning,
    /// Between the markers of a call.
    Call {
        open: &'static str,
        close: &'static str,
    },
}

/// A reply under way.
#[derive(Debug, Clone)]
pub(super) struct Tagged {
    reasoning: Option<ReasoningStyle>,
    style: Option<ToolStyle>,
    tools: ToolSet,
    /// What may come up in an answer.
    markers: Vec<&'static str>,
    state: TagState,
    /// What has come and is not decided yet.
    held: String,
    /// Bytes of it in which no marker begins.
    scanned: usize,
    /// White space is dropped until something else comes.
    trimming: bool,
    /// Something was said.
    spoke: bool,
    called: bool,
    /// Something was thought since the reasoning was opened.
    thought: bool,
    /// White space of the reasoning, which belongs to it if more follows.
    space: String,
    /// What closes the wrapper that the answer stands in.
    wrapper: Option<&'static str>,
}

impl Tagged {
    pub fn new(reasoning: Option<ReasoningStyle>, style: Option<ToolStyle>, tools: ToolSet) -> Self {
        let mut markers: Vec<&str> = style.map_or(Vec::new(), |style| opens(style).collect());
        if style.is_some() {
            markers.extend(FENCES);
        }
        if let Some(reasoning) = reasoning {
            markers.extend(<[&str; 2]>::from(reasoning.brackets()));
            markers.extend(reasoning.wrapper().into_iter().flat_map(|(open, close)| [open, close]));
        }
        Self {
            reasoning,
            style,
            tools,
            markers,
            state: TagState::Answer,
            held: String::new(),
            scanned: 0,
            trimming: true,
            spoke: false,
            called: false,
            thought: false,
            space: String::new(),
            wrapper: None,
        }
    }

    pub fn begin_after(&mut self, prompt_end: &str) {
        let opened = |style: ReasoningStyle| prompt_end.trim_end().ends_with(style.brackets().0);
        if self.reasoning.is_some_and(opened) {
            self.state = TagState::Reasoning;
        }
    }

    pub fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        self.held.push_str(text);
        while self.step(parts) {}
    }

    pub fn finish(&mut self, parts: &mut Vec<ReplyPart>) {
        if self.state == TagState::Braces {
            let whole =
                |style: ToolStyle| style.bare(&self.held, &self.tools).map(|all| (all, self.held.len()));
            let before_cut = |style: ToolStyle| style.bare_before_cut(&self.held, &self.tools);
            match self.style.and_then(|style| whole(style).or_else(|| before_cut(style))) {
                Some((calls, end)) => {
                    self.take(end);
                    self.state = TagState::Answer;
                    (self.called, self.trimming) = (true, true);
                    parts.extend(calls.into_iter().map(ReplyPart::Call));
                }
                None => {
                    self.state = TagState::Answer;
                    self.spoke = true;
                    while self.step(parts) {}
                }
            }
        }
        match self.state {
            TagState::Call { open, close } => self.call(open, close, self.held.len(), false, parts),
            _ => {
                let rest = self.take(self.held.len());
                self.say(&rest, parts);
            }
        }
    }

    /// Decides about the next part of what is held; false when more has to come first.
    fn step(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        match self.state {
            TagState::Braces => false,
            TagState::Answer => self.answer(parts),
            TagState::Reasoning => self.think(parts),
            TagState::Call { open, close } => {
                let found = match (close, self.style) {
                    ("", Some(style)) => find(&self.held, self.scanned, &opens(style).collect::<Vec<_>>()),
                    _ => find(&self.held, self.scanned, &[close]),
                };
                match found {
                    Found::Marker(at, _) => self.call(open, close, at, true, parts),
                    Found::Nothing(held) => self.scanned = held,
                }
                matches!(found, Found::Marker(..))
            }
        }
    }

    fn answer(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        if !self.spoke && !self.called && self.style.is_some_and(ToolStyle::may_be_bare) {
            match self.held.trim_start().chars().next() {
                None => return false,
                Some('{') => {
                    self.state = TagState::Braces;
                    return false;
                }
                Some(_) => {}
            }
        }
        let markers = std::mem::take(&mut self.markers);
        let marker = self.say_up_to_marker(&markers, parts);
        self.markers = markers;
        let Some(marker) = marker else { return false };
        let call = self.style.and_then(|style| style.brackets().iter().find(|(open, _)| *open == marker));
        if let Some(&(open, close)) = call {
            self.state = TagState::Call { open, close };
        } else if FENCES.contains(&marker) {
            self.state = TagState::Call { open: marker, close: FENCE_END };
        } else if self.wrapper == Some(marker) {
            self.wrapper = None;
        } else if !self.opens_or_closes(marker) {
            self.say(marker, parts);
        }
        true
    }

    /// Whether a marker of the reasoning means what it says. One that the model talks about is text.
    fn opens_or_closes(&mut self, marker: &'static str) -> bool {
        let Some(style) = self.reasoning else { return false };
        let (open, close) = style.brackets();
        if marker == open && (!self.spoke || style.is_anywhere()) {
            self.state = TagState::Reasoning;
            self.thought = false;
            return true;
        }
        if self.spoke || self.called {
            return false;
        }
        self.wrapper =
            style.wrapper().filter(|(begin, _)| *begin == marker).map(|(_, end)| end).or(self.wrapper);
        marker == close || style.wrapper().is_some_and(|(begin, _)| begin == marker)
    }

    fn think(&mut self, parts: &mut Vec<ReplyPart>) -> bool {
        let Some(style) = self.reasoning else { return false };
        let (open, close) = style.brackets();
        let Some(marker) = self.say_up_to_marker(&[close, open], parts) else { return false };
        if marker == close {
            self.state = TagState::Answer;
            self.trimming = true;
            self.space.clear();
        } else if self.thought {
            self.say(marker, parts);
        }
        true
    }

    /// Says what comes before the first marker, and takes the marker.
    fn say_up_to_marker(
        &mut self,
        markers: &[&'static str],
        parts: &mut Vec<ReplyPart>,
    ) -> Option<&'static str> {
        let (end, marker) = match find(&self.held, 0, markers) {
            Found::Marker(at, marker) => (at, Some(marker)),
            Found::Nothing(held) => (held, None),
        };
        let text = self.take(end);
        self.say(&text, parts);
        if let Some(marker) = marker {
            self.take(marker.len());
        }
        marker
    }

    /// Takes a call of `end` bytes, or says it where it is none.
    fn call(
        &mut self,
        open: &'static str,
        close: &'static str,
        end: usize,
        closed: bool,
        parts: &mut Vec<ReplyPart>,
    ) {
        let body = self.take(end);
        let close = if closed { close } else { "" };
        self.take(close.len());
        self.state = TagState::Answer;
        let raw = RawCall { open, body: &body, closed };
        let calls = match FENCES.contains(&open) {
            true => fenced_calls(&body, &self.tools),
            false => self.style.and_then(|style| style.read(&raw, &self.tools)),
        };
        match calls {
            Some(calls) => {
                self.called = true;
                self.trimming = true;
                parts.extend(calls.into_iter().map(ReplyPart::Call));
            }
            None => [open, &body, close].into_iter().for_each(|text| self.say(text, parts)),
        }
    }

    /// Takes bytes off what is held.
    fn take(&mut self, bytes: usize) -> String {
        self.scanned = 0;
        let rest = self.held.split_off(bytes);
        std::mem::replace(&mut self.held, rest)
    }

    fn say(&mut self, text: &str, parts: &mut Vec<ReplyPart>) {
        if self.state == TagState::Reasoning {
            let text = if self.thought { text } else { text.trim_start() };
            let end = text.trim_end().len();
            if end > 0 {
                add(parts, &std::mem::take(&mut self.space), true);
                add(parts, &text[..end], true);
                self.thought = true;
            }
            self.space.push_str(&text[end..]);
            return;
        }
        let text = if self.trimming { text.trim_start() } else { text };
        if !text.is_empty() {
            self.trimming = false;
            self.spoke = true;
            add(parts, text, false);
        }
    }
}

fn opens(style: ToolStyle) -> impl Iterator<Item = &'static str> {
    style.brackets().iter().map(|(open, _)| *open)
}
