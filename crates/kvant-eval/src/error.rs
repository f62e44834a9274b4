//! What can keep a measurement from being made.

use kvant_cache::StateError;
use kvant_codec::{BuildError, CodecError};
use kvant_engine::KvUnsupported;
use kvant_engine::memory::bytes;
use kvant_model::ForwardError;
use kvant_text::tokenizer::TokenizerError;
use std::path::PathBuf;

/// A measurement that cannot be made, or must not be believed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The text file cannot be read.
    #[error("{}: cannot read the text: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text file holds something other than UTF-8.
    #[error("{}: is not UTF-8 text: byte {byte} begins no character; convert it first", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// The first byte that is not text.
        byte: usize,
    },
    /// What the reference holds cannot be put into the cache that is compared with it.
    #[error("the reference's pages cannot be brought over: {reason}")]
    Moved {
        /// Why not.
        reason: String,
    },
    /// Not enough text for the windows asked for.
    #[error(
        "the text has {tokens} tokens, and {chunks} × {ctx} need {needed}; {}",
        advice(*tokens, *ctx)
    )]
    TextTooShort {
        /// Tokens there are.
        tokens: usize,
        /// Tokens needed.
        needed: usize,
        /// Length of a window.
        ctx: usize,
        /// Windows asked for.
        chunks: usize,
    },
    /// A text to calibrate on that is shorter than a window.
    #[error(
        "the text has {tokens} tokens, fewer than a window of {window}: give a longer text, or calibrate on fewer tokens"
    )]
    CalibrationTextTooShort {
        /// Tokens there are.
        tokens: usize,
        /// Length of a window.
        window: usize,
    },
    /// A window without a token to score, or no window at all.
    #[error("{chunks} windows of {ctx} tokens score nothing: take at least 1 window of at least {least}")]
    NothingToScore {
        /// Windows asked for.
        chunks: usize,
        /// Length of a window.
        ctx: usize,
        /// The shortest window that can be scored.
        least: usize,
    },
    /// Windows longer than the model can follow.
    #[error("a context of {ctx} tokens is beyond the {limit} the model was made for; lower --ctx")]
    ContextTooLong {
        /// Length of a window.
        ctx: usize,
        /// The model's own limit.
        limit: usize,
    },
    /// Logits that are no numbers, or that rule out a token which came.
    #[error(
        "window {window}, position {position}: the logits give the next token no finite probability \
         (NaN or infinite values); the model file is damaged or the computation overflowed"
    )]
    NotFinite {
        /// The window, from 0.
        window: usize,
        /// The position whose logits they are, from 0.
        position: usize,
    },
    /// A kept reference that changed while it was read.
    #[error("the predictions kept on disk {reason}: start again, and they are computed anew")]
    KeptReference {
        /// What is wrong with them.
        reason: String,
    },
    /// A context too short for what a task puts there.
    #[error("a context of {context} tokens is too short for this task; raise --ctx")]
    ContextTooShort {
        /// Tokens.
        context: usize,
    },
    /// A prompt or an answer without a token.
    #[error("a question or one of its answers is empty: there is nothing to predict")]
    EmptyQuestion,
    /// A file of questions with something else in it.
    #[error("line {line} is not a question: {reason}; `kvant eval --help` shows what a line looks like")]
    NoQuestion {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An answer could not be generated.
    #[error("no answer could be generated: {reason}")]
    Generation {
        /// Why.
        reason: String,
    },
    /// Programs that a model wrote cannot be run safely.
    #[error("no sandbox for programs that a model writes: {reason}; --task code runs none without one")]
    Sandbox {
        /// Why not.
        reason: String,
    },
    /// A measurement of speed without runs.
    #[error("there is nothing to time: no prompt and no generation, no depth, or no repetition")]
    NothingToTime,
    /// A depth the model has no positions for.
    #[error(
        "a depth of {depth} tokens needs {needed} positions, and the model has learned {limit}; lower the depth"
    )]
    TooDeep {
        /// Tokens of context.
        depth: usize,
        /// Positions with what is added to it.
        needed: usize,
        /// The model's own limit.
        limit: usize,
    },
    /// Contexts that do not fit in memory.
    #[error(
        "{contexts} contexts at once need {}, and {} are available; name fewer depths or caches, or measure \
         them one after another",
        bytes(*needed), bytes(*available)
    )]
    TooLarge {
        /// How many.
        contexts: usize,
        /// Bytes of all.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// No cache keeps keys and values that way.
    #[error(transparent)]
    Kv(#[from] KvUnsupported),
    /// A context that is longer than its cache, or numbers that the cache cannot keep.
    #[error(transparent)]
    State(#[from] StateError),
    /// A codec that cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A page that cannot be decoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The text cannot be expressed in the model's vocabulary.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model refused a pass.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

fn advice(tokens: usize, ctx: usize) -> String {
    match tokens / ctx {
        0 => "give a longer text or lower --ctx".to_owned(),
        fits => format!("give a longer text or --chunks {fits}"),
    }
}
