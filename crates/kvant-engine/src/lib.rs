//! Generation: from logits to the next token, and from tokens to where the text ends.
//!
//! [`sampler`] chooses tokens, [`stop`] ends a text at the strings a user named. Neither knows about models.
#![deny(missing_docs)]

pub mod sampler;
pub mod stop;

pub use sampler::{SampleError, Sampler, SamplingParams};
pub use stop::StopMatcher;
