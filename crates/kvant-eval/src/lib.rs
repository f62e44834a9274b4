//! Measurements of quality, how well a model predicts a text with the cache it is given, and of [`speed`].
//!
//! A text becomes [`Windows`] of token ids, all of one length; every window is a sequence of its own. [`token_nll()`]
//! runs one window and yields what the model thought of each scored token; [`perplexity`] runs them all and
//! sums up. What a cache costs is measured position by position, against the exact one: see [`divergence`](mod@divergence).
//!
//! **Invariant:** a result depends on the model, the ids, the scoring and the kind of cache, never on how
//! windows were cut into passes or on the number of threads.
#![deny(missing_docs)]

mod catalogue;
pub mod divergence;
mod error;
mod estimate;
pub mod html;
pub mod kept;
pub mod layers;
mod machine;
mod mean;
mod perplexity;
pub mod plans;
mod report;
pub mod speed;
pub mod tasks;
pub mod text;
mod token_nll;
mod windows;

pub use catalogue::every_cache;
pub use error::EvalError;
pub use estimate::Estimate;
pub use machine::Machine;
pub use mean::Mean;
pub use perplexity::{Progress, check_context, perplexity};
pub use report::{Report, Setting};
pub use token_nll::{PassLimits, token_nll};
pub use windows::{Score, Windows};

/// The examples of CONTRIBUTING.md, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../CONTRIBUTING.md")]
struct Contributing;
