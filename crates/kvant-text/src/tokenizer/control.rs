//! Names of control tokens that are nothing but text.
//!
//! A chat template writes control tokens by their names, and the words of users beside them. A user who writes such a name must
//! not be taken for the template. So a *fence*, a character that occurs nowhere else, is put into every name in the words of users
//! before the template runs, and what it wrote is encoded by [`Tokenizer::encode_chat_fenced`]: a name with a fence in it is text.
//!
//! Templates trim texts, write them in small or large letters and put them beside each other. So a name in other letters is fenced too:
//! also in letters that only become its own, as the Kelvin sign becomes a k, and the ligature ﬅ ST. So is a text that ends as a name
//! begins, or begins as one ends; and a role that is the middle of one, for templates that write `<|{{ role }}|>`.
//!
//! **Invariant:** fences never reach the model, and no name with a fence in it becomes a control token.

use super::folded::{Folded, fold};
use super::{EncodeOptions, TokenKind, Tokenizer, TokenizerError};
use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

/// What fences are chosen from: characters that Unicode reserves for a program's own use, and then those without a meaning.
const CANDIDATES: [std::ops::RangeInclusive<char>; 2] = ['\u{fdd0}'..='\u{fdef}', '\u{e000}'..='\u{f8ff}'];

/// A character that divides names of control tokens which are text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence(char);

impl Fence {
    /// A character that occurs nowhere in `text`. Where all of them do, it is the first, which [`Tokenizer::fence`] takes out of every
    /// text.
    pub fn absent_from(text: &str) -> Self {
        let is_candidate = |c: &char| CANDIDATES.iter().any(|range| range.contains(c));
        let taken: HashSet<char> = text.chars().filter(is_candidate).collect();
        let first = *CANDIDATES[0].start();
        Self(CANDIDATES.into_iter().flatten().find(|c| !taken.contains(c)).unwrap_or(first))
    }

    /// A text without fences.
    pub fn removed(self, text: &str) -> Cow<'_, str> {
        match text.contains(self.0) {
            true => text.replace(self.0, "").into(),
            false => text.into(),
        }
    }
}

/// All names, to look for at once.
pub(super) struct ControlNames {
    finder: AhoCorasick,
    /// The same [folded](Folded), and also where names overlap: one of them divided may leave the other whole.
    lax: AhoCorasick,
    ids: Vec<u32>,
    /// Folded, and the same read backwards.
    forwards: Beginnings,
    backwards: Beginnings,
    folded: Vec<String>,
}

impl ControlNames {
    fn new(tokenizer: &Tokenizer) -> Option<Self> {
        let is_control =
            |id: &u32| matches!(tokenizer.kind(*id), Some(TokenKind::Control | TokenKind::Unknown));
        let count = u32::try_from(tokenizer.vocab_len()).unwrap_or(u32::MAX);
        let (ids, names): (Vec<u32>, Vec<Vec<u8>>) = (0..count)
            .filter(is_control)
            .filter_map(|id| Some((id, tokenizer.token_bytes(id).ok()?.to_vec())))
            .filter(|(_, name)| !name.is_empty() && std::str::from_utf8(name).is_ok())
            .unzip();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&names).ok()?;
        let folded: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).chars().flat_map(fold).collect()).collect();
        let lax = AhoCorasick::builder().build(&folded).ok()?;
        let bytes = folded.iter().map(|name| name.as_bytes().to_vec());
        let backwards = Beginnings::new(bytes.clone().map(|name| name.into_iter().rev().collect()));
        Some(Self { finder, lax, ids, forwards: Beginnings::new(bytes), backwards, folded })
    }

    /// Whether a folded `text` ends as a name begins.
    fn ends_within(&self, text: &str) -> bool {
        let from = text.len().saturating_sub(self.forwards.longest);
        let end = &text.as_bytes()[from..];
        (0..end.len()).any(|at| self.forwards.has(&end[at..]))
    }

    /// Whether a folded `text` begins as a name ends.
    fn begins_within(&self, text: &str) -> bool {
        let mut start = text.as_bytes()[..text.len().min(self.backwards.longest)].to_vec();
        start.reverse();
        (0..start.len()).any(|at| self.backwards.has(&start[at..]))
    }

    /// Whether a folded `text` is in the middle of a name.
    fn is_within(&self, text: &str) -> bool {
        !text.is_empty() && self.folded.iter().any(|name| name.contains(text))
    }
}

/// Texts in order, to be found by how they begin.
struct Beginnings {
    sorted: Vec<Vec<u8>>,
    longest: usize,
}

impl Beginnings {
    fn new(texts: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut sorted: Vec<Vec<u8>> = texts.collect();
        sorted.sort_unstable();
        let longest = sorted.iter().map(Vec::len).max().unwrap_or(0);
        Self { sorted, longest }
    }

    /// Whether one of them begins with `part` and goes on.
    fn has(&self, part: &[u8]) -> bool {
        let from = self.sorted.partition_point(|text| text.as_slice() <= part);
        self.sorted.get(from).is_some_and(|text| text.starts_with(part))
    }
}

/// Roles that templates know, each in some marker of its own.
const ROLES: [&str; 10] = [
    "system",
    "user",
    "assistant",
    "tool",
    "developer",
    "function",
    "ipython",
    "observation",
    "model",
    "environment",
];

/// Puts fences at these places.
fn put(text: &mut String, fence: Fence, mut at: Vec<usize>) {
    if at.is_empty() {
        return;
    }
    at.sort_unstable();
    at.dedup();
    let mut out = String::with_capacity(text.len() + at.len() * fence.0.len_utf8());
    let mut from = 0;
    for at in at {
        out.push_str(&text[from..at]);
        out.push(fence.0);
        from = at;
    }
    out.push_str(&text[from..]);
    *text = out;
}

/// Where a fence stands in a name: after its first letter, or before it where it is the only one.
fn inside(name: &str) -> usize {
    let first = name.chars().next().map_or(0, char::len_utf8);
    if first < name.len() { first } else { 0 }
}

impl Tokenizer {
    fn control_names(&self) -> Option<&ControlNames> {
        self.control_names.get_or_init(|| ControlNames::new(self)).as_ref()
    }

    /// Puts fences into the names of control tokens in `text`, but not into those in `spared`, and at its ends where a part of a name
    /// stands there. Fences that were there before are taken out.
    pub fn fence(&self, text: &mut String, fence: Fence, spared: &[&str]) {
        if let Cow::Owned(without) = fence.removed(text) {
            *text = without;
        }
        let Some(names) = self.control_names() else { return };
        let folded = Folded::new(text);
        let mut at: Vec<usize> = Vec::new();
        for found in names.lax.find_overlapping_iter(folded.text()) {
            let range = folded.source(found.range());
            if !spared.contains(&&text[range.clone()]) {
                at.push(range.start + inside(&text[range]));
            }
        }
        if names.begins_within(folded.text().trim_start()) {
            at.push(text.len() - text.trim_start().len());
        }
        if names.ends_within(folded.text().trim_end()) {
            at.push(text.trim_end().len());
        }
        drop(folded);
        put(text, fence, at);
    }

    /// The same for a role. One that is not of the usual ones and stands in the middle of a name is fenced too: a template that
    /// writes `<|{{ role }}|>` opens turns of the usual roles alone.
    pub fn fence_role(&self, role: &mut String, fence: Fence) {
        self.fence(role, fence, &[]);
        let Some(names) = self.control_names() else { return };
        let is_usual = ROLES.contains(&role.as_str());
        if !is_usual && names.is_within(Folded::new(role).text().trim()) {
            let start = role.len() - role.trim_start().len();
            put(role, fence, vec![start]);
        }
    }
    /// As [`encode_chat`](Self::encode_chat), but control tokens whose names have a fence in them are text.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_chat_fenced(&self, rendered: &str, fence: Fence) -> Result<Vec<u32>, TokenizerError> {
        if !rendered.contains(fence.0) {
            return self.encode_chat(rendered);
        }
        let (text, fences) = unfenced(rendered, fence);
        let is_divided = |name: Range<usize>| {
            let at = fences.partition_point(|&at| at < name.start + inside(&text[name.clone()]));
            fences.get(at).is_some_and(|&at| at < name.end)
        };
        let Some(names) = self.control_names() else { return self.encode_chat(&text) };
        if !names.finder.find_iter(&text).any(|found| is_divided(found.range())) {
            return self.encode_chat(&text);
        }
        let plain = EncodeOptions { add_special: false, parse_special: false };
        let mut ids = Vec::new();
        let mut from = 0;
        for found in names.finder.find_iter(rendered) {
            let is_fenced =
                inside(&rendered[found.range()]) == 0 && rendered[..found.start()].ends_with(fence.0);
            if !is_fenced {
                ids.extend(self.encode(&fence.removed(&rendered[from..found.start()]), plain)?);
                ids.push(names.ids[found.pattern().as_usize()]);
                from = found.end();
            }
        }
        ids.extend(self.encode(&fence.removed(&rendered[from..]), plain)?);
        if !self.prefix.is_empty() && !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }
}

/// The text without fences, and where in it they stood.
fn unfenced(text: &str, fence: Fence) -> (String, Vec<usize>) {
    let (mut out, mut fences) = (String::with_capacity(text.len()), Vec::new());
    let mut parts = text.split(fence.0);
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        fences.push(out.len());
        out.push_str(part);
    }
    (out, fences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_are_taken_out_and_remembered() {
        let fence = Fence('\u{e001}');
        assert_eq!(unfenced("a\u{e001}b\u{e001}\u{e001}c", fence), ("abc".into(), vec![1, 2, 2]));
        assert_eq!(unfenced("plain", fence), ("plain".into(), vec![]));
        assert_eq!(fence.removed("\u{e001}a\u{e001}"), "a");
    }

    #[test]
    fn a_fence_occurs_nowhere_or_is_the_first() {
        assert_eq!(Fence::absent_from("a"), Fence('\u{fdd0}'));
        assert_eq!(Fence::absent_from("\u{fdd0}\u{fdd1}"), Fence('\u{fdd2}'));
        let all: String = CANDIDATES.into_iter().flatten().collect();
        assert_eq!(Fence::absent_from(&all), Fence('\u{fdd0}'));
    }

    #[test]
    fn names_are_found_by_how_they_begin() {
        let names = Beginnings::new(["<s>", "<start>", "["].map(|name| name.as_bytes().to_vec()).into_iter());
        assert!(names.has(b"<") && names.has(b"<s") && names.has(b"<star"));
        assert!(!names.has(b"<s>") && !names.has(b"[") && !names.has(b"s") && !names.has(b"<start>x"));
    }
}
