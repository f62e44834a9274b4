//! Byte-level BPE vocabularies, as objects of the `tokenizers` crate.

use std::collections::HashSet;
use std::sync::OnceLock;

use ahash::AHashMap;
use tokenizers::models::bpe::BPE;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::pre::PreTokenizer;
use super::{GgufVocab, TokenKind, TokenizerError};

/// The longest run of white space that is encoded, in characters.
///
/// The splitting rules look ahead over white space with a backtracking engine whose stack holds a million
/// states; beyond it the engine gives up and the `tokenizers` crate would silently leave the rest of the text
/// unsplit.
const MAX_SPACE_RUN: usize = 500_000;

/// A pipeline of the `tokenizers` crate, with and without the recognition of control tokens.
pub(super) struct Pipeline {
    with_special: tokenizers::Tokenizer,
    /// The same pipeline reading control tokens as text. Made when first needed, since it is a second copy of
    /// the vocabulary and a chat never needs it.
    plain: OnceLock<tokenizers::Tokenizer>,
}

impl Pipeline {
    pub(super) fn new(with_special: tokenizers::Tokenizer) -> Self {
        Self { with_special, plain: OnceLock::new() }
    }

    pub(super) fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TokenizerError> {
        refuse_endless_space(text)?;
        let tokenizer = if parse_special {
            &self.with_special
        } else {
            self.plain.get_or_init(|| {
                let mut plain = self.with_special.clone();
                plain.set_encode_special_tokens(true);
                plain
            })
        };
        let encoding =
            tokenizer.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }
}

fn refuse_endless_space(text: &str) -> Result<(), TokenizerError> {
    if text.len() <= MAX_SPACE_RUN {
        return Ok(());
    }
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        if run > MAX_SPACE_RUN {
            return Err(TokenizerError::Encode(format!(
                "it holds more than {MAX_SPACE_RUN} white-space characters in a row"
            )));
        }
    }
    Ok(())
}

/// Builds the pipeline for a `gpt2` vocabulary.
pub(super) fn from_gguf(
    vocab: &GgufVocab,
    kinds: &[TokenKind],
    pre: &PreTokenizer,
) -> Result<Pipeline, TokenizerError> {
    let ids = token_ids(vocab)?;
    let merges = merges(vocab)?;
    let model =
        BPE::builder().vocab_and_merges(ids, merges).ignore_merges(pre.ignore_merges).build().map_err(
            |e| unknown_merge(vocab).unwrap_or_else(|| TokenizerError::BadVocabulary(e.to_string())),
        )?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(splitter(pre)?));
    let added = vocab.tokens.iter().zip(kinds).filter_map(|(text, kind)| {
        let special = match kind {
            TokenKind::Control | TokenKind::Unknown => true,
            TokenKind::UserDefined => false,
            _ => return None,
        };
        Some(AddedToken::from(text.clone(), special).normalized(false))
    });
    tokenizer.add_tokens(added).map_err(|e| TokenizerError::BadVocabulary(e.to_string()))?;
    Ok(Pipeline::new(tokenizer))
}

fn token_ids(vocab: &GgufVocab) -> Result<AHashMap<String, u32>, TokenizerError> {
    let mut ids = AHashMap::with_capacity(vocab.tokens.len());
    for (id, text) in (0u32..).zip(&vocab.tokens) {
        if let Some(first) = ids.insert(text.clone(), id) {
            return Err(TokenizerError::BadVocabulary(format!("tokens {first} and {id} are both `{text}`")));
        }
    }
    Ok(ids)
}

/// The merges as pairs. None makes a longer text than the longest token, which the BPE builder takes for granted; that they join two
/// tokens into a third is what it checks itself.
fn merges(vocab: &GgufVocab) -> Result<Vec<(String, String)>, TokenizerError> {
    if vocab.merges.is_empty() {
        return Err(TokenizerError::BadVocabulary(
            "tokenizer.ggml.merges is missing, which a gpt2 vocabulary cannot do without".into(),
        ));
    }
    let longest = vocab.tokens.iter().map(String::len).max().unwrap_or(0);
    let pair = |(rank, merge): (usize, &String)| {
        // A token never holds a bare space in the byte-level spelling.
        let (left, right) = merge.split_once(' ').ok_or_else(|| bad_merge(rank, merge, "is not a pair"))?;
        if left.len() + right.len() > longest {
            return Err(bad_merge(rank, merge, NO_TOKEN));
        }
        Ok((left.to_owned(), right.to_owned()))
    };
    vocab.merges.iter().enumerate().map(pair).collect()
}

const NO_TOKEN: &str = "names or makes a token that is not in the vocabulary";

fn bad_merge(rank: usize, merge: &str, why: &str) -> TokenizerError {
    TokenizerError::BadVocabulary(format!("tokenizer.ggml.merges[{rank}] `{merge}` {why}"))
}

/// The first merge of tokens that are not there.
fn unknown_merge(vocab: &GgufVocab) -> Option<TokenizerError> {
    let tokens: HashSet<&str> = vocab.tokens.iter().map(String::as_str).collect();
    let is_unknown = |merge: &str| {
        let Some((left, right)) = merge.split_once(' ') else { return true };
        !tokens.contains(left) || !tokens.contains(right) || !tokens.contains(&*format!("{left}{right}"))
    };
    let (rank, merge) = vocab.merges.iter().enumerate().find(|(_, merge)| is_unknown(merge))?;
    Some(bad_merge(rank, merge, NO_TOKEN))
}

/// The splits of `pre` one after another, then bytes as characters.
fn splitter(pre: &PreTokenizer) -> Result<PreTokenizerWrapper, TokenizerError> {
    let mut stages: Vec<PreTokenizerWrapper> = Vec::with_capacity(pre.splits.len() + 1);
    for regex in pre.splits {
        let pattern = SplitPattern::Regex((*regex).to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| TokenizerError::BadVocabulary(format!("split rule `{regex}`: {e}")))?;
        stages.push(split.into());
    }
    stages.push(ByteLevel::new(false, false, false).into());
    Ok(Sequence::new(stages).into())
}
