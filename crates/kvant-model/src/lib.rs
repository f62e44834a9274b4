//! Model files, weights, tokenizers and architectures.
#![deny(missing_docs)]

pub mod chat;
pub mod tokenizer;
