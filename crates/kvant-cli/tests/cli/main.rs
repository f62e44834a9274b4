//! The program as a person uses it, on a tiny real model, without a network.

mod about;
mod bench;
mod calibrate;
mod chat;
mod check;
mod config;
mod convert;
#[cfg(unix)]
mod docs;
#[cfg(feature = "hub")]
mod fetch;
mod fit;
mod home;
#[cfg(feature = "hub")]
mod hub;
mod kv_dir;
#[path = "../../../kvant-model/tests/support/lora.rs"]
mod lora;
mod messages;
mod named;
#[cfg(unix)]
mod pty;
mod reasoning;
mod run;
mod serve;
mod served;
mod session;
mod support;
mod synth;
#[cfg(unix)]
mod terminal;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;
#[cfg(not(feature = "hub"))]
mod without_hub;
