//! Tells code, comments and literals of a Rust file apart, well enough to search in one of them.

/// The same lines twice: the code with blanks for comments and literals, and the comments with blanks for
/// the rest.
pub struct Parts {
    pub code: String,
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

/// Splits a source text. A text that does not parse as Rust gives a wrong split, never a panic.
pub fn split(source: &str) -> Parts {
    let chars: Vec<char> = source.chars().collect();
    let mut parts = Parts { code: String::new(), comments: String::new() };
    let mut at = 0;
    while at < chars.len() {
        let (kind, end) = token(&chars, at);
        for &c in &chars[at..end] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            parts.code.push(if kind == Kind::Code { c } else { blank });
            parts.comments.push(if kind == Kind::Comment { c } else { blank });
        }
        at = end;
    }
    parts
}

/// What begins at `at`, and where it ends (always past `at`).
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let rest = &chars[at..];
    match rest {
        ['/', '/', ..] => (Kind::Comment, find(chars, at, |c| c == '\n')),
        ['/', '*', ..] => (Kind::Comment, block_comment_end(chars, at)),
        ['"', ..] => (Kind::Literal, quoted_end(chars, at + 1, '"')),
        ['\'', '\\', ..] => (Kind::Literal, quoted_end(chars, at + 1, '\'')),
        ['\'', _, '\'', ..] => (Kind::Literal, at + 3),
        _ if is_name(rest[0]) => name_or_raw_string(chars, at),
        _ => (Kind::Code, at + 1),
    }
}

/// A whole name, so that the `r` of `r"…"` is told from the `r` that ends `for`.
fn name_or_raw_string(chars: &[char], at: usize) -> (Kind, usize) {
    let end = find(chars, at, |c| !is_name(c));
    let name: String = chars[at..end].iter().collect();
    if matches!(name.as_str(), "r" | "br" | "cr") {
        let hashes = find(chars, end, |c| c != '#') - end;
        if chars.get(end + hashes) == Some(&'"') {
            return (Kind::Literal, raw_end(chars, end + hashes + 1, hashes));
        }
    }
    (Kind::Code, end)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first place from `at` on that satisfies the condition, or the end.
fn find(chars: &[char], at: usize, condition: impl Fn(char) -> bool) -> usize {
    (at..chars.len()).find(|&i| condition(chars[i])).unwrap_or(chars.len())
}

fn block_comment_end(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0_usize, at);
    while i < chars.len() {
        match chars[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], mut i: usize, quote: char) -> usize {
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    chars.len()
}

fn raw_end(chars: &[char], from: usize, hashes: usize) -> usize {
    let closes =
        |i: usize| chars[i] == '"' && chars[i + 1..].iter().take_while(|&&c| c == '#').count() >= hashes;
    (from..chars.len()).find(|&i| closes(i)).map_or(chars.len(), |i| i + 1 + hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The visible words of the code and of the comments.
    fn words(source: &str) -> (String, String) {
        let parts = split(source);
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        (squeeze(&parts.code), squeeze(&parts.comments))
    }

    #[test]
    fn comments_leave_the_code() {
        assert_eq!(words("a // b\nc"), ("a c".into(), "// b".into()));
        assert_eq!(words("a /* b /* c */ d */ e"), ("a e".into(), "/* b /* c */ d */".into()));
    }

    #[test]
    fn literals_are_neither() {
        assert_eq!(words(r#"x("// \" y") // z"#), ("x( )".into(), "// z".into()));
        assert_eq!(words(r###"x(r#"a " b"#, br"\", c)"###), ("x( , , c)".into(), String::new()));
        assert_eq!(words(r"['\'', '/', '/', b'\\', 'a']"), ("[ , , , b , ]".into(), String::new()));
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(words("fn f<'a>(x: &'a str) // b"), ("fn f<'a>(x: &'a str)".into(), "// b".into()));
        assert_eq!(words("r#type = for_r"), ("r#type = for_r".into(), String::new()));
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a\n/* b\n\n c */ \"d\n\" e\n";
        let parts = split(source);
        assert_eq!(parts.code.lines().count(), source.lines().count());
        assert_eq!(parts.code.lines().position(|line| line.contains('e')), Some(4));
    }

    #[test]
    fn broken_text_does_no_harm() {
        for source in ["\"", "'", "'\\", "/*", "/* /*", "r#\"", "r##", "\"\\", "/", "br"] {
            let parts = split(source);
            assert_eq!(parts.code.chars().count(), source.chars().count(), "{source}");
        }
    }
}
