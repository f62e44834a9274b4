//! The handshake between the caller of regions and one worker.
//!
//! A worker owns one slot, and the slot is in one of these states:
//!
//! ```text
//!            offer             take
//!   IDLE  ─────────▶ OFFERED ────────▶ TAKEN
//!    ▲ │                │                │
//!    │ │ park   withdraw│           leave│
//!    │ ▼                ▼                ▼
//!   PARKED             IDLE            IDLE      (offer also from PARKED, with a wake-up; close from either)
//! ```
//!
//! The caller offers a region and, when it has run out of tasks itself, withdraws the offer or waits for the
//! worker to leave. A worker that was not awake in time therefore delays nobody.

use crate::region::Region;
use crate::sync::{
    AtomicBool, AtomicPtr, AtomicU8, GLANCES, Instant, Ordering, SPIN_LIMIT, Thread, WATCH, park, spin_loop,
    yield_now,
};
use std::ptr;

const IDLE: u8 = 0;
const OFFERED: u8 = 1;
const TAKEN: u8 = 2;
const PARKED: u8 = 3;
const CLOSED: u8 = 4;

/// Where one worker is offered regions. Alone on its cache lines, as both sides watch it.
#[repr(align(128))]
pub struct Slot {
    state: AtomicU8,
    region: AtomicPtr<Region<'static>>,
    /// More threads than processors: watching would take time from those that have work.
    crowded: AtomicBool,
}

impl Slot {
    pub fn new() -> Self {
        Self {
            state: AtomicU8::new(IDLE),
            region: AtomicPtr::new(ptr::null_mut()),
            crowded: AtomicBool::new(false),
        }
    }

    /// The caller's side: offers a region to the worker, which must have none.
    ///
    /// # Safety
    /// `region` must live until [`Slot::settle`] has returned.
    pub unsafe fn offer(&self, region: &Region<'_>, crowded: bool, worker: &Thread) {
        self.crowded.store(crowded, Ordering::Relaxed);
        self.region.store(ptr::from_ref(region).cast::<Region<'static>>().cast_mut(), Ordering::Relaxed);
        // Release: who sees the offer sees the region.
        if self.state.swap(OFFERED, Ordering::Release) == PARKED {
            worker.unpark();
        }
    }

    /// The caller's side: withdraws the offer, or waits until the worker has left the region.
    pub fn settle(&self) {
        // A look first: an exchange, also one that fails, would take the cache line from a worker at work.
        if self.state.load(Ordering::Relaxed) == OFFERED
            && self.state.compare_exchange(OFFERED, IDLE, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            return;
        }
        let mut spins = if self.crowded.load(Ordering::Relaxed) { 0 } else { SPIN_LIMIT };
        // Acquire: what the worker's tasks wrote is seen by the caller.
        while self.state.load(Ordering::Acquire) == TAKEN {
            if spins > 0 {
                spins -= 1;
                spin_loop();
            } else {
                yield_now();
            }
        }
    }

    /// The worker's side: takes part in regions until the slot is closed, as the thread of that number.
    pub fn serve(&self, thread: usize) {
        loop {
            // Acquire: the region is seen as it was offered, and not an earlier one.
            match self.state.compare_exchange(OFFERED, TAKEN, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    let region = self.region.load(Ordering::Relaxed);
                    // SAFETY: `offer` requires that the region lives until `settle` has returned, and that waits
                    // for the store below.
                    unsafe { &*region }.work(thread);
                    self.state.store(IDLE, Ordering::Release);
                }
                Err(CLOSED) => return,
                Err(_) => self.watch_and_sleep(),
            }
        }
    }

    /// Returns when there may be something new: an offer, the end, or an offer that was withdrawn again.
    fn watch_and_sleep(&self) {
        let crowded = self.crowded.load(Ordering::Relaxed);
        let start = Instant::now();
        while start.elapsed() < WATCH {
            for _ in 0..GLANCES {
                if self.state.load(Ordering::Relaxed) != IDLE {
                    return;
                }
                if crowded {
                    yield_now();
                } else {
                    spin_loop();
                }
            }
        }
        if self.state.compare_exchange(IDLE, PARKED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            while self.state.load(Ordering::Relaxed) == PARKED {
                park();
            }
        }
    }

    /// The caller's side: ends the worker, which must have no region.
    pub fn close(&self, worker: &Thread) {
        // An exchange comes after whatever the worker has exchanged last.
        self.state.swap(CLOSED, Ordering::Relaxed);
        worker.unpark();
    }
}
