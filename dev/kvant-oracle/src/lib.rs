//! The truth that backends are tested against: every block of a [`Description`] by its definition, in f64.
//!
//! A backend reads a description and may do with it as it likes; that is why one is needed that does nothing but what the
//! description's documentation says. An [`Oracle`] holds every weight as f64 and [runs](Oracle::run) a whole sequence at
//! once, with plain loops: attention over all positions with one softmax, recurrences token by token. There is no cache, no
//! chunk, no thread and no blocking, so there is nothing that could make two runs differ.
//!
//! It is for tests, and for weights of their size: a matrix takes eight bytes a weight, a token a pass over all of them.
//!
//! ```no_run
//! use kvant_model::{Checkpoint, Description};
//! use kvant_oracle::Oracle;
//!
//! let checkpoint = Checkpoint::open("tests/fixtures/llama")?;
//! let oracle = Oracle::new(&Description::of(&checkpoint)?, &checkpoint)?;
//! let trace = oracle.run(&[1, 5, 9], 64);
//! println!("{:?}", trace.logits[2]);
//! # Ok::<(), kvant_model::LoadError>(())
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | `oracle` | embedding, residuals and head |
//! | `weights` | tensors as f64; linear layers, norms |
//! | `function` | functions of one number |
//! | `attention`, `latent` | softmax attention, over keys and values and over latents |
//! | `recurrent` | short convolutions, Mamba-2, gated DeltaNets |
//! | `ffn` | MLPs, routers and experts |
//!
//! **Invariant:** it is written from the documentation of [`kvant_model::description`], not from a backend, and every `match`
//! on a description is exhaustive: a new block does not compile until it is defined here.
//!
//! # Panics
//! A description that contradicts itself (widths that do not fit, a slot of another kind) ends in a panic: it is a bug of what
//! made it.
//!
//! [`Description`]: kvant_model::Description
#![deny(missing_docs)]
#![deny(clippy::wildcard_enum_match_arm)]

mod attention;
mod ffn;
mod function;
mod latent;
mod oracle;
mod recurrent;
mod streams;
mod weights;

pub use oracle::{Oracle, Rows, StateTrace, Trace};
