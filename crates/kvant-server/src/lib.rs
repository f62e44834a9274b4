//! A server that speaks as OpenAI's, Anthropic's and Ollama's do, on top of the scheduler of `kvant-engine`.
//!
//! | route | what it is |
//! |---|---|
//! | `POST /v1/chat/completions` | the next turn of a conversation, whole or in pieces |
//! | `POST /v1/completions` | continuations of texts |
//! | `POST /v1/embeddings` | texts as vectors |
//! | `POST /v1/responses` | the same in OpenAI's newer words, with a conversation that the server keeps |
//! | `POST /v1/messages`, `/v1/messages/count_tokens` | the same in Anthropic's words |
//! | `/api/chat`, `/api/generate`, `/api/embed`, `/api/tags` … | the same in Ollama's words |
//! | `POST /v1/rerank`, `/infill` | texts by nearness; what belongs between two texts |
//! | `GET /v1/models` | the models that are served; `POST /models/load`, `/models/unload` |
//! | `GET /v1/kv` | what the cache holds at this moment |
//! | `POST /tokenize`, `/detokenize`, `/apply-template`, `GET /tokenizer_info` | from text to tokens and back |
//! | `GET /health`, `/metrics` | for those who look after it |
//! | `GET /openapi.json` | all of this for machines, with every field and its limits |
//! | `GET /` | a page to talk on, with the cache as a picture |
//!
//! ```no_run
//! use kvant_engine::scheduler::{Scheduler, SchedulerOptions};
//! use kvant_engine::{Arena, Engine, KvCache, LoadOptions, Policy};
//! use kvant_model::Checkpoint;
//! use kvant_server::{Server, ServerOptions};
//! use std::sync::Arc;
//!
//! let engine = Arc::new(Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?);
//! let arena = Arena::with_cap(1 << 30);
//! let empty = KvCache::in_arena("int4".parse::<Policy>()?, engine.model().slots(), 8192, arena)?;
//! let scheduler = Scheduler::new(engine, empty, SchedulerOptions::default());
//! let server = Server::bind("127.0.0.1:8080", scheduler.handle(), ServerOptions::new("mine"))?;
//! let worker = std::thread::spawn(move || scheduler.run());
//! // Whoever holds the sender can end it.
//! let (_sender, ends) = tokio::sync::mpsc::unbounded_channel();
//! server.run(ends)?;
//! worker.join().expect("the scheduler does not panic");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every protocol is a module of `protocol/` that reads its words into one internal request and writes one kind of event back
//! (`turn/`); what the engine is asked for is written once.
//!
//! **Invariant:** a field that is not understood is named in the header `x-kvant-ignored-fields` and in the log, or refused where the
//! server is [strict](ServerOptions::strict). None is dropped in silence.
//!
//! **Invariant:** no part of a request names a file, a host or a command. The admin alone names models to be fetched.
#![deny(missing_docs)]

mod app;
mod connections;
mod constraints;
mod error;
mod fields;
mod fill;
mod keys;
mod models;
mod notes;
mod openapi;
mod page;
mod prepare;
mod protocol;
mod request;
mod request_log;
mod route;
mod server;
mod store;
mod time;
mod timeouts;
mod turn;
mod watched;

pub use app::{Limits, ServerOptions};
pub use keys::Keys;
pub use models::{ModelFacts, ModelLoader, PullProgress, ServedModel};
pub use server::Server;
