//! Model files, weights, tokenizers and architectures.
#![deny(missing_docs)]

pub mod bytes;
pub mod chat;
pub mod checkpoint;
pub mod dtype;
pub mod error;
pub mod gguf;
pub mod hub;
pub mod quant;
pub mod safetensors;
pub mod tensor;
pub mod tokenizer;

pub use checkpoint::Checkpoint;
pub use dtype::DType;
pub use error::{LoadError, LoadErrorKind};
pub use hub::Hub;
pub use tensor::Tensor;
