//! Where the host's time goes: with `KVANT_CUDA_TIMES=1` every pass prints a line.

use std::time::Instant;

/// The times of one pass; nothing where nobody asked for them.
pub(crate) struct PassTimes {
    since: Option<Instant>,
    line: String,
}

impl PassTimes {
    /// Whether times are wanted.
    pub(crate) fn wanted() -> bool {
        std::env::var("KVANT_CUDA_TIMES").is_ok_and(|value| value == "1")
    }

    /// Begins now.
    pub(crate) fn new(wanted: bool) -> PassTimes {
        PassTimes { since: wanted.then(Instant::now), line: String::new() }
    }

    /// Notes what was done since the last note.
    pub(crate) fn note(&mut self, what: &str) {
        if let Some(since) = &mut self.since {
            self.line += &format!(" {what} {} us,", since.elapsed().as_micros());
            *since = Instant::now();
        }
    }

    /// Prints what was noted.
    pub(crate) fn print(&self, rows: usize, launches: usize) {
        if self.since.is_some() {
            eprintln!("pass of {rows} rows:{} {launches} launches", self.line);
        }
    }
}
