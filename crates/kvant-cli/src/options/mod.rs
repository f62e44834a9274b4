//! Flags that several subcommands share.

mod model;
mod sampling;

pub use model::ModelOptions;
pub use sampling::GenerationOptions;
