//! Lines from the user: edited on a terminal, read as they are from a pipe.

use crate::failure::Failure;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead, IsTerminal};

/// Where lines come from.
pub enum Input {
    Terminal(Box<Editor<(), MemHistory>>),
    Pipe,
}

/// What was entered.
pub enum Line {
    Text(String),
    /// Ctrl-C at the prompt.
    Interrupted,
    /// Ctrl-D, or the end of the pipe.
    End,
}

impl Input {
    pub fn new() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe);
        }
        let config = Config::builder().auto_add_history(true).build();
        let editor = Editor::with_history(config, MemHistory::new())
            .map_err(|e| Failure::new(format!("cannot use this terminal: {e}")))?;
        Ok(Self::Terminal(Box::new(editor)))
    }

    /// Says what can be done, to a person.
    pub fn greet(&self, model: &str) {
        self.say(&format!("{model}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves."));
    }

    /// A remark for a person; a program that feeds us lines does not need it.
    pub fn say(&self, remark: &str) {
        if let Self::Terminal(_) = self {
            eprintln!("{remark}");
        }
    }

    /// The next line, joined with those that it goes on with.
    pub fn line(&mut self) -> Result<Line, Failure> {
        let mut text = String::new();
        loop {
            let line = match self.read(if text.is_empty() { "> " } else { "… " })? {
                Line::Text(line) => line,
                other => return Ok(other),
            };
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
            Self::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => Ok(Line::Text(line)),
                Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
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
