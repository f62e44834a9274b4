//! Work that may be broken off.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Says when work is to be broken off: when it is set, or late. Copies are set together.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    is_set: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl Interrupt {
    /// One that is set by itself at that time.
    pub fn at(deadline: Instant) -> Self {
        Self { is_set: Arc::default(), deadline: Some(deadline) }
    }

    /// Asks for the work to end.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
            || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
