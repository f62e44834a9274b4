//! Many sequences at once, without a server around them.

mod adapters;
mod disk;
mod ends;
mod lists;
#[path = "../../../kvant-model/tests/support/lora.rs"]
mod lora;
mod matrix;
mod room;
mod sameness;
mod support;
mod tenants;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;
mod turns;
