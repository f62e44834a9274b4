//! The library as C programs meet it: every function by its C signature, and the header.

mod any_order;
mod cache;
mod codec;
mod embed;
mod engine;
mod header;
mod matrix;
mod sampler;
mod settings;
mod support;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;
