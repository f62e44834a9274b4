//! The subcommands, one file each.

pub mod bench;
pub mod calibrate;
pub mod chat;
pub mod check;
pub mod completions;
pub mod convert;
pub mod doctor;
pub mod eval;
pub mod fit;
pub mod inspect;
pub mod kv_list;
pub mod man;
pub mod models;
pub mod plan;
pub mod ps;
pub mod pull;
pub mod rm;
pub mod run;
pub mod serve;
pub mod synth;
pub mod tune;
