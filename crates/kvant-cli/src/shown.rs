//! Texts from files on their way to the screen.
//!
//! Names of files, metadata, names of tensors, messages of chat templates: whoever made the file chose them. A terminal obeys what
//! stands in them: ESC sequences move the cursor, and OSC 52 writes into the clipboard. So all that the command writes, except for what
//! a model says to a pipe, passes through here. Control characters are shown as JSON writes them, `\u001b`, so that JSON stays what it was; what remains of
//! sequences are styles, which the command itself uses.
//!
//! **Invariant:** `println!` and `eprintln!` of this crate are those below, and commands write to [`stdout`].

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Letters of a cell. Longer texts end with an ellipsis.
const CELL_LETTERS: usize = 400;

/// Letters of a message.
const MESSAGE_LETTERS: usize = 8000;

/// Writes a line to stdout, without what a terminal would obey.
macro_rules! println {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        // As in the standard library, except that a closed pipe is no panic.
        let _ = writeln!($crate::shown::stdout(), $($text)*);
    }};
}

/// Writes a line to stderr, without what a terminal would obey.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::shown::print_error(format_args!($($text)*)) };
}

/// A line for stderr.
pub fn print_error(text: std::fmt::Arguments<'_>) {
    let text = text.to_string();
    // Nobody need see it.
    let _ = writeln!(io::stderr(), "{}", harmless(&shortened(&text, MESSAGE_LETTERS)));
}

/// Stdout, without what a terminal would obey.
pub fn stdout() -> Harmless<io::StdoutLock<'static>> {
    Harmless(io::stdout().lock())
}

/// Stderr, without what a terminal would obey.
pub fn stderr() -> Harmless<io::Stderr> {
    Harmless(io::stderr())
}

/// A writer that takes control characters out.
pub struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(harmless(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A text for one cell of a table: one line, and not too long.
pub fn cell(text: &str) -> String {
    let text = shortened(text, CELL_LETTERS);
    escaped(&text, |_| 0)
}

/// A text whose control characters are shown, except for line breaks, tabs and styles.
pub fn harmless(text: &str) -> Cow<'_, str> {
    match text.chars().any(is_control) {
        true => Cow::Owned(escaped(text, spared)),
        false => Cow::Borrowed(text),
    }
}

/// What a model said, for this stream: harmless for a terminal, and as it is for a pipe or a file.
pub fn to_terminal<'t>(stream: &impl IsTerminal, text: &'t str) -> Cow<'t, str> {
    if stream.is_terminal() { harmless(text) } else { text.into() }
}

/// Bytes at the beginning of `text` that may stay although they are controls: a line break, a tab, a style (`ESC [ 1 ; 31 m`).
fn spared(text: &str) -> usize {
    if text.starts_with(['\n', '\t']) {
        return 1;
    }
    let Some(style) = text.strip_prefix("\x1b[") else { return 0 };
    let numbers = style.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    if style[numbers..].starts_with('m') { 2 + numbers + 1 } else { 0 }
}

fn escaped(text: &str, spared: impl Fn(&str) -> usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let keep = if is_control(letter) { spared(rest) } else { letter.len_utf8() };
        if keep == 0 {
            // Writing to a string cannot fail.
            let _ = match letter {
                '\n' => write!(out, "\\n"),
                '\r' => write!(out, "\\r"),
                '\t' => write!(out, "\\t"),
                _ => write!(out, "\\u{:04x}", u32::from(letter)),
            };
            rest = &rest[letter.len_utf8()..];
        } else {
            out.push_str(&rest[..keep]);
            rest = &rest[keep..];
        }
    }
    out
}

/// What moves a cursor, or makes a line read otherwise than it is written.
fn is_control(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shortened(text: &str, letters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(letters) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::{Harmless, cell, harmless};
    use std::io::Write as _;

    #[test]
    fn escape_sequences_of_files_reach_no_terminal() {
        assert_eq!(harmless("a\x1b]52;c;ZXZpbA==\x07b"), "a\\u001b]52;c;ZXZpbA==\\u0007b");
        assert_eq!(harmless("\x1b[2J\u{9b}31m\r"), "\\u001b[2J\\u009b31m\\r");
        assert_eq!(harmless("\u{202e}gpj.exe"), "\\u202egpj.exe");
        assert_eq!(harmless("\x1b[1;31mred\x1b[0m\n\tplain é 日本"), "\x1b[1;31mred\x1b[0m\n\tplain é 日本");
        assert_eq!(cell("\x1b[1mtwo\nlines"), "\\u001b[1mtwo\\nlines");
        let mut out = Harmless(Vec::new());
        out.write_all(b"\x1b[A").unwrap();
        assert_eq!(out.0, b"\\u001b[A");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(cell(&"x".repeat(70_000)), format!("{}…", "x".repeat(400)));
    }
}
