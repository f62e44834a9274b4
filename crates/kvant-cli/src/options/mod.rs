//! Flags that several subcommands share.

mod activations;
mod model;
mod sampling;
mod size;
mod threads;

pub use activations::Activations;
pub use model::ModelOptions;
pub use sampling::GenerationOptions;
pub use threads::ThreadOptions;
