//! What can go wrong between a vocabulary and a list of ids.

/// Why a tokenizer could not be built or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The vocabulary is of a family kvant does not implement.
    #[error(
        "tokenizer model `{0}` is not supported; supported are `gpt2` (BPE) and `llama` (SentencePiece BPE)"
    )]
    UnsupportedModel(String),
    /// The byte-level BPE names a pre-tokenizer whose splitting rule is not known here.
    #[error(
        "pre-tokenizer `{0}` (tokenizer.ggml.pre) is not known, and a wrong one would silently change \
         every prompt; use a checkpoint with a tokenizer.json, or a file converted with a known name"
    )]
    UnknownPreTokenizer(String),
    /// The vocabulary contradicts itself.
    #[error("bad vocabulary: {0}")]
    BadVocabulary(String),
    /// A `tokenizer.json` or one of its companions cannot be used.
    #[error("{file}: {reason}")]
    BadFile {
        /// The file, by the name it has in a checkpoint.
        file: &'static str,
        /// What is wrong in it.
        reason: String,
    },
    /// The text cannot be encoded with this vocabulary.
    #[error("cannot encode the text: {0}")]
    Encode(String),
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {len} tokens")]
    UnknownId {
        /// The id asked for.
        id: u32,
        /// How many ids there are.
        len: usize,
    },
}
