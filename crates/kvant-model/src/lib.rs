//! Model files, weights, tokenizers and architectures.
#![deny(missing_docs)]

pub mod arch;
pub mod blocks;
pub mod bytes;
pub mod cache;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod dtype;
pub mod error;
pub mod gguf;
pub mod hub;
pub mod model;
mod outline;
pub mod quant;
pub mod safetensors;
pub mod synth;
pub mod tensor;
pub mod tokenizer;

pub use arch::LoadOptions;
pub use checkpoint::Checkpoint;
pub use dtype::DType;
pub use error::{LoadError, LoadErrorKind};
pub use hub::Hub;
pub use model::{ForwardError, Model};
pub use tensor::Tensor;
