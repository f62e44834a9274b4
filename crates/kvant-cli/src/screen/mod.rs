//! What a person sees: text that wraps at words, Markdown where the terminal can show it, remarks that are dimmed.
//!
//! **Invariant:** what goes to a pipe or a file is the text itself, byte for byte.

mod inline;
mod markdown;
mod reading;

pub use markdown::Markdown;
pub use reading::Reading;

use std::io::{self, IsTerminal};

/// Narrower terminals are not wrapped for.
const NARROWEST: usize = 20;
/// The width of a terminal that does not tell.
const USUAL_WIDTH: usize = 80;

/// What an output can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// A pipe or a file: text as it is.
    Raw,
    /// A terminal of this many columns, without styles.
    Plain(usize),
    /// One with bold letters and colours.
    Styled(usize),
}

impl Look {
    /// Of stdout.
    pub fn of_stdout() -> Self {
        let width = terminal_size::terminal_size().map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0));
        match (io::stdout().is_terminal(), has_styles()) {
            (false, _) => Self::Raw,
            (true, _) if width < NARROWEST => Self::Raw,
            (true, false) => Self::Plain(width),
            (true, true) => Self::Styled(width),
        }
    }
}

/// Whether the user and the terminal want styles.
fn has_styles() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Whether remarks on stderr may be dimmed.
pub fn stderr_has_styles() -> bool {
    io::stderr().is_terminal() && has_styles()
}

/// A remark for stderr: dimmed where that can be.
pub fn dimmed(text: &str) -> String {
    if stderr_has_styles() { format!("\x1b[2m{text}\x1b[0m") } else { text.to_owned() }
}

/// A number with its thousands apart: `131,072`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_stand_apart() {
        let shown = [0, 999, 1000, 131_072, 1_000_000].map(grouped);
        assert_eq!(shown, ["0", "999", "1,000", "131,072", "1,000,000"]);
    }
}
