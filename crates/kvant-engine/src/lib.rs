//! Generation: a model, its words, and sequences that grow.
//!
//! An [`Engine`] is a loaded checkpoint with its tokenizer and chat template; a [`Session`] is one sequence of it.
//! [`sampler`] chooses tokens, [`stop`] ends a text at the strings a user named, [`kv`] keeps keys and values as a
//! spec says, [`family`] knows which one suits a model, [`memory`] how much memory this machine has, and [`estimate`] how much
//! a run takes, [`device`] where it runs; [`open`] decides by all of these, as `kvant run` does. [`grammar`] keeps texts to schemas and grammars,
//! [`reply`] splits them into reasoning, answer and tool calls, [`tools`] knows how calls are written. [`scheduler`] runs many
//! sequences at once. [`speculation`] guesses what comes next, so that a pass gives several tokens.
//!
//! ```no_run
//! use kvant_engine::{Engine, Event, LoadOptions, Policy, Request, SamplingParams};
//! use kvant_model::Checkpoint;
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! let engine = Arc::new(Engine::load(&Checkpoint::open("model.gguf")?, LoadOptions::default())?);
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

mod chat_prompt;
mod constraint;
mod defaults;
pub mod device;
mod encoder;
mod engine;
pub mod estimate;
pub mod family;
pub mod grammar;
mod interrupt;
pub mod kv;
mod least_tokens;
mod logprobs;
mod measured;
pub mod memory;
pub mod open;
mod pass_times;
mod prompts;
pub mod reply;
mod rerank;
pub mod sampler;
pub mod scheduler;
mod session;
mod signature;
pub mod speculation;
mod stepper;
pub mod stop;
mod sync;
mod text;
pub mod tools;
mod turn;

pub use constraint::{Constraint, ConstraintError};
pub use device::{Device, DeviceChoice, DeviceError};
pub use engine::{Engine, OpenedAdapter, PromptError};
pub use family::{Family, FamilyDefault};
pub use interrupt::Interrupt;
pub use kvant_attention::{Attention, Batch, KvCache, KvUnsupported, PassState};
pub use kvant_cache::snapshot::{Numerics, Signature, Snapshot, SnapshotError};
pub use kvant_cache::{
    Arena, ArenaOptions, DiskError, DiskTier, DiskUsage, Plan, PlanError, Policy, SparseV, StateType, Tenant,
};
pub use kvant_cpu::{ActivationType, LoadOptions, WeightKernel};
pub use kvant_model::{Adapter, AdapterMix, AppliedAdapter};
pub use measured::{load_model, load_observed};
pub use open::{KvChoice, LoadedModel, OpenError, OpenNote, OpenOptions};
pub use prompts::Prompts;
pub use rerank::Judge;
pub use sampler::{SAMPLING, SampleError, Sampler, SamplingOverrides, SamplingParams};
pub use session::{Event, Finish, GenerateError, PREFILL_CHUNK, Reply, Request, ResumeError, Session, Stats};
pub use signature::{numerics, signature};
pub use speculation::{Speculate, SpeculationCounts};
pub use stop::StopMatcher;
pub use turn::{ToolChoice, Turn, TurnError, TurnOptions};
