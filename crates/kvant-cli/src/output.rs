//! A reply on its way to the screen: the answer to stdout, the reasoning that leads to it to stderr.

use crate::failure::Failure;
use crate::interrupt;
use clap::ValueEnum;
use kvant_engine::Event;
use kvant_engine::reply::{ParsedReply, ReplyParser, ReplyPart};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

/// Whether reasoning is shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Reasoning {
    /// On stderr, dimmed where that is a terminal
    Show,
    /// Not at all
    Hide,
}

impl Reasoning {
    /// What was asked for; otherwise people see it and programs do not.
    pub fn or_usual(asked: Option<Self>) -> Self {
        let usual = if io::stderr().is_terminal() { Self::Show } else { Self::Hide };
        asked.unwrap_or(usual)
    }
}

/// A reply that is being written.
pub struct Output {
    shown: bool,
    reasoning: Reasoning,
    /// Splits a turn of a conversation; a text that is continued is taken as it is.
    parser: Option<ReplyParser>,
    parsed: ParsedReply,
    /// What the text so far ended with: nothing, a line break or something else.
    last: Option<char>,
    /// The last that was written is reasoning.
    is_thinking: bool,
    is_dimmed: bool,
    failed: Option<io::Error>,
}

impl Output {
    /// An output that shows the answer, and the reasoning if wanted, or only waits for Ctrl-C.
    pub fn new(shown: bool, reasoning: Reasoning, parser: Option<ReplyParser>) -> Self {
        let is_dimmed = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let parsed = ParsedReply::default();
        Self { shown, reasoning, parser, parsed, last: None, is_thinking: false, is_dimmed, failed: None }
    }

    /// Shows more text; breaks off when nobody reads it or the user has had enough.
    pub fn take(&mut self, event: Event<'_>) -> ControlFlow<()> {
        if let Event::Text(text) = event {
            let parts = match &mut self.parser {
                Some(parser) => parser.push(text),
                None => vec![ReplyPart::Text(text.to_owned())],
            };
            self.write(parts);
        }
        match self.failed.is_some() || interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Ends the last line; gives what was said.
    pub fn end(mut self) -> Result<ParsedReply, Failure> {
        if let Some(mut parser) = self.parser.take() {
            self.write(parser.finish());
        }
        self.end_reasoning();
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if self.shown && self.last != Some('\n') {
            writeln!(io::stdout())?;
        }
        Ok(std::mem::take(&mut self.parsed))
    }

    fn write(&mut self, parts: Vec<ReplyPart>) {
        for part in parts {
            match &part {
                ReplyPart::Reasoning(text) if self.shown && self.reasoning == Reasoning::Show => {
                    let begin = if self.is_dimmed && !self.is_thinking { "\x1b[2m" } else { "" };
                    self.is_thinking = true;
                    // Nobody need see it.
                    let _ = write!(io::stderr(), "{begin}{text}");
                }
                ReplyPart::Text(text) if self.shown && !text.is_empty() => {
                    self.end_reasoning();
                    self.last = text.chars().next_back();
                    let mut stdout = io::stdout().lock();
                    if let Err(e) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
                        self.failed = Some(e);
                    }
                }
                _ => {}
            }
            self.parsed.extend([part]);
        }
    }

    /// A line between reasoning and answer.
    fn end_reasoning(&mut self) {
        if std::mem::take(&mut self.is_thinking) {
            let end = if self.is_dimmed { "\x1b[0m" } else { "" };
            let _ = write!(io::stderr(), "{end}\n\n");
        }
    }
}

impl Drop for Output {
    /// A generation that failed leaves no terminal dimmed.
    fn drop(&mut self) {
        self.end_reasoning();
    }
}
