//! Text in which letters that a template may turn into each other are the same.

use std::borrow::Cow;
use std::ops::Range;

/// What a letter may become when it is written small, large and small again: the Kelvin sign is a k, ẞ and ß are ss, ﬅ is st.
pub(super) fn fold(c: char) -> impl Iterator<Item = char> {
    c.to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

/// A folded text that knows where its parts come from.
pub(super) struct Folded<'a> {
    text: Cow<'a, str>,
    /// Where folding has changed how many bytes or letters there are: a place in the folded text, and the one in the source that it comes
    /// from. From there on both go on in step, up to the next.
    turns: Vec<(usize, usize)>,
    source: usize,
}

impl<'a> Folded<'a> {
    pub fn new(source: &'a str) -> Self {
        let has_large = source.bytes().any(|byte| byte.is_ascii_uppercase());
        let (text, turns) = match source.is_ascii() {
            true if has_large => (source.to_ascii_lowercase().into(), Vec::new()),
            true => (source.into(), Vec::new()),
            false => {
                let (mut text, mut turns) = (String::with_capacity(source.len()), Vec::new());
                for (at, c) in source.char_indices() {
                    let before = text.len();
                    text.extend(fold(c));
                    if text.len() - before != c.len_utf8() || text[before..].chars().nth(1).is_some() {
                        turns.push((before, at));
                        turns.push((text.len(), at + c.len_utf8()));
                    }
                }
                (text.into(), turns)
            }
        };
        Self { text, turns, source: source.len() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The part of the source that a part of the folded text comes from: whole letters.
    pub fn source(&self, range: Range<usize>) -> Range<usize> {
        self.place(range.start, false)..self.place(range.end, true)
    }

    /// Where in the source a place is. In the middle of what one letter became, it is the start or the end of that letter.
    fn place(&self, at: usize, is_end: bool) -> usize {
        let next = self.turns.partition_point(|(folded, _)| *folded <= at);
        let Some(&(folded, source)) = next.checked_sub(1).and_then(|last| self.turns.get(last)) else {
            return at;
        };
        // A letter that has changed so lies between a turn of even number and the next.
        let is_inside = next % 2 == 1 && at > folded;
        match self.turns.get(next) {
            Some(&(_, end)) if is_inside => {
                if is_end {
                    end
                } else {
                    source
                }
            }
            _ => (source + (at - folded)).min(self.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_become_others_are_found_where_they_stand() {
        let source = "é\u{212a}ﬅß-ẞK";
        let folded = Folded::new(source);
        assert_eq!(folded.text(), "ékstss-ssk");
        let part = |text: &str| {
            let at = folded.text().find(text).unwrap();
            &source[folded.source(at..at + text.len())]
        };
        assert_eq!((part("k"), part("st"), part("ks"), part("ts")), ("\u{212a}", "ﬅ", "\u{212a}ﬅ", "ﬅß"));
        assert_eq!((part("s-s"), part("-"), part("é"), part("-ssk")), ("ß-ẞ", "-", "é", "-ẞK"));
        assert_eq!(Folded::new("aBc").text(), "abc");
    }
}
