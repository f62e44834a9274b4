//! One module for each protocol: it reads its own words into a [`TurnRequest`](crate::turn::TurnRequest), and writes what comes of it
//! in its own words.

pub mod anthropic;
pub mod ollama;
pub mod openai;
pub mod responses;
mod thinking;

pub use thinking::read as thinking_variables;
