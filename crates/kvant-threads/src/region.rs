//! One region: its tasks, who has claimed how many, and panics on their way to the caller.

use crate::sync::{AtomicUsize, Mutex, Ordering, PoisonError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The most shares that tasks are dealt in: threads beyond them begin with a share that has somebody already.
const SHARES: usize = 16;

/// The tasks `0..tasks` of one region, dealt in shares of neighbours. A thread begins with its own share, which is the same one from
/// region to region, and then helps with the others: what one region's tasks left in a core's cache is met there by the next's.
/// All a worker needs comes to it with the cache lines it claims tasks on.
#[repr(align(128))]
pub struct Region<'a> {
    /// The next task of each share to be claimed; at its end or beyond when there is none.
    next: [AtomicUsize; SHARES],
    shares: usize,
    tasks: usize,
    work: &'a (dyn Fn(usize) + Sync),
    /// In the order they came. All are kept, as dropping one may panic, which is the caller's to bear.
    panics: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl<'a> Region<'a> {
    /// For so many threads.
    pub fn new(tasks: usize, threads: usize, work: &'a (dyn Fn(usize) + Sync)) -> Self {
        let shares = threads.clamp(1, SHARES);
        let next = std::array::from_fn(|share| AtomicUsize::new(start(share.min(shares), shares, tasks)));
        Self { next, shares, tasks, work, panics: Mutex::new(Vec::new()) }
    }

    /// Claims and runs tasks until there are none, as the thread of that number. Does not unwind: a panic is kept for the caller.
    pub fn work(&self, thread: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            for share in (0..self.shares).map(|i| (thread + i) % self.shares) {
                let end = start(share + 1, self.shares, self.tasks);
                // A look first: claiming from a share that is done would take the cache line from those at work.
                while self.next[share].load(Ordering::Relaxed) < end {
                    // Tasks share nothing through the counter; what they write is published when a thread leaves.
                    let task = self.next[share].fetch_add(1, Ordering::Relaxed);
                    if task >= end {
                        break;
                    }
                    (self.work)(task);
                }
            }
        }));
        if let Err(payload) = result {
            self.next.iter().for_each(|next| next.store(self.tasks, Ordering::Relaxed));
            self.panics.lock().unwrap_or_else(PoisonError::into_inner).push(payload);
        }
    }

    /// The first panic of a task, when all threads have left.
    pub fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panics.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().next()
    }
}

/// The first task of a share.
fn start(share: usize, shares: usize, tasks: usize) -> usize {
    // Without a product that could overflow: the first shares have one task more where they do not come out even.
    share * (tasks / shares) + share.min(tasks % shares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_all_tasks_in_order() {
        for shares in 1..=SHARES {
            for tasks in [0, 1, 2, 7, 16, 17, 1000, usize::MAX] {
                assert_eq!((start(0, shares, tasks), start(shares, shares, tasks)), (0, tasks));
                for share in 0..shares {
                    let count = start(share + 1, shares, tasks) - start(share, shares, tasks);
                    assert!(
                        count == tasks / shares || count == tasks / shares + 1,
                        "{share} of {shares}: {count}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_thread_begins_with_its_own_share_and_leaves_nothing() {
        let seen = Mutex::new(Vec::new());
        let work = |task| seen.lock().unwrap().push(task);
        Region::new(7, 3, &work).work(1);
        assert_eq!(seen.into_inner().unwrap(), [3, 4, 5, 6, 0, 1, 2]);
    }
}
