//! Progress: a bar on a terminal; anywhere else a line per downloaded file, and nothing for measurements.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvant_engine::memory::bytes;
use kvant_hub::Progress;
use std::io::IsTerminal;

/// A bar on stderr, and only where someone is looking. Shown at once: the first step may take a while.
pub fn bar(template: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.tick();
    bar
}

/// Shows what a pull is doing, on stderr.
pub struct Downloads {
    is_terminal: bool,
    current: Option<(String, ProgressBar)>,
}

impl Downloads {
    pub fn new() -> Self {
        Self { is_terminal: std::io::stderr().is_terminal(), current: None }
    }

    /// Takes in a step.
    pub fn show(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Note(note) => match &self.current {
                Some((_, bar)) => bar.suspend(|| eprintln!("note: {note}")),
                None => eprintln!("note: {note}"),
            },
            Progress::File { name, done, total } => {
                if self.current.as_ref().is_none_or(|(current, _)| current != name) {
                    self.finish();
                    self.current = Some((name.to_owned(), self.begin(name, total)));
                }
                if let Some((_, bar)) = &self.current {
                    bar.set_length(total.unwrap_or(done));
                    bar.set_position(done);
                }
            }
        }
    }

    /// Leaves the last bar standing.
    pub fn finish(&mut self) {
        if let Some((_, bar)) = self.current.take() {
            bar.abandon();
        }
    }

    fn begin(&self, name: &str, total: Option<u64>) -> ProgressBar {
        let bar = ProgressBar::new(total.unwrap_or(0));
        if self.is_terminal {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            let template = "{prefix} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(name.to_owned());
        } else {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            eprintln!("fetching {name}{}", total.map(|n| format!(" ({})", bytes(n))).unwrap_or_default());
        }
        bar
    }
}
