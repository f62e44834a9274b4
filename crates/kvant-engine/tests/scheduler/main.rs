//! Many sequences at once, without a server around them.

mod disk;
mod ends;
mod lists;
mod matrix;
mod room;
mod sameness;
mod support;
mod tenants;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;
mod turns;
