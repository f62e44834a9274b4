//! What counts references and guards the lists of free pages. The models in `loom/` compile pages with a model checker's in this place.

pub(crate) use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
