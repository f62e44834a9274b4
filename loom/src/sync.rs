//! Loom's in the place of the standard library's, under the names that kvant's sources have.

pub use loom::hint::spin_loop;
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};
pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
pub use loom::thread::yield_now;
pub use std::sync::PoisonError;

use loom::thread::JoinHandle;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// Long enough for one look at the clock.
pub const WATCH: Duration = Duration::from_micros(1);

/// One stands for any number of them.
pub const GLANCES: u32 = 1;

/// As [`GLANCES`].
pub const SPIN_LIMIT: u32 = 1;

/// A clock that strikes when it is looked at for the second time.
pub struct Instant(Cell<Duration>);

impl Instant {
    /// The beginning.
    pub fn now() -> Instant {
        Instant(Cell::new(Duration::ZERO))
    }

    /// Nothing, then more than [`WATCH`].
    pub fn elapsed(&self) -> Duration {
        self.0.replace(WATCH)
    }
}

/// A thread that can be woken. Loom has such threads too, and forgets that one was woken while it had given way to others.
#[derive(Clone, Default)]
pub struct Thread(Arc<Token>);

#[derive(Default)]
struct Token {
    is_there: Mutex<bool>,
    came: Condvar,
}

loom::thread_local! {
    static OWN: RefCell<Option<Thread>> = RefCell::new(None);
}

/// Starts a thread that may [park].
pub fn spawn(work: impl FnOnce() + 'static) -> (Thread, JoinHandle<()>) {
    let thread = Thread::default();
    let own = thread.clone();
    let handle = loom::thread::spawn(move || {
        OWN.with(|slot| slot.replace(Some(own)));
        work();
    });
    (thread, handle)
}

impl Thread {
    /// Ends its sleep, or the next one.
    pub fn unpark(&self) {
        *self.0.is_there.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.came.notify_one();
    }
}

/// Sleeps until this thread is woken.
pub fn park() {
    let own = OWN.with(|slot| slot.borrow().clone()).unwrap_or_default();
    let mut is_there = own.0.is_there.lock().unwrap_or_else(PoisonError::into_inner);
    while !*is_there {
        is_there = own.0.came.wait(is_there).unwrap_or_else(PoisonError::into_inner);
    }
    *is_there = false;
}
