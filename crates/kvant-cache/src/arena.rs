//! Where pages live: blocks of equal slots that are never moved and never given back before the arena itself. The last
//! owner of a page puts its slot on the free list.

use crate::page::{FileBytes, Lease, Page, PageMut};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots start at multiples of this: a cache line.
const ALIGN: usize = 64;

/// Bytes by which the arena grows, rounded to whole slots.
const BLOCK: usize = 1 << 20;

/// The memory of pages, shared by any number of sequences. Cloning gives another handle to the same arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    shared: Arc<Shared>,
}

/// A request for a page beyond the arena's cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the KV memory is full: {used} of {cap} bytes are in use and {asked} more were needed; end a sequence, shorten it or raise the cap"
)]
pub struct ArenaFull {
    /// Bytes that were asked for.
    pub asked: usize,
    /// Bytes in use.
    pub used: usize,
    /// The cap.
    pub cap: usize,
}

/// What an arena holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Pages in use, each counted once however many sequences share it.
    pub pages: usize,
    /// Bytes of their slots.
    pub used: usize,
    /// Bytes taken from the system, free slots included.
    pub reserved: usize,
    /// Bytes of pages that lie in a mapped file. They take no memory that the system could not take back, and do not
    /// count towards the cap.
    pub mapped: usize,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    cap: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    usage: Usage,
    /// By slot size.
    free: HashMap<usize, Vec<Slot>>,
    blocks: Vec<(Slot, Layout)>,
}

/// The start of a slot or a block.
#[derive(Clone, Copy, Debug)]
struct Slot(NonNull<u8>);

// SAFETY: an address; what it points to is reached through the page handles alone.
unsafe impl Send for Slot {}

impl Arena {
    /// An arena without a limit.
    pub fn new() -> Arena {
        Arena::default()
    }

    /// An arena whose pages take at most `cap` bytes at a time.
    pub fn with_cap(cap: usize) -> Arena {
        Arena { shared: Arc::new(Shared { state: Mutex::default(), cap: Some(cap) }) }
    }

    /// The most bytes its pages may take.
    pub fn cap(&self) -> Option<usize> {
        self.shared.cap
    }

    /// What it holds now.
    pub fn usage(&self) -> Usage {
        self.shared.lock().usage
    }

    /// Bytes that a page of `len` bytes takes.
    pub fn slot_bytes(len: usize) -> usize {
        len.max(1).next_multiple_of(ALIGN)
    }

    /// A page of `len` zero bytes that nobody else sees.
    ///
    /// # Errors
    /// When the cap would be exceeded.
    pub fn page(&self, len: usize) -> Result<PageMut, ArenaFull> {
        let slot = self.shared.take(Arena::slot_bytes(len))?;
        let mut bytes = NonNull::slice_from_raw_parts(slot.0, len);
        // SAFETY: the slot has at least `len` bytes and no other owner.
        unsafe { bytes.as_mut() }.fill(0);
        Ok(PageMut::new(Lease::slot(bytes, self.clone())))
    }

    /// A page that lies in a file; `None` when the range reaches beyond its end.
    pub(crate) fn mapped(&self, file: &Arc<FileBytes>, range: Range<usize>) -> Option<Page> {
        let bytes = NonNull::from(file.get(range)?);
        self.shared.lock().usage.mapped += bytes.len();
        Some(Page::new(Lease::file(bytes, Arc::clone(file), self.clone())))
    }

    pub(crate) fn give_back(&self, bytes: NonNull<[u8]>) {
        self.shared.give_back(Slot(bytes.cast()), Arena::slot_bytes(bytes.len()));
    }

    pub(crate) fn unmap(&self, bytes: usize) {
        self.shared.lock().usage.mapped -= bytes;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements; a panic elsewhere does not harm it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, size: usize) -> Result<Slot, ArenaFull> {
        let mut state = self.lock();
        let used = state.usage.used;
        if let Some(cap) = self.cap.filter(|cap| size > cap.saturating_sub(used)) {
            return Err(ArenaFull { asked: size, used, cap });
        }
        let slot = match state.free.entry(size).or_default().pop() {
            Some(slot) => slot,
            None => state.grow(size),
        };
        state.usage.pages += 1;
        state.usage.used += size;
        Ok(slot)
    }

    fn give_back(&self, slot: Slot, size: usize) {
        let mut state = self.lock();
        state.usage.pages -= 1;
        state.usage.used -= size;
        state.free.entry(size).or_default().push(slot);
    }
}

impl State {
    /// Adds a block of slots and returns the first.
    fn grow(&mut self, size: usize) -> Slot {
        let count = (BLOCK / size).max(1);
        let Ok(layout) = Layout::from_size_align(count * size, ALIGN) else {
            unreachable!("a block is below half of the address space: a page of {size} bytes already exists")
        };
        // SAFETY: the size is not zero, because slots are not empty.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        self.blocks.push((Slot(start), layout));
        self.usage.reserved += layout.size();
        // Last first, so that slots are handed out in the order of their addresses.
        // SAFETY: every slot lies within the block.
        let slots = (1..count).rev().map(|i| Slot(unsafe { start.add(i * size) }));
        self.free.entry(size).or_default().extend(slots);
        Slot(start)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (start, layout) in self.blocks.drain(..) {
            // SAFETY: allocated with this layout; every handle keeps the arena alive, so none is left.
            unsafe { dealloc(start.0.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_and_slots_are_used_again() {
        let arena = Arena::new();
        let mut page = arena.page(100).unwrap();
        page[99] = 7;
        let address = page.as_ptr();
        let page = page.freeze();
        let other = page.clone();
        assert_eq!((arena.usage().pages, arena.usage().used, page.references()), (1, 128, 2));
        drop(page);
        assert_eq!((other[99], other.len(), arena.usage().pages), (7, 100, 1));
        drop(other);
        assert_eq!(arena.usage(), Usage { reserved: arena.usage().reserved, ..Usage::default() });
        let again = arena.page(90).unwrap();
        assert_eq!(again.as_ptr(), address);
        assert!(again.iter().all(|byte| *byte == 0), "a page starts empty");
    }

    #[test]
    fn growing_never_moves_a_page() {
        let arena = Arena::new();
        let pages: Vec<Page> = (0..600)
            .map(|i| {
                let mut page = arena.page(5000).unwrap();
                page.fill(i as u8);
                page.freeze()
            })
            .collect();
        assert!(arena.usage().reserved > 2 * BLOCK);
        for (i, page) in pages.iter().enumerate() {
            assert!(page.iter().all(|byte| *byte == i as u8));
            assert_eq!(page.as_ptr() as usize % ALIGN, 0);
        }
    }

    #[test]
    fn the_cap_is_exact_and_its_error_says_what_to_do() {
        let arena = Arena::with_cap(256);
        let first = arena.page(128).unwrap();
        let copy = first.copy().unwrap();
        let error = arena.page(1).unwrap_err();
        assert_eq!(error, ArenaFull { asked: 64, used: 256, cap: 256 });
        assert!(error.to_string().contains("raise the cap"));
        drop(copy);
        assert!(arena.page(128).is_ok());
    }

    #[test]
    fn pages_outlive_the_handle_of_their_arena() {
        let page = Arena::new().page(3).unwrap().freeze();
        assert_eq!(&page[..], [0, 0, 0]);
    }
}
