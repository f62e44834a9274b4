//! Lines from the user: edited on a terminal, read as they are from a pipe.

use super::history::History;
use super::slash;
use crate::failure::Failure;
use crate::keyboard::Keyboard;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{History as _, MemHistory};
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};
use std::cell::Cell;
use std::io::{self, BufRead, IsTerminal};

/// What begins and ends several lines.
const BLOCK: &str = "\"\"\"";

/// Where lines come from.
pub enum Input {
    Terminal(Box<Lines>),
    Pipe,
}

/// A terminal, its editor and what was typed before.
pub struct Lines {
    editor: Editor<Watch, MemHistory>,
    history: History,
    /// Outside the editor keys wait for it. Dropped last: the terminal is then as it was found.
    _keyboard: Keyboard,
}

/// What was entered.
pub enum Line {
    Text(String),
    /// Several lines, between marks: never a command.
    Block(String),
    /// Ctrl-C on an empty line.
    Interrupted,
    /// Ctrl-C on one that was not: it is gone.
    Cleared,
    /// Ctrl-D, or the end of the pipe.
    End,
}

/// Watches a line being typed: whether there is anything on it, and which command it may become.
#[derive(Default)]
pub struct Watch {
    has_text: Cell<bool>,
}

impl Helper for Watch {}
impl Validator for Watch {}
impl Highlighter for Watch {}

impl Hinter for Watch {
    type Hint = String;

    /// Asked whenever the line has changed.
    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        None
    }
}

impl Completer for Watch {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let begun = &line[..at];
        let found = slash::NAMES.iter().filter(|name| begun.starts_with('/') && name.starts_with(begun));
        Ok((0, found.map(|name| (*name).to_owned()).collect()))
    }
}

impl Input {
    pub fn new() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        let cannot = |e: ReadlineError| Failure::new(format!("cannot use this terminal: {e}"));
        // Entries may have several lines, so they are added when they are whole.
        let config =
            Config::builder().auto_add_history(false).history_ignore_dups(true).map_err(cannot)?.build();
        let mut editor = Editor::with_history(config, MemHistory::new()).map_err(cannot)?;
        editor.set_helper(Some(Watch::default()));
        let history = History::of_user();
        for entry in history.read() {
            editor.add_history_entry(entry).map_err(cannot)?;
        }
        Ok(Self::Terminal(Box::new(Lines { editor, history, _keyboard: Keyboard::hold() })))
    }

    /// Whether someone types.
    pub fn is_person(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Says what can be done, to a person.
    pub fn greet(&self, model: &str) {
        self.say(&format!("{model}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves."));
    }

    /// A remark for a person; a program that feeds us lines does not need it.
    pub fn say(&self, remark: &str) {
        if self.is_person() {
            super::remark(remark);
        }
    }

    /// The next line, joined with those that it goes on with. The arrow keys bring it back whole.
    pub fn line(&mut self) -> Result<Line, Failure> {
        let line = self.whole_line()?;
        if let Self::Terminal(lines) = self {
            match &line {
                Line::Text(text) if !text.trim().is_empty() => lines.remember(text),
                Line::Block(text) => lines.remember(&format!("{BLOCK}{text}{BLOCK}")),
                Line::Text(_) | Line::Interrupted | Line::Cleared | Line::End => {}
            }
        }
        Ok(line)
    }

    fn whole_line(&mut self) -> Result<Line, Failure> {
        let mut text = String::new();
        let mut is_block = false;
        loop {
            let is_first = text.is_empty() && !is_block;
            let line = match self.read(if is_first { "> " } else { "… " })? {
                Line::Text(line) => line,
                // What was entered before is gone with it.
                Line::Interrupted if !is_first => return Ok(Line::Cleared),
                Line::End if !is_first => {
                    return Ok(if is_block { Line::Block(text) } else { Line::Text(text) });
                }
                other => return Ok(other),
            };
            if is_block {
                match line.trim_end().strip_suffix(BLOCK) {
                    Some(last) => return Ok(Line::Block(text + last)),
                    None => text = text + &line + "\n",
                }
                continue;
            }
            if let Some(begun) = line.trim_start().strip_prefix(BLOCK).filter(|_| is_first) {
                match begun.trim_end().strip_suffix(BLOCK) {
                    Some(whole) => return Ok(Line::Block(whole.to_owned())),
                    None if begun.is_empty() => {}
                    None => text = format!("{begun}\n"),
                }
                is_block = true;
                continue;
            }
            match line.strip_suffix('\\') {
                Some(begun) => {
                    text.push_str(begun);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    return Ok(Line::Text(text));
                }
            }
        }
    }

    fn read(&mut self, prompt: &str) -> Result<Line, Failure> {
        match self {
            Self::Terminal(lines) => match lines.edit(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => {
                    let had_text = lines.editor.helper().is_some_and(|watch| watch.has_text.replace(false));
                    Ok(if had_text { Line::Cleared } else { Line::Interrupted })
                }
                Err(ReadlineError::Eof) => Ok(Line::End),
                Err(error) => Err(Failure::new(format!("cannot read from the terminal: {error}"))),
            },
            Self::Pipe => {
                let mut line = String::new();
                let count = io::stdin()
                    .lock()
                    .read_line(&mut line)
                    .map_err(|e| Failure::new(format!("cannot read a line from stdin: {e}")))?;
                line.truncate(line.trim_end_matches(['\r', '\n']).len());
                Ok(if count == 0 { Line::End } else { Line::Text(line) })
            }
        }
    }
}

impl Lines {
    /// A line, watched from its beginning.
    fn edit(&mut self, prompt: &str) -> rustyline::Result<String> {
        if let Some(watch) = self.editor.helper() {
            watch.has_text.set(false);
        }
        self.editor.readline(prompt)
    }

    /// Keeps an entry for the arrow keys, here and in later conversations. Without it the conversation goes on.
    fn remember(&mut self, entry: &str) {
        let is_new = self.editor.history_mut().add(entry);
        if is_new.is_ok_and(|is_new| is_new) {
            self.history.add(entry);
        }
    }
}
