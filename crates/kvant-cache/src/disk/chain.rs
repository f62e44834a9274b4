//! Names of prefixes: each step is named by the name of what comes before it and its own tokens.

use crate::snapshot::{Digest, Signature};
use crate::steps::Steps;
use sha2::{Digest as _, Sha256};
use std::ops::Range;

/// The name of nothing, for caches with this signature.
pub(super) fn root(signature: &Signature) -> Digest {
    Sha256::new().chain_update(b"kvant prefix 1\0").chain_update(signature).finalize().into()
}

pub(super) fn name(before: &Digest, tokens: &[u32]) -> Digest {
    let mut hash = Sha256::new().chain_update(before);
    tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
    hash.finalize().into()
}

/// A step of a prefix.
pub(super) struct Step {
    /// The name of everything before it.
    pub before: Digest,
    /// The name of everything up to its end.
    pub name: Digest,
    /// Its tokens.
    pub range: Range<usize>,
}

/// The whole steps of some tokens.
pub(super) fn steps(root: Digest, steps: Steps, tokens: &[u32]) -> impl Iterator<Item = Step> {
    let (mut at, mut before) = (0, root);
    std::iter::from_fn(move || {
        let range = at..at + steps.size(at);
        let step = Step { before, name: name(&before, tokens.get(range.clone())?), range };
        (at, before) = (step.range.end, step.name);
        Some(step)
    })
}

/// How the file of a prefix is called: nothing of it can be chosen from outside.
pub(super) fn file_name(name: &Digest) -> String {
    let mut text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    text.push_str(EXTENSION);
    text
}

const EXTENSION: &str = ".kvant";

/// Hex digits of the root in the names of other files.
const ROOT_DIGITS: usize = 16;

/// How the file is called that lies beside the prefixes of a root, by what is in it.
pub(super) fn name_beside(root: &Digest, kind: &str) -> String {
    format!("{}.{kind}", &file_name(root)[..ROOT_DIGITS])
}

pub(super) fn is_name_beside(text: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.split_once('.').is_some_and(|(root, kind)| {
        root.len() == ROOT_DIGITS
            && root.bytes().all(is_hex)
            && kind.bytes().all(|byte| byte.is_ascii_lowercase())
    })
}

/// The name behind a file name, if it is one of ours.
pub(super) fn parse_file_name(text: &str) -> Option<Digest> {
    let hex = text.strip_suffix(EXTENSION)?;
    let is_hex = hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok();
    let mut name = [0; 32];
    for (at, place) in name.iter_mut().enumerate().filter(|_| is_hex) {
        *place = byte(at)?;
    }
    is_hex.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_everything_before() {
        let whole = Steps { sinks: 2, page: 4 };
        let names = |signature: u8, tokens: &[u32]| -> Vec<Digest> {
            steps(root(&[signature; 32]), whole, tokens).map(|step| step.name).collect()
        };
        let tokens: Vec<u32> = (0..13).collect();
        let first = names(1, &tokens);
        assert_eq!((first.len(), names(1, &tokens[..5]).len()), (2, 0));
        assert_eq!(names(1, &tokens[..10]), first);
        let mut other = tokens.clone();
        other[0] = 9;
        assert!(names(1, &other).iter().zip(&first).all(|(a, b)| a != b));
        assert!(names(2, &tokens).iter().zip(&first).all(|(a, b)| a != b));
        let ranges: Vec<_> = steps(root(&[1; 32]), whole, &tokens).map(|step| step.range).collect();
        assert_eq!(ranges, [0..6, 6..10]);
    }

    #[test]
    fn only_our_own_file_names_are_names() {
        let name = root(&[7; 32]);
        assert_eq!(parse_file_name(&file_name(&name)), Some(name));
        let upper = file_name(&name).to_uppercase();
        for text in ["", ".kvant", "notes.kvant", &upper, &file_name(&name)[1..], "é.kvant"] {
            assert_eq!(parse_file_name(text), None, "{text}");
        }
    }
}
