//! A device that deals the bytes of a page otherwise, and lets nobody look at them.

use kvant_cache::{ArenaError, PageId, PageStore, Usage};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub struct Toy {
    cap: Option<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// By number, as the device deals them.
    pages: HashMap<u64, Vec<u8>>,
    used: usize,
    /// Pages that went to the host, came from it, and were copied on the device.
    traffic: [usize; 3],
}

/// Reversed within units of 64 bytes: its own inverse.
fn dealt(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(64).flat_map(|unit| unit.iter().rev().copied()).collect()
}

impl Toy {
    pub fn new(cap: Option<usize>) -> Arc<Toy> {
        Arc::new(Toy { cap, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Reads, writes and copies since the last time.
    pub fn traffic(&self) -> [usize; 3] {
        std::mem::take(&mut self.lock().traffic)
    }
}

impl PageStore for Toy {
    fn name(&self) -> &str {
        "toy:0"
    }

    fn cap(&self) -> Option<usize> {
        self.cap
    }

    fn usage(&self) -> Usage {
        let state = self.lock();
        Usage { pages: state.pages.len(), used: state.used, reserved: state.used, mapped: 0 }
    }

    fn take(&self, len: usize) -> Result<PageId, ArenaError> {
        let mut state = self.lock();
        if let Some(cap) = self.cap.filter(|cap| state.used + len > *cap) {
            return Err(ArenaError::Full { asked: len, used: state.used, cap });
        }
        state.next += 1;
        state.used += len;
        let page = state.next;
        state.pages.insert(page, vec![0; len]);
        Ok(PageId(page))
    }

    fn give_back(&self, page: PageId, len: usize) {
        let mut state = self.lock();
        state.used -= len;
        assert_eq!(state.pages.remove(&page.0).map(|bytes| bytes.len()), Some(len));
    }

    fn read(&self, page: PageId, bytes: &mut [u8]) {
        let mut state = self.lock();
        state.traffic[0] += 1;
        bytes.copy_from_slice(&dealt(&state.pages[&page.0]));
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        let mut state = self.lock();
        state.traffic[1] += 1;
        state.pages.insert(page.0, dealt(bytes));
    }

    fn copy(&self, from: PageId, to: PageId, _: usize) {
        let mut state = self.lock();
        state.traffic[2] += 1;
        let bytes = state.pages[&from.0].clone();
        state.pages.insert(to.0, bytes);
    }
}
