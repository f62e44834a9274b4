//! How far a prompt has been read, on stderr: a line that is overwritten on a terminal, one every ten seconds elsewhere.

use super::{dimmed, grouped};
use crate::progress::{PAUSE, Pause};
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Tokens that are read too fast to be told about.
const WORTH_TELLING: usize = 512;
/// To the beginning of the line, and nothing on it.
const ERASE: &str = "\r\x1b[2K";

/// A line that says how far it is.
pub struct Reading {
    is_shown: bool,
    /// Where there is no terminal: until the next line.
    pause: Option<Pause>,
    /// When the first token was to be read, and which one that was.
    begun: Option<(Instant, usize)>,
    is_written: bool,
}

impl Reading {
    /// A line on stderr, if it is wanted.
    pub fn new(is_wanted: bool) -> Self {
        let pause = (!io::stderr().is_terminal()).then(|| Pause::new(PAUSE));
        Self { is_shown: is_wanted, pause, begun: None, is_written: false }
    }

    /// `done` of `total` tokens are read.
    pub fn show(&mut self, done: usize, total: usize) {
        if !self.is_shown {
            return;
        }
        let (start, first) = *self.begun.get_or_insert_with(|| (Instant::now(), done));
        if done == total {
            return self.end();
        }
        if total - first < WORTH_TELLING {
            return;
        }
        let seconds = start.elapsed().as_secs_f64();
        let rate = match done - first {
            0 => String::new(),
            read => format!(", {:.0} tokens/s", read as f64 / seconds.max(1e-9)),
        };
        let line = dimmed(&format!("reading {} of {} tokens{rate}", grouped(done), grouped(total)));
        if let Some(pause) = &mut self.pause {
            if pause.is_over() {
                eprintln!("progress: {line}");
            }
            return;
        }
        self.is_written = true;
        // Nobody need see it.
        let _ = write!(io::stderr(), "{ERASE}{line}").and_then(|()| io::stderr().flush());
    }

    /// Takes the line away.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_written) {
            let _ = write!(io::stderr(), "{ERASE}").and_then(|()| io::stderr().flush());
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.end();
    }
}
