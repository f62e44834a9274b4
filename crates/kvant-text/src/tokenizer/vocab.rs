//! The vocabulary as a GGUF file states it, before anything is built from it.

use super::TokenizerError;

/// The role of a token, with the numbers GGUF gives it in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for text that no other token covers.
    Unknown,
    /// Structure rather than text (`<|im_end|>`): never produced from plain text.
    Control,
    /// Text that is always kept whole, wherever it occurs.
    UserDefined,
    /// Listed, but never produced.
    Unused,
    /// One raw byte, written `<0xNN>`.
    Byte,
}

impl TokenKind {
    /// The kind for GGUF's number; numbers it does not define count as [`TokenKind::Normal`].
    pub fn from_gguf(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Everything under `tokenizer.ggml.*` that building a tokenizer needs.
///
/// Absent keys are `None` or empty; the defaults each vocabulary family gives them are applied by
/// [`Tokenizer::from_gguf`](super::Tokenizer::from_gguf), not by whoever fills this in.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, …
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer of a `gpt2` vocabulary.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id; empty where the file has none.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id; empty where the file has none.
    pub kinds: Vec<TokenKind>,
    /// `tokenizer.ggml.merges`, best first, each `left right`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.seperator_token_id`, spelled as it is there.
    pub separator: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// White space after a token of structure is not part of the text, as in the SentencePiece vocabulary of Phi 3.
    /// No key says so; the architecture does.
    pub strips_after_structure: bool,
}

impl GgufVocab {
    /// Refuses lists of different lengths and ids that name no token.
    pub(super) fn check(&self) -> Result<(), TokenizerError> {
        let len = self.tokens.len();
        if len == 0 {
            return Err(bad("tokenizer.ggml.tokens is empty".into()));
        }
        if u32::try_from(len).is_err() {
            return Err(bad(format!("{len} tokens do not fit 32-bit ids")));
        }
        for (key, found) in [("scores", self.scores.len()), ("token_type", self.kinds.len())] {
            if found != 0 && found != len {
                return Err(bad(format!("tokenizer.ggml.{key} has {found} entries for {len} tokens")));
            }
        }
        let ids = [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unknown),
            ("padding", self.padding),
            ("seperator", self.separator),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|&id| id as usize >= len) {
                return Err(bad(format!("tokenizer.ggml.{key}_token_id is {id}, of {len} tokens")));
            }
        }
        if let Some(id) = self.scores.iter().position(|s| s.is_nan()) {
            return Err(bad(format!("tokenizer.ggml.scores[{id}] is not a number")));
        }
        Ok(())
    }

    /// The kind of each token; all ordinary where the file does not say.
    pub(super) fn kinds(&self) -> Vec<TokenKind> {
        if self.kinds.is_empty() { vec![TokenKind::Normal; self.tokens.len()] } else { self.kinds.clone() }
    }
}

fn bad(reason: String) -> TokenizerError {
    TokenizerError::BadVocabulary(reason)
}
