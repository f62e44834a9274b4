//! What the thread of the disk looks at between two files.

use crate::sync::{AtomicBool, Ordering};
use std::sync::OnceLock;
use std::time::Instant;

/// Whether the thread may go on with what it writes.
#[derive(Default)]
pub(super) struct Signals {
    /// Pages are wanted back.
    yield_requested: AtomicBool,
    /// Set once the scheduler ends.
    deadline: OnceLock<Instant>,
}

impl Signals {
    /// Nobody wants anything back any more: the next prefix may be written.
    pub fn begin(&self) {
        self.yield_requested.store(false, Ordering::Relaxed);
    }

    /// Has what is being written broken off.
    pub fn request_yield(&self) {
        self.yield_requested.store(true, Ordering::Relaxed);
    }

    /// The rest is written until then.
    pub fn end_by(&self, deadline: Instant) {
        // Nobody sets it but this.
        let _ = self.deadline.set(deadline);
        self.begin();
    }

    /// Whether the next file may be written.
    pub fn go_on(&self) -> bool {
        !self.yield_requested.load(Ordering::Relaxed)
            && self.deadline.get().is_none_or(|deadline| Instant::now() < *deadline)
    }
}
