//! The subcommands, one file each.

pub mod bench;
pub mod calibrate;
pub mod chat;
pub mod completions;
pub mod convert;
pub mod doctor;
pub mod eval;
pub mod inspect;
pub mod man;
pub mod models;
pub mod plan;
pub mod pull;
pub mod run;
pub mod serve;
pub mod synth;
