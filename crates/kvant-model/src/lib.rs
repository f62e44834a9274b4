//! Model files, weights, tokenizers and architectures.
#![deny(missing_docs)]
