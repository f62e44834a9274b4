//! From the bytes of tokens to text that may be shown.

use crate::stop::{StopMatcher, StopStep};
use kvant_text::tokenizer::Utf8Stream;

/// Whole characters only, up to the first stop string, and without the space before the first word if asked.
pub(crate) struct TextStream {
    characters: Utf8Stream,
    stops: StopMatcher,
    /// Nothing but dropped white space so far.
    trimming: bool,
}

impl TextStream {
    pub fn new(stops: &[String], trim_start: bool) -> Self {
        Self {
            characters: Utf8Stream::new(),
            stops: StopMatcher::new(stops.iter().map(String::as_str)),
            trimming: trim_start,
        }
    }

    /// Takes a token's bytes.
    pub fn push(&mut self, bytes: &[u8]) -> StopStep {
        let mut step = self.stops.push(&self.characters.push(bytes));
        step.text = self.trimmed(step.text);
        step
    }

    /// Ends the text: what was held back.
    pub fn finish(&mut self) -> String {
        let rest = self.characters.finish();
        let mut text = self.stops.push(&rest).text;
        text.push_str(&self.stops.finish());
        self.trimmed(text)
    }

    fn trimmed(&mut self, text: String) -> String {
        if !self.trimming {
            return text;
        }
        let text = text.trim_start();
        self.trimming = text.is_empty();
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::TextStream;

    #[test]
    fn white_space_before_the_first_word_is_dropped_and_no_other() {
        let mut stream = TextStream::new(&[], true);
        let shown: Vec<String> = [" ", "\n", " a", " ", "b"].map(|s| stream.push(s.as_bytes()).text).to_vec();
        assert_eq!(shown, ["", "", "a", " ", "b"]);
        let mut plain = TextStream::new(&[], false);
        assert_eq!(plain.push(b" a").text, " a");
    }

    #[test]
    fn a_stop_string_is_found_across_tokens_that_split_its_characters() {
        let mut stream = TextStream::new(&["é!".to_owned()], false);
        let steps: Vec<_> = [b"x\xc3".as_slice(), b"\xa9", b"! y"].map(|bytes| stream.push(bytes)).into();
        let shown: Vec<&str> = steps.iter().map(|step| step.text.as_str()).collect();
        assert_eq!(shown, ["x", "", ""]);
        assert_eq!(steps[2].stopped_by, Some(0));
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn an_unfinished_character_and_a_stop_string_only_begun_are_shown_at_the_end() {
        let mut stream = TextStream::new(&["END".to_owned()], false);
        assert_eq!(stream.push(b"a EN\xf0\x9f").text, "a ");
        assert_eq!(stream.finish(), "EN\u{fffd}");
    }
}
