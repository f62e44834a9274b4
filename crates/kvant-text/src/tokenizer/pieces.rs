//! The bytes every token stands for, as one table.
//!
//! Decoding is a lookup here for all vocabulary families, and so is a constraint that must know which tokens
//! continue a given text.

use super::{TokenKind, TokenizerError};
use kvant_model::byte_level::ByteAlphabet;

/// How a vocabulary spells the text of its ordinary tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Each byte is one character of GPT-2's alphabet.
    ByteLevel,
    /// UTF-8 with `▁` for a space, and `<0xNN>` for bytes.
    Sentence,
    /// UTF-8, `##` before what continues a word; the others begin one.
    WordPiece,
}

/// Token bytes back to back.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// (tokens): where each token's bytes end.
    ends: Vec<usize>,
    kinds: Vec<TokenKind>,
}

impl Pieces {
    /// The table for `tokens`, given by id with their kinds.
    pub(super) fn new<'a>(
        spelling: Spelling,
        tokens: impl IntoIterator<Item = (&'a str, TokenKind)>,
    ) -> Result<Self, TokenizerError> {
        let alphabet = ByteAlphabet::new();
        let mut table = Self { bytes: Vec::new(), ends: Vec::new(), kinds: Vec::new() };
        for (id, (text, kind)) in tokens.into_iter().enumerate() {
            match (kind, spelling) {
                (TokenKind::Byte, _) => table.bytes.push(byte_token(text).ok_or_else(|| {
                    TokenizerError::BadVocabulary(format!(
                        "token {id} is marked as a byte but reads `{text}`, not `<0xNN>`"
                    ))
                })?),
                (TokenKind::Normal | TokenKind::Unused, Spelling::ByteLevel) => {
                    alphabet.decode(text, &mut table.bytes);
                }
                (TokenKind::Normal | TokenKind::Unused | TokenKind::UserDefined, Spelling::Sentence) => {
                    table.bytes.extend_from_slice(text.replace('▁', " ").as_bytes());
                }
                (TokenKind::Normal | TokenKind::Unused, Spelling::WordPiece) => {
                    let continued = text.strip_prefix("##");
                    table.bytes.extend(continued.is_none().then_some(b' '));
                    table.bytes.extend_from_slice(continued.unwrap_or(text).as_bytes());
                }
                _ => table.bytes.extend_from_slice(text.as_bytes()),
            }
            table.ends.push(table.bytes.len());
            table.kinds.push(kind);
        }
        Ok(table)
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let index = id as usize;
        let end = *self.ends.get(index).ok_or(TokenizerError::UnknownId { id, len: self.len() })?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Ok(&self.bytes[start..end])
    }

    pub(super) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }
}

/// The byte a token of the form `<0xNN>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}
