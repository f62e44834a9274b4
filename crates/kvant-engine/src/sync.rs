//! What threads of the scheduler meet at. The models in `loom/` compile the same with a model checker's in this place.

pub(crate) use std::sync::atomic::{AtomicBool, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
