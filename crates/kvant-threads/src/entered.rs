//! Which pool the current thread has entered.

use crate::pool::Shared;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;

/// What a thread knows of the pool that it is in.
#[derive(Clone, Copy)]
struct Here {
    threads: usize,
    /// The pool that runs regions of this thread; null where they run on this thread alone.
    pool: *const Shared,
}

const NOWHERE: Here = Here { threads: 1, pool: ptr::null() };

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(NOWHERE) };
}

/// Threads of the pool that this thread is in.
pub fn threads() -> usize {
    HERE.get().threads
}

/// Calls `ask` with the pool that runs regions of this thread.
pub fn with_pool<R>(ask: impl FnOnce(Option<&Shared>) -> R) -> R {
    // SAFETY: the pointer is null or comes from `Entered::pool`, which borrows the pool until it is dropped and the
    // pointer replaced. Both happen on this thread, below whatever calls this.
    ask(unsafe { HERE.get().pool.as_ref() })
}

/// This thread is in a pool until this is dropped; then it is where it was before. Values are dropped in the reverse
/// order of their making, as they live on the stack of the function that makes them and nowhere else.
pub struct Entered<'p> {
    before: Here,
    /// Borrowed, and not to be sent to another thread: there is something to be put back on this one.
    pool: PhantomData<(&'p Shared, *const Shared)>,
}

impl<'p> Entered<'p> {
    /// As a caller of regions.
    pub fn pool(pool: &'p Shared) -> Self {
        Self::at(Here { threads: pool.threads(), pool })
    }

    /// As a thread that works on tasks of a pool, whose own regions run on it alone.
    pub fn worker(threads: usize) -> Self {
        Self::at(Here { threads, pool: ptr::null() })
    }

    fn at(here: Here) -> Self {
        Self { before: HERE.replace(here), pool: PhantomData }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        HERE.set(self.before);
    }
}
