//! One region: its tasks, who has claimed how many, and panics on their way to the caller.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The tasks `0..tasks` of one region. All a worker needs comes to it with the cache line it claims a task on.
#[repr(align(128))]
pub struct Region<'a> {
    /// The next task to be claimed; beyond `tasks` when there is none.
    next: AtomicUsize,
    tasks: usize,
    work: &'a (dyn Fn(usize) + Sync),
    /// In the order they came. All are kept, as dropping one may panic, which is the caller's to bear.
    panics: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl<'a> Region<'a> {
    pub fn new(tasks: usize, work: &'a (dyn Fn(usize) + Sync)) -> Self {
        Self { next: AtomicUsize::new(0), tasks, work, panics: Mutex::new(Vec::new()) }
    }

    /// Claims and runs tasks until there are none. Does not unwind: a panic is kept for the caller.
    pub fn work(&self) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                // Tasks share nothing through the counter; what they write is published when a thread leaves.
                let task = self.next.fetch_add(1, Ordering::Relaxed);
                if task >= self.tasks {
                    break;
                }
                (self.work)(task);
            }
        }));
        if let Err(payload) = result {
            self.next.store(self.tasks, Ordering::Relaxed);
            self.panics.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
        }
    }

    /// The first panic of a task, when all threads have left.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panics.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().next()
    }
}
