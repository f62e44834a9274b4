//! Flags that several subcommands share.

mod model;
mod sampling;
mod size;
mod threads;

pub use model::ModelOptions;
pub use sampling::GenerationOptions;
pub use threads::ThreadOptions;
