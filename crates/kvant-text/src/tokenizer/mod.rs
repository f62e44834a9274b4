//! Text to token ids and back.
//!
//! A tokenizer is built from what a GGUF file says about its vocabulary ([`Tokenizer::from_gguf`]) or from the
//! `tokenizer.json` of a checkpoint ([`Tokenizer::from_hf`]). Byte-level BPE runs in the `tokenizers` crate,
//! SentencePiece vocabularies of GGUF files by our own joining of pieces; decoding is one table of bytes for all of them.
//!
//! **Plain text stays plain.** A user may type `<|im_end|>`; unless the caller asks with
//! [`EncodeOptions::parse_special`], that is encoded as the characters it is. Text that a chat template wrote
//! is encoded with [`Tokenizer::encode_chat`].
//!
//! ```
//! use kvant_text::tokenizer::{EncodeOptions, GgufVocab, TokenKind, Tokenizer, Utf8Stream};
//!
//! let tokens = ["<unk>", "<s>", "</s>", "▁", "h", "i", "hi", "▁hi"];
//! let vocab = GgufVocab {
//!     model: "llama".into(),
//!     tokens: tokens.map(String::from).to_vec(),
//!     scores: vec![0.0, 0.0, 0.0, -3.0, -4.0, -5.0, -1.0, -2.0],
//!     kinds: [2, 3, 3, 1, 1, 1, 1, 1].map(TokenKind::from_gguf).to_vec(),
//!     ..GgufVocab::default()
//! };
//! let tokenizer = Tokenizer::from_gguf(&vocab)?;
//! let ids = tokenizer.encode("hi hi", EncodeOptions { add_special: true, parse_special: false })?;
//! assert_eq!(ids, [1, 7, 7]);
//! assert_eq!(tokenizer.decode(&ids)?, "hi hi");
//!
//! let mut stream = Utf8Stream::new();
//! let text: String = ids.iter().map(|&id| stream.push(tokenizer.text_bytes(id).unwrap())).collect();
//! assert_eq!(text, " hi hi");
//! # Ok::<(), kvant_text::tokenizer::TokenizerError>(())
//! ```

mod bpe;
mod checkpoint;
mod control;
mod ending;
mod error;
mod folded;
mod hf;
mod metadata;
mod pieces;
mod pre;
mod spm;
mod stream;
mod vocab;
mod wpm;

pub use control::Fence;
pub use error::TokenizerError;
pub use hf::HfFiles;
pub use pre::{pre_tokenizer_name, pre_tokenizer_splits};
pub use stream::Utf8Stream;
pub use vocab::{GgufVocab, TokenKind};

use control::ControlNames;
use pieces::{Pieces, Spelling};
use std::sync::OnceLock;

/// How a text is to be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Put the tokens around it that the model expects around a whole text (often a beginning-of-text token).
    pub add_special: bool,
    /// Recognise control tokens in it. Leave it off for text that a user wrote.
    pub parse_special: bool,
}

enum Encoder {
    Pipeline(Box<bpe::Pipeline>),
    Spm(Box<spm::SpmEncoder>),
}

/// A vocabulary with its rules, ready to encode and decode.
pub struct Tokenizer {
    encoder: Encoder,
    pieces: Pieces,
    /// Put before a whole text.
    prefix: Vec<u32>,
    /// Put after a whole text.
    suffix: Vec<u32>,
    /// Put between the texts of a pair; none where the vocabulary joins no pairs.
    between: Option<Vec<u32>>,
    /// A word of any length may become one token for what is unknown.
    loses_words: bool,
    /// Encoding puts a space before the text, which decoding takes away again.
    strips_leading_space: bool,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Sorted.
    end_of_generation: Vec<u32>,
    guesses_splits: bool,
    /// Made when a text is first looked through for them.
    control_names: OnceLock<Option<ControlNames>>,
}

impl Tokenizer {
    /// Builds the tokenizer a GGUF file describes.
    ///
    /// # Errors
    /// Vocabulary families and pre-tokenizers that are not implemented are refused by name, and so is a
    /// vocabulary that contradicts itself.
    pub fn from_gguf(vocab: &GgufVocab) -> Result<Self, TokenizerError> {
        vocab.check()?;
        let kinds = vocab.kinds();
        match vocab.model.as_str() {
            "gpt2" => Self::from_gguf_bpe(vocab, &kinds),
            "llama" => Self::from_gguf_spm(vocab, &kinds),
            "bert" => Self::from_gguf_word_piece(vocab, &kinds),
            other => Err(TokenizerError::UnsupportedModel(other.to_owned())),
        }
    }

    fn from_gguf_bpe(vocab: &GgufVocab, kinds: &[TokenKind]) -> Result<Self, TokenizerError> {
        let name = vocab.pre.as_deref().unwrap_or("default");
        let pre =
            pre::pre_tokenizer(name).ok_or_else(|| TokenizerError::UnknownPreTokenizer(name.to_owned()))?;
        let encoder = Encoder::Pipeline(Box::new(bpe::from_gguf(vocab, kinds, pre)?));
        let add_bos = vocab.add_bos.unwrap_or(pre.add_bos);
        Self::assemble(encoder, Spelling::ByteLevel, vocab, kinds, add_bos, false)
    }

    fn from_gguf_spm(vocab: &GgufVocab, kinds: &[TokenKind]) -> Result<Self, TokenizerError> {
        // SentencePiece's own numbering, for files that name no ids.
        let conventional = |id: u32, kind| (kinds.get(id as usize) == Some(&kind)).then_some(id);
        let named = GgufVocab {
            unknown: vocab.unknown.or(conventional(0, TokenKind::Unknown)),
            bos: vocab.bos.or(conventional(1, TokenKind::Control)),
            eos: vocab.eos.or(conventional(2, TokenKind::Control)),
            ..vocab.clone()
        };
        let add_space = vocab.add_space_prefix.unwrap_or(true);
        let encoder = Encoder::Spm(Box::new(spm::SpmEncoder::new(&named, kinds, named.unknown, add_space)?));
        let add_bos = vocab.add_bos.unwrap_or(true);
        Self::assemble(encoder, Spelling::Sentence, &named, kinds, add_bos, add_space)
    }

    fn from_gguf_word_piece(vocab: &GgufVocab, kinds: &[TokenKind]) -> Result<Self, TokenizerError> {
        let tokens = wpm::spelled(vocab, kinds);
        let named = |name: &str| {
            let id = tokens.iter().position(|text| text == name)?;
            u32::try_from(id).ok()
        };
        // What stands around every text, by BERT's names where the file names no ids.
        let (first, last) = (vocab.bos.or(named("[CLS]")), vocab.separator.or(vocab.eos).or(named("[SEP]")));
        let pipeline = wpm::pipeline(&tokens, kinds, vocab.unknown)?;
        let spelled = GgufVocab { tokens, bos: first, eos: last, ..vocab.clone() };
        let encoder = Encoder::Pipeline(Box::new(pipeline));
        let assembled = Self::assemble(encoder, Spelling::WordPiece, &spelled, kinds, true, true)?;
        let suffix: Vec<u32> = last.into_iter().collect();
        Ok(Self { between: Some(suffix.clone()), suffix, loses_words: true, ..assembled })
    }

    fn assemble(
        encoder: Encoder,
        spelling: Spelling,
        vocab: &GgufVocab,
        kinds: &[TokenKind],
        add_bos: bool,
        strips_leading_space: bool,
    ) -> Result<Self, TokenizerError> {
        let texts = || vocab.tokens.iter().map(String::as_str).zip(kinds.iter().copied());
        let named = [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten();
        let tokens = (0u32..).zip(texts()).map(|(id, (text, kind))| (id, text, kind));
        let add_eos = vocab.add_eos.unwrap_or(false);
        Ok(Self {
            encoder,
            pieces: Pieces::new(spelling, texts())?,
            prefix: vocab.bos.filter(|_| add_bos).into_iter().collect(),
            suffix: vocab.eos.filter(|_| add_eos).into_iter().collect(),
            between: None,
            loses_words: false,
            strips_leading_space,
            bos: vocab.bos,
            eos: vocab.eos,
            end_of_generation: ending::end_of_generation(named, tokens),
            guesses_splits: vocab.model == "gpt2" && vocab.pre.is_none(),
            control_names: OnceLock::new(),
        })
    }

    /// True if the file does not say how text is cut into words before byte pairs are merged. The rule that
    /// llama.cpp falls back on is then used, and the model may see text cut in other places than in training.
    pub fn guesses_splits(&self) -> bool {
        self.guesses_splits
    }

    /// The ids of `text`.
    ///
    /// # Errors
    /// If the vocabulary cannot express the text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizerError> {
        let ids = match &self.encoder {
            Encoder::Pipeline(pipeline) => pipeline.encode(text, options.parse_special)?,
            Encoder::Spm(spm) => spm.encode(text, options.parse_special)?,
        };
        if !options.add_special {
            return Ok(ids);
        }
        Ok([self.prefix.as_slice(), &ids, &self.suffix].concat())
    }

    /// The ids of a pair of texts, as models read it that compare the two, and where the second begins. What looks like a control token
    /// in them stays plain text.
    ///
    /// # Errors
    /// If the vocabulary joins no pairs, or cannot express a text.
    pub fn encode_pair(&self, first: &str, second: &str) -> Result<(Vec<u32>, usize), TokenizerError> {
        let Some(between) = &self.between else {
            return Err(TokenizerError::Encode(
                "its tokenizer does not say how two texts make a pair".into(),
            ));
        };
        let plain = |text| self.encode(text, EncodeOptions::default());
        let mut ids = [self.prefix.as_slice(), &plain(first)?, between].concat();
        let begins = ids.len();
        ids.extend(plain(second)?);
        ids.extend(&self.suffix);
        Ok((ids, begins))
    }

    /// Whether a word of any length may become one token, for what is unknown: the length of a text then says nothing of its tokens.
    pub fn loses_words(&self) -> bool {
        self.loses_words
    }

    /// The ids of what a chat template wrote: control tokens are recognised, and the beginning-of-text token is
    /// added where the model wants one and the template did not write it.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(rendered, EncodeOptions { add_special: false, parse_special: true })?;
        if !self.prefix.is_empty() && !ids.starts_with(&self.prefix) {
            ids.splice(0..0, self.prefix.iter().copied());
        }
        Ok(ids)
    }

    /// The text of `ids`, without control tokens; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// If an id is outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.text_bytes(id)?);
        }
        let bytes = match bytes.strip_prefix(b" ") {
            Some(rest) if self.strips_leading_space => rest,
            _ => &bytes,
        };
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The bytes `id` adds to a text: none for a control token. Feed them to a [`Utf8Stream`] to print a
    /// generation as it grows.
    ///
    /// # Errors
    /// If the id is outside the vocabulary.
    pub fn text_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let bytes = self.pieces.bytes(id)?;
        let is_text = !matches!(self.pieces.kind(id), Some(TokenKind::Control | TokenKind::Unknown));
        Ok(if is_text { bytes } else { &[] })
    }

    /// The bytes `id` stands for, with control tokens by their names.
    ///
    /// # Errors
    /// If the id is outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], TokenizerError> {
        self.pieces.bytes(id)
    }

    /// The role of a token, `None` outside the vocabulary.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.pieces.kind(id)
    }

    /// One more than the highest id.
    pub fn vocab_len(&self) -> usize {
        self.pieces.len()
    }

    /// What encoding with `add_special` puts before a text: the beginning-of-text token where the model wants
    /// one, nothing where it does not.
    pub fn prefix(&self) -> &[u32] {
        &self.prefix
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The end-of-text token. Generation has more ends than this one: see
    /// [`is_end_of_generation`](Self::is_end_of_generation).
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Every token that ends a generation, in order of id.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// True if `id` ends a generation.
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.end_of_generation.binary_search(&id).is_ok()
    }

    /// The name of a token as a chat template writes it: `bos_token` and the like.
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.pieces.bytes(id).ok().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }
}
