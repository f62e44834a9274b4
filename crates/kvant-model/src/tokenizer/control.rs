//! Names of control tokens that are nothing but text.
//!
//! A chat template writes control tokens by their names, and the words of users beside them. A user who writes such a name must
//! not be taken for the template. So names in the words of users are put between two *fences*, characters that occur nowhere
//! else, before the template runs, and what it wrote is encoded by [`Tokenizer::encode_chat_fenced`]: names between fences are text.
//!
//! **Invariant:** fences never reach the model. One that has lost its fellow, or has something else than a name beside it, is
//! dropped.

use super::{EncodeOptions, TokenKind, Tokenizer, TokenizerError};
use aho_corasick::{AhoCorasick, MatchKind};
use std::ops::Range;

/// What stands before and after a name that is text.
pub type Fences = [char; 2];

/// All names, to look for at once.
pub(super) struct ControlNames {
    finder: AhoCorasick,
    ids: Vec<u32>,
}

impl ControlNames {
    fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let is_control =
            |id: &u32| matches!(tokenizer.kind(*id), Some(TokenKind::Control | TokenKind::Unknown));
        let count = u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
        let (ids, names): (Vec<u32>, Vec<&[u8]>) = (0..count)
            .filter(is_control)
            .filter_map(|id| Some((id, tokenizer.token_bytes(id).ok().filter(|name| !name.is_empty())?)))
            .unzip();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(names).ok()?;
        Some(Self { finder, ids })
    }

    fn is_name(&self, text: &str) -> bool {
        self.finder.find(text).is_some_and(|found| found.range() == (0..text.len()))
    }
}

impl Tokenizer {
    fn control_names(&self) -> Option<&ControlNames> {
        self.control_names.get_or_init(|| ControlNames::new(self)).as_ref()
    }

    /// `text` with fences around the names of control tokens in it, but not around those in `spared`; none if there are no such
    /// names.
    pub fn fenced(&self, text: &str, fences: Fences, spared: &[&str]) -> Option<String> {
        let names = self.control_names()?;
        let mut out = String::new();
        let mut from = 0;
        for found in names.finder.find_iter(text) {
            let name = &text[found.range()];
            if !spared.contains(&name) {
                out.push_str(&text[from..found.start()]);
                out.extend([fences[0]].into_iter().chain(name.chars()).chain([fences[1]]));
                from = found.end();
            }
        }
        (from > 0).then(|| out + &text[from..])
    }

    /// As [`encode_chat`](Self::encode_chat), but control tokens whose names stand between fences are text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_chat_fenced(&self, rendered: &str, fences: Fences) -> Result<Vec<u32>, TokenizerError> {
        let Some(names) = self.control_names() else { return self.encode_chat(rendered) };
        let (text, literal) = unfenced(rendered, fences, |name| names.is_name(name));
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let mut ids = Vec::new();
        let mut from = 0;
        for found in names.finder.find_iter(&text) {
            let overlaps = |range: &Range<usize>| range.start < found.end() && found.start() < range.end;
            if !literal.iter().any(overlaps) {
                ids.extend(self.encode(&text[from..found.start()], plain)?);
                ids.push(names.ids[found.pattern().as_usize()]);
                from = found.end();
            }
        }
        ids.extend(self.encode(&text[from..], plain)?);
        if !self.prefix.is_empty() && !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }
}

/// The text without fences, and where in it the names are that stood between them.
fn unfenced(text: &str, fences: Fences, is_name: impl Fn(&str) -> bool) -> (String, Vec<Range<usize>>) {
    let [open, close] = fences;
    let (mut out, mut literal) = (String::with_capacity(text.len()), Vec::new());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(open) {
        out.extend(before.chars().filter(|&c| c != close));
        rest = after;
        if let Some((name, after)) = after.split_once(close)
            && is_name(name)
        {
            literal.push(out.len()..out.len() + name.len());
            out.push_str(name);
            rest = after;
        }
    }
    out.extend(rest.chars().filter(|&c| c != close));
    (out, literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_that_lost_their_fellow_or_their_name_are_dropped() {
        let read = |text: &str| {
            let (text, literal) = unfenced(text, ['(', ')'], |name| name == "<s>");
            (text, literal.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>())
        };
        assert_eq!(read("a(<s>)b<s>"), ("a<s>b<s>".into(), vec![(1, 4)]));
        assert_eq!(read("a(b)c"), ("abc".into(), vec![]));
        assert_eq!(read(")a(<s>"), ("a<s>".into(), vec![]));
        assert_eq!(read("((<s>))"), ("<s>".into(), vec![(0, 3)]));
        assert_eq!(read("plain"), ("plain".into(), vec![]));
    }
}
