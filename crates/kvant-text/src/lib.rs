//! Text: tokenizers and chat templates, as model files carry them.
//!
//! They stand apart from the files and descriptions of models, so that a backend compiles neither.
#![deny(missing_docs)]

pub mod chat;
pub mod soundness;
pub mod tokenizer;
