//! Converting models: other types of weights, and between Hugging Face folders and GGUF.
//!
//! ```no_run
//! use kvant_convert::{Conversion, Format, Weights};
//! use kvant_model::Checkpoint;
//!
//! let checkpoint = Checkpoint::open("Qwen2.5-1.5B-Instruct")?;
//! let conversion = Conversion::new(&checkpoint, Weights::Int4, Format::Gguf, None)?;
//! conversion.write("qwen.gguf".as_ref(), &mut |done, total| {
//!     eprintln!("{done} of {total} bytes");
//!     std::ops::ControlFlow::Continue(())
//! })?;
//! # Ok::<(), kvant_convert::ConvertError>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `encode` | rows of numbers to blocks of every type that is written |
//! | `recipe` | which tensor gets which type |
//! | `parts` | the weights of a description, in an order that two descriptions share |
//! | `rows` | rows of a tensor that does not exist yet, from where they lie |
//! | `source` | what a converted file holds that stays in its format |
//! | `assemble` | tensors of one format from those of the other, where both descriptions agree |
//! | `keys` | parameters by their names in both formats, and what families leave unsaid: tables |
//! | `to_gguf` | the GGUF file of a Hugging Face checkpoint: metadata, vocabulary |
//! | `to_folder` | the Hugging Face checkpoint of a GGUF file: `config.json`, `tokenizer.json` |
//! | `noise` | GGUF files of random weights, for measuring speed |
//! | `packed` | safetensors with integers and scales in tensors of their own |
//! | `output` | a file that is there as a whole or not at all |
//! | `importance`, `imatrix` | what every channel of every layer is multiplied with, and files of it |
//!
//! **Invariant:** a model may be larger than memory. What is held of it is a block of rows, the scales of one tensor, and
//! vectors.
//!
//! **Invariant:** a GGUF file says the same as the folder it was made from, and a folder as its file, or is not written: both are
//! described, and every number of the two descriptions is compared before the first byte.
#![deny(missing_docs)]

mod assemble;
mod convert;
mod encode;
mod error;
mod imatrix;
mod importance;
mod keys;
mod noise;
mod output;
mod packed;
mod parts;
mod recipe;
mod rows;
mod source;
mod to_folder;
mod to_gguf;

pub use convert::{Conversion, Format, Progress};
pub use encode::{can_encode, encode_row};
pub use error::ConvertError;
pub use importance::Importance;
pub use noise::noise;
pub use recipe::{Mix, Weights};
pub use source::quantised;
