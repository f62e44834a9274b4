//! Threads that somebody else owns.

/// Threads of another pool, lent to this one: [`Pool::with_executor`](crate::Pool::with_executor) runs regions on them and starts none of its own.
///
/// ```
/// use kvant_threads::{Executor, Pool, for_each};
///
/// /// New threads for every region, which costs more than most regions are worth.
/// struct Fresh(usize);
///
/// impl Executor for Fresh {
///     fn threads(&self) -> usize {
///         self.0
///     }
///
///     fn run(&self, threads: usize, work: &(dyn Fn() + Sync)) {
///         std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
///     }
/// }
///
/// let sum = std::sync::atomic::AtomicUsize::new(0);
/// Pool::with_executor(Fresh(3)).install(|| {
///     for_each(100, |i| drop(sum.fetch_add(i, std::sync::atomic::Ordering::Relaxed)));
/// });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
pub trait Executor: Send + Sync {
    /// The most threads that take part in a region.
    fn threads(&self) -> usize;

    /// Calls `work` on up to `threads` threads at once, the caller among them or not, and returns when all calls have.
    /// Each call takes tasks until there are none, so that one that comes late is over at once and one that never
    /// comes is not missed.
    fn run(&self, threads: usize, work: &(dyn Fn() + Sync));
}
