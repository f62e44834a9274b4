//! A caller's view of its workers.

use crate::MAX_THREADS;
use crate::region::Region;
use crate::slot::Slot;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::{self, JoinHandle};

/// Workers, and how many of them take part.
pub struct Pool {
    /// Zero until it is set.
    threads: AtomicUsize,
    /// Held by the caller of the region that runs. Who cannot have it at once works alone, and that covers tasks
    /// that start regions as well as other threads.
    workers: Mutex<Vec<Worker>>,
}

struct Worker {
    slot: Arc<Slot>,
    thread: JoinHandle<()>,
}

impl Pool {
    pub const fn new() -> Self {
        Self { threads: AtomicUsize::new(0), workers: Mutex::new(Vec::new()) }
    }

    pub fn threads(&self) -> usize {
        match self.threads.load(Ordering::Relaxed) {
            0 => processors().min(MAX_THREADS),
            threads => threads,
        }
    }

    pub fn set_threads(&self, threads: usize) {
        self.threads.store(threads.clamp(1, MAX_THREADS), Ordering::Relaxed);
    }

    pub fn for_each(&self, tasks: usize, work: impl Fn(usize) + Sync) {
        let threads = self.threads().min(tasks);
        let workers = if threads > 1 { self.try_workers() } else { None };
        let Some(mut workers) = workers else {
            return (0..tasks).for_each(work);
        };
        while workers.len() < threads - 1 {
            match Worker::start() {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        let region = Region::new(tasks, &work);
        {
            let helpers = &workers[..workers.len().min(threads - 1)];
            let settled = SettleOnDrop(helpers);
            let crowded = threads > processors();
            for worker in helpers {
                // SAFETY: `settled` is dropped before the region, also when something here unwinds.
                unsafe { worker.slot.offer(&region, crowded, worker.thread.thread()) };
            }
            region.work();
            drop(settled);
        }
        drop(workers);
        if let Some(payload) = region.into_panic() {
            resume_unwind(payload);
        }
    }

    pub fn for_each_chunk<T: Send>(&self, data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
        assert!(len > 0, "chunks of no items");
        let (start, total) = (Start(data.as_mut_ptr()), data.len());
        self.for_each(total.div_ceil(len), |i| {
            let at = i * len;
            // SAFETY: `at < total`, as `i` is below the number of chunks; chunks do not overlap and every `i` comes
            // once; `data` stays borrowed until all tasks are done; and `T: Send` lets another thread write to it.
            let chunk = unsafe { std::slice::from_raw_parts_mut(start.get().add(at), len.min(total - at)) };
            work(i, chunk);
        });
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

/// A pool that goes away takes its workers along. The one of the program never does.
impl Drop for Pool {
    fn drop(&mut self) {
        let Some(mut workers) = self.try_workers() else { return };
        for worker in workers.drain(..) {
            worker.slot.close(worker.thread.thread());
            // It ended without a panic: a region keeps those of its tasks.
            let _ = worker.thread.join();
        }
    }
}

impl Worker {
    fn start() -> std::io::Result<Self> {
        let slot = Arc::new(Slot::new());
        let its_slot = Arc::clone(&slot);
        let thread = thread::Builder::new().name("kvant-worker".into()).spawn(move || its_slot.serve())?;
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

/// The beginning of a slice whose parts go to different threads.
struct Start<T>(*mut T);

// SAFETY: tasks only compute addresses from it; what they do with those is argued where they are used.
unsafe impl<T: Send> Sync for Start<T> {}

impl<T> Start<T> {
    /// A method, so that closures capture the whole and not the pointer, which may not be shared.
    fn get(&self) -> *mut T {
        self.0
    }
}

/// Processors this program may run on.
fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests;
