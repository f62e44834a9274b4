//! From a request's fields to what is asked of the engine, and jobs for it.

pub mod custom;
pub mod format;
pub mod jobs;
pub mod messages;
pub mod prompts;
pub mod sampling;
pub mod tools;
