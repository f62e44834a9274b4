//! A device that deals the bytes of a page otherwise, and lets nobody look at them.

use kvant_cache::{ArenaError, PageId, PageKind, PageStore, PageUse, Usage};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

pub struct Toy {
    cap: Option<usize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// What pages were said to be: kinds from 1 on.
    kinds: Vec<PageUse>,
    /// By number, as the device deals them.
    pages: HashMap<u64, Vec<u8>>,
    used: usize,
    /// Pages that went to the host, came from it, and were copied on the device.
    traffic: [usize; 3],
}

/// Reversed within units of as many bytes as the page's kind says: its own inverse.
fn dealt(page: PageId, bytes: &[u8]) -> Vec<u8> {
    let unit = 1 + 16 * (page.0 >> 32) as usize;
    bytes.chunks(unit).flat_map(|unit| unit.iter().rev().copied()).collect()
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

    fn kind(&self, of: &PageUse) -> PageKind {
        let kinds = &mut self.lock().kinds;
        let known = kinds.iter().position(|known| known == of);
        PageKind(
            1 + known.unwrap_or_else(|| {
                kinds.push(of.clone());
                kinds.len() - 1
            }) as u16,
        )
    }

    fn kind_of(&self, page: PageId) -> PageKind {
        PageKind((page.0 >> 32) as u16)
    }

    fn take(&self, kind: PageKind, len: usize) -> Result<PageId, ArenaError> {
        let mut state = self.lock();
        if let Some(told) = usize::from(kind.0).checked_sub(1) {
            assert_eq!(state.kinds[told].format.bytes(), len, "a page is taken as what it will hold");
        }
        if let Some(cap) = self.cap.filter(|cap| state.used + len > *cap) {
            return Err(ArenaError::Full { asked: len, used: state.used, cap });
        }
        state.next += 1;
        state.used += len;
        let page = u64::from(kind.0) << 32 | state.next;
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
        bytes.copy_from_slice(&dealt(page, &state.pages[&page.0]));
    }

    fn write(&self, page: PageId, bytes: &[u8]) {
        let mut state = self.lock();
        state.traffic[1] += 1;
        state.pages.insert(page.0, dealt(page, bytes));
    }

    fn copy(&self, from: PageId, to: PageId, _: usize) {
        let mut state = self.lock();
        state.traffic[2] += 1;
        let bytes = state.pages[&from.0].clone();
        state.pages.insert(to.0, bytes);
    }
}
