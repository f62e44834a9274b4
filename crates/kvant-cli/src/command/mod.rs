//! The subcommands, one file each.

pub mod eval;
pub mod models;
