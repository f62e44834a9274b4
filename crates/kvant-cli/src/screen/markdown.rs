//! Markdown as it comes, a few letters at a time: what a line is, is known by how it begins.
//!
//! Headings and `**bold**` are bold, `*slanted*` is slanted, code is coloured, lists hang, quotes have a bar; tables and everything
//! else stay as they are. Fenced code is not wrapped, so that it can be copied.

use super::Look;
use super::inline::Flow;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";
const CODE: &str = "\x1b[36m";
const BOLD: &str = "\x1b[1m";

/// A text on its way to a terminal.
#[derive(Debug)]
pub struct Markdown {
    flow: Flow,
    is_styled: bool,
    line: OpenLine,
    /// The marks that end the code that is being shown.
    fence: Option<String>,
}

/// The line that is being read.
#[derive(Debug, PartialEq, Eq)]
enum OpenLine {
    /// Not known yet: its beginning.
    Begun(String),
    /// Words that flow.
    Words,
    /// Words of a heading.
    Heading,
    /// Letters as they are.
    Verbatim,
    /// The line of a fence, held until it is whole.
    Fence(String),
}

/// What the beginning of a line shows.
enum LineStart {
    Undecided,
    /// Words after a mark, and how that is shown.
    Words {
        mark: String,
        shown: String,
    },
    Heading,
    Fence,
    Verbatim,
}

impl Markdown {
    /// For a terminal; what a pipe gets needs none of this.
    pub fn new(look: Look) -> Option<Self> {
        let (width, is_styled) = match look {
            Look::Raw => return None,
            Look::Plain(width) => (width, false),
            Look::Styled(width) => (width, true),
        };
        let (flow, line) = (Flow::new(width, is_styled), OpenLine::Begun(String::new()));
        Some(Self { flow, is_styled, line, fence: None })
    }

    /// Takes more text; returns what can be shown.
    pub fn push(&mut self, text: &str) -> String {
        let mut out = String::new();
        text.chars().filter(|letter| *letter != '\r').for_each(|letter| self.take(letter, &mut out));
        out
    }

    /// Ends the text; returns the rest.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        self.end_line(&mut out);
        self.line = OpenLine::Begun(String::new());
        out
    }

    fn take(&mut self, letter: char, out: &mut String) {
        if letter == '\n' {
            self.end_line(out);
            out.push('\n');
            self.line = OpenLine::Begun(String::new());
            return;
        }
        match &mut self.line {
            OpenLine::Begun(begun) => {
                begun.push(letter);
                let begun = begun.clone();
                self.decide(&begun, out);
            }
            OpenLine::Words | OpenLine::Heading => self.flow.letter(letter, out),
            OpenLine::Verbatim if letter.is_control() && letter != '\t' => {}
            OpenLine::Verbatim => out.push(letter),
            OpenLine::Fence(line) => line.push(letter),
        }
    }

    /// Goes on once it is known what the line is.
    fn decide(&mut self, begun: &str, out: &mut String) {
        let kind = match &self.fence {
            Some(fence) => code_line(begun, fence),
            None => kind(begun, self.is_styled),
        };
        match kind {
            LineStart::Undecided => {}
            LineStart::Words { mark, shown } => {
                self.flow.begin(&mark, &shown, out);
                self.line = OpenLine::Words;
                begun.chars().skip(mark.chars().count()).for_each(|letter| self.flow.letter(letter, out));
            }
            LineStart::Heading => {
                if self.is_styled {
                    out.push_str(BOLD);
                } else {
                    begun.chars().for_each(|letter| self.flow.letter(letter, out));
                }
                self.line = OpenLine::Heading;
            }
            LineStart::Fence => self.line = OpenLine::Fence(begun.to_owned()),
            LineStart::Verbatim => {
                if self.fence.is_some() && self.is_styled {
                    out.push_str(CODE);
                }
                out.extend(begun.chars().filter(|letter| !letter.is_control() || *letter == '\t'));
                self.line = OpenLine::Verbatim;
            }
        }
    }

    /// The line is whole.
    fn end_line(&mut self, out: &mut String) {
        match std::mem::replace(&mut self.line, OpenLine::Words) {
            OpenLine::Begun(begun) => {
                match self.fence.as_ref().is_some_and(|fence| is_closing(&begun, fence)) {
                    true => self.end_fence(&begun, out),
                    false if self.fence.is_some() => out.push_str(&begun),
                    false => {
                        begun.chars().for_each(|letter| self.flow.letter(letter, out));
                        self.flow.end(out);
                    }
                }
            }
            OpenLine::Words => self.flow.end(out),
            OpenLine::Heading => {
                self.flow.end(out);
                if self.is_styled {
                    out.push_str(PLAIN);
                }
            }
            OpenLine::Verbatim if self.fence.is_some() && self.is_styled => out.push_str(PLAIN),
            OpenLine::Verbatim => {}
            OpenLine::Fence(line) if self.fence.is_some() => self.end_fence(&line, out),
            OpenLine::Fence(line) => {
                let marks: String =
                    line.trim_start().chars().take_while(|c| ['`', '~'].contains(c)).collect();
                self.fence = Some(marks);
                self.fence_line(&line, out);
            }
        }
    }

    fn end_fence(&mut self, line: &str, out: &mut String) {
        self.fence = None;
        self.fence_line(line, out);
    }

    fn fence_line(&self, line: &str, out: &mut String) {
        let line: String = line.chars().filter(|letter| !letter.is_control()).collect();
        match self.is_styled {
            true => out.push_str(&format!("{DIM}{line}{PLAIN}")),
            false => out.push_str(&line),
        }
    }
}

fn is_closing(line: &str, fence: &str) -> bool {
    let line = line.trim();
    line.starts_with(fence) && line.chars().all(|letter| fence.starts_with(letter))
}

/// A line inside of code.
fn code_line(begun: &str, fence: &str) -> LineStart {
    let marks = begun.trim_start();
    let may_close = begun.len() - marks.len() < 4 && marks.chars().all(|letter| fence.starts_with(letter));
    if may_close { LineStart::Undecided } else { LineStart::Verbatim }
}

/// What a line is that begins like this.
fn kind(begun: &str, is_styled: bool) -> LineStart {
    let rest = begun.trim_start_matches([' ', '\t']);
    let blanks = &begun[..begun.len() - rest.len()];
    let words = |mark: &str, shown: String| LineStart::Words { mark: mark.to_owned(), shown };
    let all = |letters: &[char]| rest.chars().all(|letter| letters.contains(&letter));
    let as_is = || words("", String::new());
    let Some(first) = rest.chars().next() else { return LineStart::Undecided };
    match first {
        '#' if rest.len() <= 6 && all(&['#']) => LineStart::Undecided,
        '#' if rest.trim_start_matches('#').starts_with(' ') => LineStart::Heading,
        '`' | '~' if rest.len() < 3 && all(&[first]) => LineStart::Undecided,
        '`' | '~' if rest.starts_with(&first.to_string().repeat(3)) => LineStart::Fence,
        '-' | '*' | '+' if rest.len() == 1 => LineStart::Undecided,
        '-' | '*' | '+' if rest[1..].starts_with(' ') => {
            let mark = format!("{blanks}{first} ");
            let shown = if is_styled { format!("{blanks}• ") } else { mark.clone() };
            words(&mark, shown)
        }
        '0'..='9' => {
            let digits = rest.trim_start_matches(|letter: char| letter.is_ascii_digit());
            match (rest.len() - digits.len(), digits) {
                (1..=3, "" | "." | ")") => LineStart::Undecided,
                (1..=3, after) if after.starts_with(". ") || after.starts_with(") ") => {
                    let mark = format!("{blanks}{rest}");
                    words(&mark, mark.clone())
                }
                _ => as_is(),
            }
        }
        '>' if rest.len() == 1 => LineStart::Undecided,
        '>' if is_styled => {
            let mark = format!("{blanks}> ");
            let taken = if rest[1..].starts_with(' ') { mark } else { format!("{blanks}>") };
            words(&taken, format!("{blanks}{DIM}│{PLAIN}{}", &taken[blanks.len() + 1..]))
        }
        '|' => LineStart::Verbatim,
        _ => as_is(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same however the text is cut.
    fn shown(look: Look, text: &str) -> String {
        let whole = {
            let mut page = Markdown::new(look).unwrap();
            page.push(text) + &page.finish()
        };
        let mut page = Markdown::new(look).unwrap();
        let letters: String = text.chars().map(|letter| page.push(&letter.to_string())).collect();
        assert_eq!(letters + &page.finish(), whole, "{text:?}");
        whole
    }

    #[test]
    fn words_wrap_and_lists_hang() {
        let plain = |text: &str| shown(Look::Plain(20), text);
        assert_eq!(plain("one two three four five six"), "one two three four\nfive six");
        assert_eq!(plain("- one two three four five"), "- one two three four\n  five");
        assert_eq!(plain("12. one two three four\nnext"), "12. one two three\n    four\nnext");
        assert_eq!(plain("a **b** `c` * d\n\n  e"), "a **b** `c` * d\n\n  e");
        assert_eq!(plain("漢字漢字漢字漢字漢字漢字"), "漢字漢字漢字漢字漢字\n漢字");
        let long = "x".repeat(30);
        assert_eq!(plain(&format!("{long} y")), format!("{long}\ny"));
        assert_eq!(plain("| a | b | c | d | e | f |"), "| a | b | c | d | e | f |", "a table is not wrapped");
    }

    #[test]
    fn markdown_is_shown_where_the_terminal_can() {
        let styled = |text: &str| shown(Look::Styled(40), text);
        assert_eq!(styled("a **b c** d"), "a \x1b[1mb c\x1b[22m d");
        assert_eq!(styled("an *x y* and 2 * 3 * 4"), "an \x1b[3mx y\x1b[23m and 2 * 3 * 4");
        assert_eq!(styled("use `a*b*c`."), "use \x1b[36ma*b*c\x1b[39m.");
        assert_eq!(styled("## Head\nt"), "\x1b[1mHead\x1b[0m\nt");
        assert_eq!(styled("* one\n- two"), "• one\n• two");
        assert_eq!(styled("> said"), "\x1b[2m│\x1b[0m said");
        assert_eq!(styled("**open\nnext"), "\x1b[1mopen\x1b[22m\nnext", "no style runs on");
        assert_eq!(styled("#hash 1/2 -5"), "#hash 1/2 -5");
    }

    #[test]
    fn code_is_coloured_and_neither_wrapped_nor_read() {
        let text = "see\n```rust\nlet a = b * c; // **no**  and much more than fits on a line\n\n  # x\n```\nafter **it**";
        let styled = shown(Look::Styled(30), text);
        let code = "\x1b[2m```rust\x1b[0m\n\x1b[36mlet a = b * c; // **no**  and much more than fits on a line\x1b[0m\n\n";
        assert!(styled.contains(code), "{styled:?}");
        assert!(
            styled.contains("\x1b[36m  # x\x1b[0m\n\x1b[2m```\x1b[0m\nafter \x1b[1mit\x1b[22m"),
            "{styled:?}"
        );
        assert_eq!(shown(Look::Plain(30), "```\na  b\n```\n"), "```\na  b\n```\n");
    }

    #[test]
    fn a_model_cannot_command_the_terminal() {
        for text in ["a\x1b[2Jb", "```\n\x1b]0;title\x07\n```", "| \x1b[31m |", "- \x1b[1A"] {
            let plain = shown(Look::Plain(40), text);
            assert!(!plain.contains('\x1b') && !plain.contains('\x07'), "{plain:?}");
        }
    }
}
