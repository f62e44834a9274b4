//! A caller's view of its workers.

use crate::MAX_THREADS;
use crate::entered::Entered;
use crate::executor::Executor;
use crate::region::Region;
use crate::slot::Slot;
use std::fmt;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};

/// A handle of a thread pool. Clones are handles of the same one; its threads are started by the first region that
/// needs them, and end when the last handle is dropped.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of so many threads, callers of regions included, held within `1..=MAX_THREADS`.
    pub fn new(threads: usize) -> Self {
        Self::with(threads, None)
    }

    /// A pool that runs its regions on threads that are there already.
    pub fn with_executor(executor: impl Executor + 'static) -> Self {
        Self::with(executor.threads(), Some(Box::new(executor)))
    }

    fn with(threads: usize, executor: Option<Box<dyn Executor>>) -> Self {
        let threads = threads.clamp(1, MAX_THREADS);
        Self { shared: Arc::new(Shared { threads, executor, workers: Mutex::new(Vec::new()) }) }
    }

    /// Threads that take part in a region, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Calls `work` on this thread; the regions that it asks for run on this pool. Afterwards, also when it panics, the
    /// thread is in the pool that it was in before. A thread that `work` starts has entered no pool.
    pub fn install<R>(&self, work: impl FnOnce() -> R) -> R {
        let _entered = Entered::pool(&self.shared);
        work()
    }
}

/// As many threads as there are processors for this program.
impl Default for Pool {
    fn default() -> Self {
        Self::new(processors())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// What the handles of a pool share.
pub struct Shared {
    threads: usize,
    /// Threads that are lent, in place of workers.
    executor: Option<Box<dyn Executor>>,
    /// Held by the caller of the region that runs. Who cannot have it at once works alone, and that covers tasks
    /// that start regions as well as other threads.
    workers: Mutex<Vec<Worker>>,
}

struct Worker {
    slot: Arc<Slot>,
    thread: JoinHandle<()>,
}

impl Shared {
    pub fn threads(&self) -> usize {
        self.threads
    }

    pub fn for_each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        let threads = self.threads.min(tasks);
        let workers = if threads > 1 { self.try_workers() } else { None };
        let Some(mut workers) = workers else {
            return (0..tasks).for_each(work);
        };
        let region = Region::new(tasks, threads, &work);
        match &self.executor {
            None => self.offer(&region, threads - 1, &mut workers),
            Some(executor) => {
                let arrived = AtomicUsize::new(0);
                executor.run(threads, &|| {
                    let _entered = Entered::worker(self.threads);
                    region.work(arrived.fetch_add(1, Ordering::Relaxed));
                });
                // What nobody has taken.
                region.work(0);
            }
        }
        drop(workers);
        if let Some(payload) = region.into_panic() {
            resume_unwind(payload);
        }
    }

    /// Works on the region together with so many workers, or those the system lets us have, until there is nothing
    /// left and they are gone.
    fn offer(&self, region: &Region<'_>, count: usize, workers: &mut Vec<Worker>) {
        while workers.len() < count {
            // The caller is number 0.
            match Worker::start(self.threads, workers.len() + 1) {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        let helpers = &workers[..workers.len().min(count)];
        let settled = SettleOnDrop(helpers);
        let crowded = count >= processors();
        for worker in helpers {
            // SAFETY: `settled` is dropped before this returns, also when something here unwinds, and the region is
            // borrowed for longer.
            unsafe { worker.slot.offer(region, crowded, worker.thread.thread()) };
        }
        region.work(0);
        drop(settled);
    }

    /// The workers, unless a region is running.
    fn try_workers(&self) -> Option<MutexGuard<'_, Vec<Worker>>> {
        match self.workers.try_lock() {
            Ok(workers) => Some(workers),
            Err(TryLockError::Poisoned(workers)) => Some(workers.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// The last handle takes the workers along. None of them is at work, as a region borrows a handle, and for the same
/// reason none of them is the thread that this runs on.
impl Drop for Shared {
    fn drop(&mut self) {
        for worker in self.workers.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            worker.slot.close(worker.thread.thread());
            // It ended without a panic: a region keeps those of its tasks.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    /// A worker of a pool of so many threads, and its number among them.
    fn start(threads: usize, number: usize) -> std::io::Result<Self> {
        let slot = Arc::new(Slot::new());
        let its_slot = Arc::clone(&slot);
        let serve = move || {
            let _entered = Entered::worker(threads);
            its_slot.serve(number);
        };
        let thread = thread::Builder::new().name("kvant-worker".into()).spawn(serve)?;
        Ok(Self { slot, thread })
    }
}

/// Returns from no scope before these workers have left the region.
struct SettleOnDrop<'a>(&'a [Worker]);

impl Drop for SettleOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|worker| worker.slot.settle());
    }
}

/// Processors this program may run on.
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests;
