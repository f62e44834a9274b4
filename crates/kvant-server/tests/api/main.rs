//! The server over real sockets, on a tiny real model.

mod agents;
mod anthropic;
mod browser;
mod chat;
mod company;
mod cve_requests;
mod embeddings;
#[cfg(feature = "grammar")]
mod format;
mod hostile;
mod lora;
#[path = "../../../kvant-model/tests/support/lora.rs"]
mod lora_file;
mod models;
mod ollama;
mod openapi;
mod page;
mod reasoning;
mod rerank;
mod responses;
mod safety;
#[cfg(target_os = "linux")]
mod soak;
mod state;
mod support;
mod tenants;
mod text;
#[path = "../../../kvant-model/tests/support/tiny.rs"]
mod tiny;
#[cfg(feature = "grammar")]
mod tools;
#[cfg(not(feature = "grammar"))]
mod without_grammar;
