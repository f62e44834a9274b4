//! The one thread pool of kvant.
//!
//! A decode step is a few hundred short products one after another, each worth splitting over threads only if
//! starting and ending a parallel *region* costs next to nothing. So the pool does one thing: a region hands out
//! the numbers `0..tasks` in order, the calling thread works like any other, and workers that have just finished
//! a region watch for the next one before they go to sleep.
//!
//! ```
//! let mut squares = vec![0u64; 1000];
//! kvant_threads::for_each_chunk(&mut squares, 64, |chunk, values| {
//!     for (i, value) in values.iter_mut().enumerate() {
//!         *value = ((chunk * 64 + i) as u64).pow(2);
//!     }
//! });
//! assert_eq!(squares[999], 999 * 999);
//! ```
//!
//! **Invariant:** there is one region at a time, and only its caller and the workers compute. A call from inside
//! a task, or from another thread while a region runs, works through its tasks alone: nobody waits and no
//! processor gets two threads. Which thread runs a task is left open, so results that must not depend on the
//! number of threads must not depend on who runs what.
//!
//! # What a region costs
//!
//! `cargo bench -p kvant-threads`, on two virtual cores of a shared Xeon (Emerald Rapids): microseconds, best and
//! median, of a region with one empty task per thread. In an *open* region the caller may have done all tasks
//! before a worker notices; in a *meeting* one each task waits until all have begun. *Parked* is after a pause of
//! a millisecond, when workers sleep.
//!
//! | 2 threads | awake, open | awake, meeting | parked, open | parked, meeting |
//! |---|--:|--:|--:|--:|
//! | this pool | 0.07 / 0.39 | 0.88 / 0.97 | 2.3 / 4.5 | 10 / 16 |
//! | rayon 1.12 | 0.06 / 0.11 | 1.01 / 1.24 | 2.1 / 4.6 | 12 / 18 |
//!
//! With one task or one thread a region is a loop.
#![deny(missing_docs)]

mod pool;
mod region;
mod slot;

use pool::Pool;

static POOL: Pool = Pool::new();

/// The most threads that can be asked for.
pub const MAX_THREADS: usize = 1024;

/// Threads that take part in a region, the caller included: as many as were set, or as the machine has
/// processors for this program.
pub fn threads() -> usize {
    POOL.threads()
}

/// Sets how many threads take part from the next region on, held within `1..=MAX_THREADS`. Workers are started
/// by the first region that needs them, and kept.
pub fn set_threads(threads: usize) {
    POOL.set_threads(threads);
}

/// Runs `work(i)` for every `i` in `0..tasks`, each once and begun in this order, and returns when all are done.
/// If the system refuses to start a thread, those there are do the work.
///
/// # Panics
/// With the first panic of a task, once every running task has ended; tasks not begun by then are left out.
pub fn for_each(tasks: usize, work: impl Fn(usize) + Sync) {
    POOL.for_each(tasks, work);
}

/// Runs `work(i, chunk)` on every stretch of `len` items of `data`, the last of which may be shorter.
///
/// # Panics
/// If `len` is zero, and as [`for_each`] does.
pub fn for_each_chunk<T: Send>(data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    POOL.for_each_chunk(data, len, work);
}
