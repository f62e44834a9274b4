//! Flags that several subcommands share.

mod activations;
mod caches;
mod constraint;
mod foreign;
mod kv;
mod model;
mod rope;
mod sampling;
mod size;
mod think;
mod threads;
mod tokens;
mod weights;

pub use activations::Activations;
pub use caches::Caches;
pub use constraint::{Bound, ConstraintOptions, text_of_flag};
pub use foreign::ForeignFlags;
pub use kv::{kv_choice, llama_cpp_spec};
pub use model::{ModelOptions, add_options, checked};
pub use rope::RopeFlags;
pub use sampling::{GenerationOptions, RequestDefaults};
pub use size::Size;
pub use think::{ForeignThink, Think, ThoughtTurn, is_shown, think_turn};
pub use threads::ThreadOptions;
pub use tokens::{Layers, Tokens};
pub use weights::Weights;
