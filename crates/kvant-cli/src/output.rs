//! A reply on its way to the screen: the answer to stdout, the reasoning that leads to it to stderr.

use crate::failure::Failure;
use crate::interrupt;
use crate::screen::{Look, Markdown, Reading, stderr_has_styles};
use crate::shown;
use kvant_engine::Event;
use kvant_engine::reply::{ParsedReply, ReplyParser, ReplyPart};
use std::io::{self, Write};
use std::ops::ControlFlow;

/// What of a reply is shown.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// The answer.
    pub answer: bool,
    /// The reasoning before it.
    pub reasoning: bool,
    /// How far the prompt has been read.
    pub reading: bool,
}

/// A reply that is being written.
pub struct Output {
    shown: Shown,
    /// Splits a turn of a conversation; a text that is continued is taken as it is.
    parser: Option<ReplyParser>,
    /// Lays out a turn on a terminal.
    page: Option<Markdown>,
    parsed: ParsedReply,
    reading: Reading,
    /// What the text so far ended with: nothing, a line break or something else.
    last: Option<char>,
    /// The last that was written is reasoning.
    is_thinking: bool,
    is_dimmed: bool,
    failed: Option<io::Error>,
}

impl Output {
    /// An output that shows what is wanted, or only waits for Ctrl-C.
    pub fn new(shown: Shown, parser: Option<ReplyParser>) -> Self {
        let page = parser.as_ref().and_then(|_| Markdown::new(Look::of_stdout()));
        Self {
            shown,
            parser,
            page,
            parsed: ParsedReply::default(),
            reading: Reading::new(shown.reading),
            last: None,
            is_thinking: false,
            is_dimmed: stderr_has_styles(),
            failed: None,
        }
    }

    /// Shows more text; breaks off when nobody reads it or the user has had enough.
    pub fn take(&mut self, event: Event<'_>) -> ControlFlow<()> {
        match event {
            Event::Prefill { done, total } => self.reading.show(done, total),
            Event::Text(text) => {
                let parts = match &mut self.parser {
                    Some(parser) => parser.push(text),
                    None => vec![ReplyPart::Text(text.to_owned())],
                };
                self.write(parts);
            }
        }
        match self.failed.is_some() || interrupt::requested() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Ends the last line; gives what was said.
    pub fn end(mut self) -> Result<ParsedReply, Failure> {
        self.reading.end();
        if let Some(mut parser) = self.parser.take() {
            self.write(parser.finish());
        }
        self.end_reasoning();
        if let Some(rest) = self.page.as_mut().map(Markdown::finish) {
            self.put(&rest);
        }
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        if self.shown.answer && self.last != Some('\n') {
            writeln!(io::stdout())?;
        }
        Ok(std::mem::take(&mut self.parsed))
    }

    fn write(&mut self, parts: Vec<ReplyPart>) {
        for part in parts {
            match &part {
                ReplyPart::Reasoning(text) if self.shown.answer && self.shown.reasoning => {
                    let begin = if self.is_dimmed && !self.is_thinking { "\x1b[2m" } else { "" };
                    self.is_thinking = true;
                    // Nobody need see it.
                    let text = shown::to_terminal(&io::stderr(), text);
                    let _ = write!(io::stderr(), "{begin}{text}");
                }
                ReplyPart::Text(text) if self.shown.answer && !text.is_empty() => {
                    self.end_reasoning();
                    self.last = text.chars().next_back();
                    match &mut self.page {
                        Some(page) => {
                            let laid_out = page.push(text);
                            self.put(&laid_out);
                        }
                        None => self.put(text),
                    }
                }
                _ => {}
            }
            self.parsed.extend([part]);
        }
    }

    fn put(&mut self, text: &str) {
        let mut stdout = io::stdout().lock();
        let text = shown::to_terminal(&stdout, text);
        if let Err(e) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            self.failed = Some(e);
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
