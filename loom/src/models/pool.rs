//! A caller of regions and one worker.

use crate::region::Region;
use crate::slot::Slot;
use crate::sync::{Arc, Thread, spawn};
use loom::cell::UnsafeCell;
use std::panic::resume_unwind;

const TASKS: usize = 2;

/// What tasks write without any lock.
struct Written([UnsafeCell<usize>; TASKS]);

// SAFETY: loom ends the model where two threads reach a cell at once.
unsafe impl Sync for Written {}

impl Written {
    fn new() -> Written {
        Written([UnsafeCell::new(0), UnsafeCell::new(0)])
    }

    fn add(&self, task: usize) {
        // SAFETY: as above.
        self.0[task].with_mut(|count| unsafe { *count += 1 });
    }

    fn counts(&self) -> [usize; TASKS] {
        // SAFETY: as above.
        self.0.each_ref().map(|cell| cell.with(|count| unsafe { *count }))
    }
}

/// One region from offer to end, as a pool runs it.
fn run(slot: &Slot, worker: &Thread, work: &(dyn Fn(usize) + Sync)) -> bool {
    let region = Region::new(TASKS, 2, work);
    // SAFETY: the region lives until after `settle`.
    unsafe { slot.offer(&region, false, worker) };
    region.work(0);
    slot.settle();
    region.into_panic().is_some()
}

fn with_worker(caller: impl Fn(&Slot, &Thread)) {
    let slot = Arc::new(Slot::new());
    let its_slot = Arc::clone(&slot);
    let (worker, ends) = spawn(move || its_slot.serve(1));
    caller(&slot, &worker);
    slot.close(&worker);
    ends.join().expect("it keeps panics of tasks");
}

/// Two regions, one after the other.
pub fn regions() {
    with_worker(|slot, worker| {
        for _ in 0..2 {
            let written = Written::new();
            assert!(!run(slot, worker, &|task| written.add(task)));
            assert_eq!(written.counts(), [1; TASKS]);
        }
    });
}

/// A region whose first task panics, and one after it.
pub fn panics() {
    with_worker(|slot, worker| {
        let work = |task| {
            if task == 0 {
                resume_unwind(Box::new(()));
            }
        };
        assert!(run(slot, worker, &work));
        let written = Written::new();
        assert!(!run(slot, worker, &|task| written.add(task)));
        assert_eq!(written.counts(), [1; TASKS]);
    });
}
