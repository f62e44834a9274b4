//! WordPiece vocabularies of GGUF files (`bert`), as objects of the `tokenizers` crate.
//!
//! The converter writes `▁` before what begins a word and nothing before what continues one, where BERT's own files have nothing and `##`.
//! Text is lower-cased and loses its accents, as llama.cpp has it for all of them.

use ahash::AHashMap;
use tokenizers::AddedToken;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;

use super::bpe::Pipeline;
use super::{GgufVocab, TokenKind, TokenizerError};

/// The longest word that is not unknown, in characters: BERT's own.
const LONGEST_WORD: usize = 100;

/// The tokens as BERT's own files have them.
pub(super) fn spelled(vocab: &GgufVocab, kinds: &[TokenKind]) -> Vec<String> {
    let spell = |(text, kind): (&String, &TokenKind)| match (kind, text.strip_prefix('▁')) {
        (TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte, Some(begins)) => begins.to_owned(),
        (TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte, None) => format!("##{text}"),
        (TokenKind::Control | TokenKind::Unknown | TokenKind::Unused, _) => text.clone(),
    };
    vocab.tokens.iter().zip(kinds).map(spell).collect()
}

/// Builds the pipeline for tokens that are spelled as BERT's own.
pub(super) fn pipeline(
    tokens: &[String],
    kinds: &[TokenKind],
    unknown: Option<u32>,
) -> Result<Pipeline, TokenizerError> {
    let bad = |e: tokenizers::Error| TokenizerError::BadVocabulary(e.to_string());
    let mut ids = AHashMap::with_capacity(tokens.len());
    for (id, text) in (0u32..).zip(tokens) {
        // The first of two alike is the one that text becomes.
        ids.entry(text.clone()).or_insert(id);
    }
    let named = |id: u32| tokens.get(id as usize).cloned();
    let unknown = unknown.and_then(named).unwrap_or_else(|| "[UNK]".to_owned());
    if !ids.contains_key(&unknown) {
        return Err(TokenizerError::BadVocabulary(format!(
            "there is no token {unknown} for what is unknown"
        )));
    }
    let model = WordPiece::builder()
        .vocab(ids)
        .unk_token(unknown)
        .continuing_subword_prefix("##".to_owned())
        .max_input_chars_per_word(LONGEST_WORD)
        .build()
        .map_err(bad)?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(BertNormalizer::default())).map_err(bad)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    let special = |(text, kind): (&String, &TokenKind)| {
        (*kind == TokenKind::Control).then(|| AddedToken::from(text.clone(), true).normalized(false))
    };
    tokenizer.add_tokens(tokens.iter().zip(kinds).filter_map(special)).map_err(bad)?;
    Ok(Pipeline::new(tokenizer))
}
