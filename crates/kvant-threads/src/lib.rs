//! Thread pools as handles.
//!
//! A decode step is a few hundred short products one after another, each worth splitting over threads only if
//! starting and ending a parallel *region* costs next to nothing. So a pool does one thing: a region hands out
//! the numbers `0..tasks`, to each thread from a share of neighbours first, the calling thread works like any other, and workers
//! that have just finished a region watch for the next one before they go to sleep.
//!
//! Whoever owns a [`Pool`] enters it with [`Pool::install`]; the code inside asks for regions with [`for_each`] and
//! [`for_each_chunk`] and never sees the pool:
//!
//! ```
//! use kvant_threads::{Pool, for_each_chunk};
//!
//! let pool = Pool::new(2);
//! let mut squares = vec![0u64; 1000];
//! pool.install(|| {
//!     for_each_chunk(&mut squares, 64, |chunk, values| {
//!         for (i, value) in values.iter_mut().enumerate() {
//!             *value = ((chunk * 64 + i) as u64).pow(2);
//!         }
//!     });
//! });
//! assert_eq!(squares[999], 999 * 999);
//! ```
//!
//! **Invariant:** nothing here is global. A thread that has entered no pool works alone, and two pools share nothing, so
//! that two engines in one process run their regions at the same time.
//!
//! **Invariant:** a pool runs one region at a time, and only its caller and the workers compute. A call from inside
//! a task, or from another thread while a region of the pool runs, works through its tasks alone: nobody waits and no
//! processor gets two threads. Which thread runs a task is left open, so results that must not depend on the
//! number of threads must not depend on who runs what.
//!
//! A program that has threads of its own lends them through [`Executor`].
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
//!
//! # Why not rayon
//!
//! A whole decode step after 512 tokens, int4 cache, on a machine with 16 cores (Intel Xeon), pools taking turns in one process:
//! `cargo run --release -p kvant-eval --example pools -- MODEL --threads 2,16`. Milliseconds, best and median; rayon's are those of
//! the best of the three ways it has to call something on several threads (`join`, `scope`, `broadcast`).
//!
//! | model, threads | this pool | rayon | rayon, of this pool's |
//! |---|--:|--:|--:|
//! | SmolLM2-135M shape, 2 | 3.33 / 4.37 | 3.52 / 4.93 | 1.06 / 1.13 |
//! | SmolLM2-135M shape, 16 | 2.01 / 2.85 | 3.03 / 4.10 | 1.51 / 1.44 |
//! | Llama-3.2-1B shape, 2 | 29.4 / 35.8 | 27.9 / 35.7 | 0.95 / 1.00 |
//! | Llama-3.2-1B shape, 16 | 6.93 / 7.83 | 7.78 / 8.80 | 1.12 / 1.12 |
//!
//! With two threads and long products the two are even; with short products or many threads rayon costs up to half a step more.
#![deny(missing_docs)]

mod entered;
mod executor;
mod pool;
mod region;
mod slot;
mod sync;

pub use executor::Executor;
pub use pool::{Pool, processors};

/// The most threads that can be asked for.
pub const MAX_THREADS: usize = 1024;

/// Threads that take part in a region of the pool that this thread has entered, the caller included; one where it
/// has entered none. The same inside a task, whose own regions run on its thread.
pub fn threads() -> usize {
    entered::threads()
}

/// Runs `work(i)` for every `i` in `0..tasks`, each once, on the pool that this thread has entered, and returns when all are done. With
/// n threads the tasks are n shares of neighbours; a thread begins with its own, the same in every region of as many threads, and then
/// takes from others. If the system refuses to start a thread, those there are do the work.
///
/// # Panics
/// With the first panic of a task, once every running task has ended; tasks not begun by then are left out.
pub fn for_each(tasks: usize, work: impl Fn(usize) + Sync) {
    entered::with_pool(|pool| match pool {
        Some(pool) => pool.for_each(tasks, work),
        None => (0..tasks).for_each(work),
    });
}

/// Runs `work(i, chunk)` on every stretch of `len` items of `data`, the last of which may be shorter.
///
/// # Panics
/// If `len` is zero, and as [`for_each`] does.
pub fn for_each_chunk<T: Send>(data: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    assert!(len > 0, "chunks of no items");
    let (start, total) = (Start(data.as_mut_ptr()), data.len());
    for_each(total.div_ceil(len), |i| {
        let at = i * len;
        // SAFETY: `at < total`, as `i` is below the number of chunks; chunks do not overlap and every `i` comes
        // once; `data` stays borrowed until all tasks are done; and `T: Send` lets another thread write to it.
        let chunk = unsafe { std::slice::from_raw_parts_mut(start.get().add(at), len.min(total - at)) };
        work(i, chunk);
    });
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
