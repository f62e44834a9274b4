//! A server that speaks as OpenAI's does, on top of the scheduler of `kvant-engine`.
//!
//! | route | what it is |
//! |---|---|
//! | `POST /v1/chat/completions` | the next turn of a conversation, whole or in pieces |
//! | `POST /v1/completions` | continuations of texts |
//! | `POST /v1/embeddings` | texts as vectors |
//! | `GET /v1/models` | the model that is served |
//! | `GET /v1/kv` | what the cache holds at this moment |
//! | `POST /tokenize`, `/detokenize` | from text to tokens and back |
//! | `GET /health`, `/metrics` | for those who look after it |
//! | `GET /openapi.json` | all of this for machines, with every field and its limits |
//! | `GET /` | a page to talk on, with the cache as a picture |
//!
//! ```no_run
//! use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
//! use kvant_engine::{Arena, Engine, KvCache, LoadOptions, Policy};
//! use kvant_model::Checkpoint;
//! use kvant_server::{Keys, Limits, Server, ServerOptions};
//! use std::sync::Arc;
//!
//! let engine = Arc::new(Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?);
//! let arena = Arena::with_cap(1 << 30);
//! let empty = KvCache::in_arena("int4".parse::<Policy>()?, engine.model().slots(), 8192, arena)?;
//! let scheduler = Scheduler::new(engine, empty, SchedulerOptions::default());
//! let options =
//!     ServerOptions { model: "mine".into(), keys: Keys::default(), cors: None, limits: Limits::default() };
//! let server = Server::bind("127.0.0.1:8080", scheduler.handle(), options)?;
//! let worker = std::thread::spawn(move || scheduler.run());
//! // Whoever holds the sender can end it.
//! let (_sender, ends) = tokio::sync::mpsc::unbounded_channel();
//! server.run(ends)?;
//! worker.join().expect("the scheduler does not panic");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Invariant:** a field that is not understood is refused by its name. No request is answered as if it had asked for less.
//!
//! **Invariant:** no part of a request names a file, a host or a command.
#![deny(missing_docs)]

mod answer;
mod app;
mod ask;
mod base64;
mod constraints;
mod error;
mod fields;
mod keys;
mod openapi;
mod page;
mod patience;
mod route;
mod server;

pub use app::{Limits, ServerOptions};
pub use keys::Keys;
pub use server::Server;
