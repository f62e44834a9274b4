//! The native half of the Python package `kvant`.
//!
//! What people call is in `kvant/*.py`, typed and documented there; this module does the work. The border between the two is
//! kept plain: numbers, text, JSON for what has a structure, and memory by the buffer protocol, so that no array is copied
//! unless its layout asks for it.
//!
//! | module | what it is |
//! |---|---|
//! | `error` | kvant's errors as Python's exceptions |
//! | `work` | work without the GIL: signals, callbacks, panics |
//! | `arrays` | numbers in and out by the buffer protocol |
//! | `models` | a path or a name becomes a file; random models |
//! | `engine`, `stream`, `score` | an open model, texts on their way, likelihoods |
//! | `session` | one sequence, step by step |
//! | `codec` | page codecs on arrays |
//! | `cache` | the cache of models that run elsewhere, layer by layer |
//! | `tier` | a cold tier for other engines |
//! | `weights` | packed weights and their products |
//! | `convert`, `evaluate`, `plans` | the chores of the command line as functions |
//!
//! **Invariant:** no lock that is held during work is waited for with the GIL, and nothing that takes long runs with it.
#![deny(missing_docs)]

mod arrays;
mod cache;
mod codec;
mod convert;
mod engine;
mod error;
mod evaluate;
mod models;
mod plans;
mod score;
mod session;
mod stream;
mod tier;
mod weights;
mod work;

use pyo3::prelude::*;

/// kvant's native module.
#[pymodule]
fn _kvant(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    arrays::register(module)?;
    models::register(module)?;
    engine::register(module)?;
    stream::register(module)?;
    session::register(module)?;
    codec::register(module)?;
    cache::register(module)?;
    tier::register(module)?;
    weights::register(module)?;
    convert::register(module)?;
    evaluate::register(module)?;
    plans::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
