//! Flags that several subcommands share.

mod model;
mod sampling;

pub use model::{Activations, ModelOptions};
pub use sampling::GenerationOptions;
