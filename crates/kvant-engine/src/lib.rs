//! Generation: a model, its words, and sequences that grow.
//!
//! An [`Engine`] is a loaded checkpoint with its tokenizer and chat template; a [`Session`] is one sequence of it.
//! [`sampler`] chooses tokens, [`stop`] ends a text at the strings a user named, [`kv`] keeps keys and values as a
//! spec says, [`family`] knows which one suits a model, [`memory`] knows how long a context this machine can hold, and
//! [`forecast`] what a run will take. [`scheduler`] runs many sequences at once.
//!
//! ```no_run
//! use kvant_engine::{Engine, Event, Policy, Request, SamplingParams};
//! use kvant_model::{Checkpoint, LoadOptions};
//! use std::ops::ControlFlow;
//!
//! let engine = Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?;
//! let mut session = engine.session("int4".parse::<Policy>()?, 2048)?;
//! let prompt = engine.text_prompt("The sky is blue because")?;
//! let request = Request { prompt, sampling: SamplingParams::greedy(), ..Request::default() };
//! let reply = session.generate(&request, &mut |event| {
//!     if let Event::Text(text) = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! eprintln!("{:?}", reply.finish);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(missing_docs)]

mod constraint;
mod engine;
pub mod family;
pub mod forecast;
mod generation;
pub mod kv;
pub mod memory;
pub mod sampler;
pub mod scheduler;
mod session;
mod signature;
pub mod stop;
mod text;

pub use constraint::{Constraint, ConstraintError};
pub use engine::{Engine, PromptError};
pub use family::{Family, FamilyDefault};
pub use kv::{KvCache, KvFailure, KvUnsupported};
pub use kvant_cache::snapshot::{Signature, Snapshot, SnapshotError};
pub use kvant_cache::{
    Arena, ArenaOptions, DiskError, DiskTier, DiskUsage, Plan, PlanError, Policy, SparseV,
};
pub use sampler::{SampleError, Sampler, SamplingParams};
pub use session::{Event, Finish, GenerateError, PREFILL_CHUNK, Reply, Request, ResumeError, Session, Stats};
pub use signature::signature;
pub use stop::StopMatcher;
