//! Progress: a bar on a terminal; anywhere else a line every ten seconds, and one for each file that is fetched.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle, TermLike};
use kvant_engine::memory::bytes;
use kvant_hub::Progress;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often work that takes long says how far it is where nobody sees a bar.
pub const PAUSE: Duration = Duration::from_secs(10);

/// A bar on stderr, shown at once: the first step may take a while. In a file or a pipe it is a line every ten seconds, without the
/// drawing.
pub fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let is_terminal = io::stderr().is_terminal();
    let words = template.replace("[{bar:30}]", "").replace("{bar:30}", "");
    let template = if is_terminal { template } else { words.trim_start() };
    if let Ok(style) = ProgressStyle::with_template(template) {
        // A connection is as fast as it was lately; work that comes in bursts is as fast as on average.
        let is_transfer = template.contains("bytes_per_sec");
        bar.set_style(if is_transfer { style } else { style.with_key("eta", show_time_left) });
    }
    if is_terminal {
        bar.tick();
    } else {
        bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(BarLines::new(io::stderr(), PAUSE))));
    }
    bar
}

/// The time that is left if it goes on as it did since the beginning.
fn show_time_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    let left = time_left(state.elapsed(), state.pos(), state.len().unwrap_or(0));
    // Nobody need see it.
    let _ = match left {
        Some(left) => write!(out, "{:#}", HumanDuration(left)),
        None => write!(out, "?"),
    };
}

/// None before anything is done.
fn time_left(elapsed: Duration, done: u64, total: u64) -> Option<Duration> {
    let share = total.saturating_sub(done) as f64 / done as f64;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * share).ok()
}

/// Shows how far the weights of a model are on their way to a device; [`end_loading`] takes the bar away.
pub fn loading(done: u64, total: u64) {
    let Ok(mut shown) = LOADING.lock() else { return };
    let bar = shown.get_or_insert_with(|| bar("loading {bar:30} {bytes} of {total_bytes}, {bytes_per_sec}"));
    bar.set_length(total);
    bar.set_position(done);
}

/// Takes the bar of [`loading`] away, if there is one.
pub fn end_loading() {
    if let Some(bar) = LOADING.lock().ok().and_then(|mut shown| shown.take()) {
        bar.finish_and_clear();
    }
}

/// The bar of the model that is being loaded.
static LOADING: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Tells when a pause is over.
#[derive(Debug)]
pub struct Pause {
    length: Duration,
    since: Instant,
}

impl Pause {
    /// Begins one.
    pub fn new(length: Duration) -> Self {
        Self { length, since: Instant::now() }
    }

    /// Whether it is over; then the next one begins.
    pub fn is_over(&mut self) -> bool {
        let is_over = self.since.elapsed() >= self.length;
        if is_over {
            self.since = Instant::now();
        }
        is_over
    }
}

/// What draws bars believes to be a terminal: of all that it draws, a line after each pause is written.
#[derive(Debug)]
struct BarLines<W>(Mutex<(W, String, Pause)>);

impl<W: Write> BarLines<W> {
    fn new(out: W, pause: Duration) -> Self {
        Self(Mutex::new((out, String::new(), Pause::new(pause))))
    }
}

impl<W: Write + Send + std::fmt::Debug> TermLike for BarLines<W> {
    fn width(&self) -> u16 {
        160
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        if let Ok(mut lines) = self.0.lock() {
            lines.1.push_str(text);
        }
        Ok(())
    }

    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }

    /// What was drawn is whole.
    fn flush(&self) -> io::Result<()> {
        let Ok(mut lines) = self.0.lock() else { return Ok(()) };
        let (out, drawn, pause) = &mut *lines;
        let text = std::mem::take(drawn);
        if !text.trim().is_empty() && pause.is_over() {
            // Nobody need see it.
            let _ = writeln!(out, "progress: {}", text.trim());
        }
        Ok(())
    }
}

/// Shows what a pull is doing, on stderr.
pub struct Downloads {
    is_terminal: bool,
    current: Option<(String, ProgressBar)>,
}

impl Downloads {
    pub fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), current: None }
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

    /// Leaves the last bar standing on a terminal.
    pub fn finish(&mut self) {
        if let Some((_, bar)) = self.current.take() {
            bar.abandon();
        }
    }

    fn begin(&self, name: &str, total: Option<u64>) -> ProgressBar {
        if !self.is_terminal {
            eprintln!("fetching {name}{}", total.map(|n| format!(" ({})", bytes(n))).unwrap_or_default());
        }
        let bar = bar("{prefix} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
        let style = bar.style().progress_chars("=> ");
        bar.set_style(style);
        bar.set_prefix(name.to_owned());
        bar
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A writer whose text can be looked at.
    #[derive(Debug, Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let minute = Duration::from_secs(60);
        assert_eq!(time_left(minute, 3, 12), Some(3 * minute));
        assert_eq!(time_left(minute, 12, 12), Some(Duration::ZERO));
        assert_eq!(time_left(minute, 0, 12), None);
        assert_eq!(time_left(minute, 0, 0), None);
    }

    #[test]
    fn work_off_a_terminal_says_how_far_it_is_in_whole_lines() {
        let written = |pause: Duration| {
            let shared = Shared::default();
            let bar = ProgressBar::new(4);
            bar.set_style(ProgressStyle::with_template("{pos}/{len} windows").unwrap());
            bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(BarLines::new(
                shared.clone(),
                pause,
            ))));
            (1..=4).for_each(|at| bar.set_position(at));
            bar.finish_and_clear();
            let bytes = shared.0.lock().unwrap().clone();
            String::from_utf8(bytes).unwrap()
        };
        let all = written(Duration::ZERO);
        assert!(all.contains("progress: 4/4 windows\n") && !all.contains(['\r', '\x1b']), "{all:?}");
        assert!(all.lines().all(|line| line.starts_with("progress: ")), "{all:?}");
        assert_eq!(written(Duration::from_secs(3600)), "", "what is quick says nothing");
    }
}
