//! Bytes in, complete characters out.

/// Turns a stream of token bytes into text without ever splitting a character.
///
/// A token may end inside a character (half an emoji); those bytes wait here for the rest. Bytes that can no
/// longer become a character are replaced by U+FFFD at once, so the concatenation of all that is returned
/// equals [`String::from_utf8_lossy`] of all that was pushed, however it was cut.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// A stream at the start of a text.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and returns the characters they complete, often none or several.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut used = 0;
        for chunk in self.pending.utf8_chunks() {
            text.push_str(chunk.valid());
            used += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = used + invalid.len() == self.pending.len();
            if invalid.is_empty() || (is_last && may_continue(invalid)) {
                break;
            }
            text.push(char::REPLACEMENT_CHARACTER);
            used += invalid.len();
        }
        self.pending.drain(..used);
        text
    }

    /// Ends the text: a character left incomplete becomes U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// True if more bytes could make `invalid` a character.
fn may_continue(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::Utf8Stream;
    use proptest::prelude::*;

    #[test]
    fn an_emoji_in_four_pieces_comes_out_once() {
        let mut stream = Utf8Stream::new();
        let out: Vec<String> = "🦀".bytes().map(|b| stream.push(&[b])).collect();
        assert_eq!(out, ["", "", "", "🦀"]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_cut_character_is_shown_at_the_end() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"a\xf0\x9f"), "a");
        assert_eq!(stream.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn any_cutting_gives_the_lossy_whole(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..6),
                    prop::sample::select(vec!["é", "中", "🦀", "a"]).prop_map(|s| s.as_bytes().to_vec()),
                    prop::sample::select(vec![0xf0u8, 0x9f, 0xa6, 0x80, 0xc3, 0xe4, 0xed]).prop_map(|b| vec![b]),
                ],
                0..24,
            ),
        ) {
            let mut stream = Utf8Stream::new();
            let mut text: String = pieces.iter().map(|p| stream.push(p)).collect();
            text.push_str(&stream.finish());
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}
