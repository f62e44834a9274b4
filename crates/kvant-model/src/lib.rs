//! Model files, weights and architectures.
#![deny(missing_docs)]

pub mod adapter;
pub mod arch;
pub mod backend;
pub mod byte_level;
pub mod bytes;
pub mod checkpoint;
pub mod config;
pub mod description;
pub mod dtype;
mod encoder;
pub mod error;
pub mod gguf;
pub mod model;
mod model_files;
mod outline;
mod outputs;
pub mod pass;
pub mod quant;
mod rows;
pub mod safetensors;
mod scales;
pub mod soundness;
pub mod synth;
pub mod tensor;
pub mod top;

pub use adapter::{Adapter, AdapterMix, AppliedAdapter};
pub use backend::{Backend, InputObserver, Network};
pub use checkpoint::{Checkpoint, ConfigSource};
pub use description::Description;
pub use dtype::DType;
pub use encoder::EncoderText;
pub use error::{LoadError, LoadErrorKind};
pub use model::{ForwardError, Model};
pub use outputs::{Output, Outputs};
pub use pass::{
    Abilities, AcceptTopK, Chunk, Form, Guesses, Input, LayerObserver, Observer, Pass, Positions,
    StreamObserver, Wanted,
};
pub use rows::Rows;
pub use scales::Scales;
pub use tensor::Tensor;
pub use top::{TopK, TopTokens};
