//! Flags that several subcommands share.

mod activations;
mod caches;
mod constraint;
mod kv;
mod model;
mod sampling;
mod size;
mod think;
mod threads;
mod tokens;

pub use activations::Activations;
pub use caches::Caches;
pub use constraint::ConstraintOptions;
pub use kv::{kv_choice, llama_cpp_spec};
pub use model::{ModelOptions, Weights};
pub use sampling::GenerationOptions;
pub use size::Size;
pub use think::{Think, ThoughtPrompt, chat_prompt, is_shown};
pub use threads::ThreadOptions;
pub use tokens::Tokens;
