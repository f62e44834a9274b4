//! Flags that several subcommands share.

mod activations;
mod caches;
mod model;
mod sampling;
mod size;
mod threads;
mod tokens;

pub use activations::Activations;
pub use caches::Caches;
pub use model::{ModelOptions, Weights};
pub use sampling::GenerationOptions;
pub use size::Size;
pub use threads::ThreadOptions;
pub use tokens::Tokens;
