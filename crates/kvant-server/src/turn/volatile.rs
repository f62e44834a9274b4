//! Lines that an agent changes with every request, near the front of its prompt, where they defeat the prefix cache.
//!
//! They mean nothing to a model. Exactly these are left out, at exactly these places:
//!
//! | what | where |
//! |---|---|
//! | `x-anthropic-billing-header: …`, a line with a hash of the request | the first line of the first system turn |
//! | `<total_tokens>N tokens left</total_tokens>`, a falling count | lines at the end of a system turn, and whole turns |
//!
//! **Invariant:** other text is never touched, and what was left out is named in the response's header.

use crate::notes::Notes;
use kvant_text::chat::Message;

const BILLING: &str = "x-anthropic-billing-header:";
const COUNT: (&str, &str) = ("<total_tokens>", " tokens left</total_tokens>");

/// Leaves them out.
pub fn strip_volatile(messages: &mut Vec<Message>, notes: &Notes) {
    if let Some(first) = messages.first_mut().filter(|turn| turn.role == "system")
        && let Some(content) = &mut first.content
        && content.starts_with(BILLING)
    {
        let rest = content.split_once('\n').map_or("", |(_, rest)| rest);
        *content = rest.trim_start_matches('\n').to_owned();
        notes.stripped("billing-header");
    }
    for message in messages.iter_mut().filter(|turn| turn.role == "system") {
        let Some(content) = &mut message.content else { continue };
        while let Some(rest) = without_count(content) {
            content.truncate(rest);
            notes.stripped("token-count");
        }
    }
    messages.retain(|turn| turn.role != "system" || turn.content.as_deref() != Some(""));
}

/// Bytes before a count on the last line; none if there is no count.
fn without_count(text: &str) -> Option<usize> {
    let trimmed = text.trim_end();
    let start = trimmed.rfind('\n').map_or(0, |at| at + 1);
    let digits = trimmed[start..].strip_prefix(COUNT.0)?.strip_suffix(COUNT.1)?;
    let is_count = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_count.then(|| trimmed[..start].trim_end().len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(turns: &[(&str, &str)]) -> (Vec<(String, String)>, Option<String>) {
        let mut messages: Vec<Message> =
            turns.iter().map(|(role, text)| Message::new(*role, *text)).collect();
        let notes = Notes::default();
        strip_volatile(&mut messages, &notes);
        let left = messages.into_iter().map(|turn| (turn.role, turn.content.unwrap())).collect();
        (left, notes.stripped_header().map(|header| header.to_str().unwrap().to_owned()))
    }

    #[test]
    fn exactly_these_lines_are_left_out() {
        let count = "<total_tokens>14999436 tokens left</total_tokens>";
        let system = format!("{BILLING} a=1; cch=1f2e3;\n\nYou are.\nBe good.\n\n{count}\n{count}\n");
        let (left, named) =
            stripped(&[("system", &system), ("user", "Hi"), ("system", count), ("user", count)]);
        let own = |role: &str, text: &str| (role.to_owned(), text.to_owned());
        assert_eq!(left, [own("system", "You are.\nBe good."), own("user", "Hi"), own("user", count)]);
        assert_eq!(named.as_deref(), Some("billing-header, token-count"));
    }

    #[test]
    fn other_text_is_never_touched() {
        let billing = format!("{BILLING} x");
        let inside = format!("First.\n{billing}\nLast.");
        let count = "<total_tokens>5 tokens left</total_tokens>";
        let before = format!("{count}\nThat was a count.");
        for turns in [
            vec![("system", inside.as_str()), ("user", "x")],
            vec![("user", billing.as_str())],
            vec![("system", before.as_str())],
            vec![("system", "a"), ("user", count), ("assistant", count)],
            vec![("system", "ends with <total_tokens>x tokens left</total_tokens>")],
            vec![("system", "a"), ("user", "b"), ("system", &billing)],
        ] {
            let (left, named) = stripped(&turns);
            let same: Vec<(String, String)> =
                turns.iter().map(|(role, text)| ((*role).to_owned(), (*text).to_owned())).collect();
            assert_eq!((left, named), (same, None));
        }
    }
}
