//! Tokenizers from the files of a Hugging Face checkpoint.

use serde_json::Value;
use tokenizers::models::ModelWrapper;

use super::bpe::Pipeline;
use super::pieces::{Pieces, Spelling, byte_token};
use super::{Encoder, TokenKind, Tokenizer, TokenizerError, ending};

/// More ids than any vocabulary has: bounds the tables an id in a file can ask for.
const MAX_VOCAB: usize = 1 << 24;

/// The text of the files that make a tokenizer; only the first is required.
#[derive(Debug, Clone, Copy, Default)]
pub struct HfFiles<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a str,
    /// `tokenizer_config.json`: names the special tokens.
    pub tokenizer_config: Option<&'a str>,
    /// `generation_config.json`: names the ids that end a generation.
    pub generation_config: Option<&'a str>,
    /// `config.json`: names them too, in older checkpoints.
    pub config: Option<&'a str>,
}

impl Tokenizer {
    /// Builds the tokenizer of a checkpoint.
    ///
    /// # Errors
    /// If a file is malformed, or decodes in a way that is neither byte-level nor SentencePiece's.
    pub fn from_hf(files: HfFiles<'_>) -> Result<Self, TokenizerError> {
        let json = parse("tokenizer.json", files.tokenizer)?;
        check_merges(&json)?;
        let decoding = Decoding::of(&json["decoder"])?;
        let mut inner: tokenizers::Tokenizer =
            files.tokenizer.parse().map_err(|e: tokenizers::Error| bad("tokenizer.json", e))?;
        // Settings of whoever trained the model, which would cut or stretch a prompt in silence.
        inner.with_truncation(None).map_err(|e| bad("tokenizer.json", e))?.with_padding(None);
        let tokens = token_table(&inner)?;

        let tokenizer_config = parse_optional("tokenizer_config.json", files.tokenizer_config)?;
        let generation_config = parse_optional("generation_config.json", files.generation_config)?;
        let config = parse_optional("config.json", files.config)?;
        let id_of = |key: &str| special_name(&tokenizer_config[key]).and_then(|name| inner.token_to_id(name));
        let (bos, eos) = (id_of("bos_token"), id_of("eos_token"));

        let (mut prefix, suffix) = surroundings(&inner)?;
        let between = between(&inner, &prefix, &suffix)?;
        let loses_words =
            matches!(inner.get_model(), ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_));
        if prefix.is_empty() && tokenizer_config["add_bos_token"] == Value::Bool(true) {
            prefix.extend(bos);
        }
        let in_vocab = |id: &u32| (*id as usize) < tokens.len();
        let named = [&generation_config["eos_token_id"], &config["eos_token_id"]];
        let named = named.into_iter().flat_map(ids).chain(eos).filter(in_vocab);
        let listed = (0u32..).zip(&tokens).map(|(id, (text, kind))| (id, text.as_str(), *kind));
        Ok(Self {
            end_of_generation: ending::end_of_generation(named, listed),
            guesses_splits: false,
            control_names: std::sync::OnceLock::new(),
            pieces: Pieces::new(decoding.spelling, tokens.iter().map(|(text, kind)| (text.as_str(), *kind)))?,
            encoder: Encoder::Pipeline(Box::new(Pipeline::new(inner))),
            prefix,
            suffix,
            between,
            loses_words,
            strips_leading_space: decoding.strips_leading_space,
            bos,
            eos,
        })
    }
}

fn bad(file: &'static str, reason: impl ToString) -> TokenizerError {
    TokenizerError::BadFile { file, reason: reason.to_string() }
}

fn parse(file: &'static str, text: &str) -> Result<Value, TokenizerError> {
    serde_json::from_str(text).map_err(|e| bad(file, e))
}

fn parse_optional(file: &'static str, text: Option<&str>) -> Result<Value, TokenizerError> {
    text.map_or(Ok(Value::Null), |text| parse(file, text))
}

/// A special token is named by its text, or by an object that holds it.
fn special_name(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// One id or a list of them.
fn ids(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

/// Refuses merges that are longer than every token: the `tokenizers` crate would index past its buffer.
fn check_merges(json: &Value) -> Result<(), TokenizerError> {
    let model = &json["model"];
    let (Some(vocab), Some(merges)) = (model["vocab"].as_object(), model["merges"].as_array()) else {
        return Ok(());
    };
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or("").len();
    let longest = vocab.keys().map(String::len).max().unwrap_or(0);
    for (rank, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(text) => text.split_once(' '),
            Value::Array(pair) if pair.len() == 2 => pair[0].as_str().zip(pair[1].as_str()),
            _ => None,
        };
        let fits = pair.is_some_and(|(a, b)| b.len() >= prefix && a.len() + b.len() - prefix <= longest);
        if !fits {
            return Err(bad(
                "tokenizer.json",
                format!("model.merges[{rank}] joins no two tokens into a third"),
            ));
        }
    }
    Ok(())
}

/// What a `decoder` entry does, as far as single tokens are concerned.
struct Decoding {
    spelling: Spelling,
    strips_leading_space: bool,
}

impl Decoding {
    fn of(decoder: &Value) -> Result<Self, TokenizerError> {
        let steps = match decoder["type"].as_str() {
            Some("Sequence") => decoder["decoders"].as_array().map_or(&[][..], Vec::as_slice),
            _ => std::slice::from_ref(decoder),
        };
        let has = |name: &str| steps.iter().any(|step| step["type"] == name);
        let strips = steps.iter().any(|step| match step["type"].as_str() {
            Some("Strip") => step["content"] == " " && step["start"].as_u64() == Some(1),
            Some("Metaspace") => step["prepend_scheme"] != "never" && step["add_prefix_space"] != false,
            _ => false,
        });
        if has("ByteLevel") {
            Ok(Self { spelling: Spelling::ByteLevel, strips_leading_space: false })
        } else if has("ByteFallback") || has("Metaspace") {
            Ok(Self { spelling: Spelling::Sentence, strips_leading_space: strips })
        } else if steps.iter().any(|step| step["type"] == "WordPiece" && step["prefix"] == "##") {
            Ok(Self { spelling: Spelling::WordPiece, strips_leading_space: true })
        } else {
            let name = decoder["type"].as_str().unwrap_or("none");
            Err(bad(
                "tokenizer.json",
                format!(
                    "decoder `{name}` is not supported; ByteLevel, ByteFallback, Metaspace and WordPiece are"
                ),
            ))
        }
    }
}

/// Every id's text and kind; ids that nothing uses are empty and unused.
fn token_table(inner: &tokenizers::Tokenizer) -> Result<Vec<(String, TokenKind)>, TokenizerError> {
    let added = inner.get_added_tokens_decoder();
    let byte_fallback = match inner.get_model() {
        ModelWrapper::BPE(bpe) => bpe.byte_fallback,
        ModelWrapper::Unigram(unigram) => unigram.byte_fallback(),
        _ => false,
    };
    let vocab = inner.get_vocab(true);
    let highest = vocab.values().copied().max().ok_or_else(|| bad("tokenizer.json", "no tokens"))? as usize;
    if highest >= MAX_VOCAB {
        return Err(bad("tokenizer.json", format!("token id {highest} is beyond any vocabulary")));
    }
    let mut table = vec![(String::new(), TokenKind::Unused); highest + 1];
    for (text, id) in vocab {
        let kind = match added.get(&id) {
            Some(token) if token.special => TokenKind::Control,
            Some(_) => TokenKind::UserDefined,
            None if byte_fallback && byte_token(&text).is_some() => TokenKind::Byte,
            None => TokenKind::Normal,
        };
        table[id as usize] = (text, kind);
    }
    Ok(table)
}

/// What the post-processor puts before and after a text.
fn surroundings(inner: &tokenizers::Tokenizer) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    let encode = |special: bool| {
        let encoding = inner.encode_fast("a", special).map_err(|e| bad("tokenizer.json", e))?;
        Ok::<_, TokenizerError>(encoding.get_ids().to_vec())
    };
    let (bare, dressed) = (encode(false)?, encode(true)?);
    if bare.is_empty() {
        return Ok((dressed, Vec::new()));
    }
    let start = dressed.windows(bare.len()).position(|window| window == bare).unwrap_or(0);
    let end = (start + bare.len()).min(dressed.len());
    Ok((dressed[..start].to_vec(), dressed[end..].to_vec()))
}

/// What the post-processor puts between the texts of a pair; `None` where a pair does not have both texts as they are alone.
fn between(
    inner: &tokenizers::Tokenizer,
    prefix: &[u32],
    suffix: &[u32],
) -> Result<Option<Vec<u32>>, TokenizerError> {
    let failed = |e: tokenizers::Error| bad("tokenizer.json", e);
    let text = inner.encode_fast("a", false).map_err(failed)?.get_ids().to_vec();
    let pair = inner.encode_fast(("a", "a"), true).map_err(failed)?.get_ids().to_vec();
    let (before, after) = ([prefix, &text].concat(), [&text, suffix].concat());
    let between = pair.strip_prefix(before.as_slice()).and_then(|rest| rest.strip_suffix(after.as_slice()));
    Ok(between.map(<[u32]>::to_vec))
}
