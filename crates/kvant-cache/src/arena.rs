//! Where pages live: blocks of equal slots that are never moved and never given back before the arena itself.
//!
//! A page is written once by its only owner ([`PageMut`]) and then shared ([`Page`]). The last owner's drop puts the slot
//! on the free list. What sequences hold are handles with the address inside, so reading a page follows one pointer.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
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
        Ok(PageMut { lease: Lease { bytes, shared: Arc::clone(&self.shared) } })
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

/// The right to a slot; dropping it frees the slot.
#[derive(Debug)]
struct Lease {
    bytes: NonNull<[u8]>,
    shared: Arc<Shared>,
}

// SAFETY: the bytes are plain data of which the lease is the only owner.
unsafe impl Send for Lease {}
// SAFETY: as above; shared leases are only read.
unsafe impl Sync for Lease {}

impl Drop for Lease {
    fn drop(&mut self) {
        let size = Arena::slot_bytes(self.bytes.len());
        self.shared.give_back(Slot(self.bytes.cast()), size);
    }
}

/// A page with one owner, who may write it.
#[derive(Debug)]
pub struct PageMut {
    lease: Lease,
}

impl PageMut {
    /// Ends writing: from now on the page is shared and never changes.
    pub fn freeze(self) -> Page {
        Page { bytes: self.lease.bytes, lease: Arc::new(self.lease) }
    }

    /// Another page with the same bytes.
    ///
    /// # Errors
    /// When the arena's cap would be exceeded.
    pub fn copy(&self) -> Result<PageMut, ArenaFull> {
        let mut copy = Arena { shared: Arc::clone(&self.lease.shared) }.page(self.len())?;
        copy.copy_from_slice(self);
        Ok(copy)
    }
}

impl Deref for PageMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lease owns these bytes.
        unsafe { self.lease.bytes.as_ref() }
    }
}

impl DerefMut for PageMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the lease owns these bytes, and nobody shares it.
        unsafe { self.lease.bytes.as_mut() }
    }
}

/// A reference to a page that never changes. Cloning it shares the page.
#[derive(Clone, Debug)]
pub struct Page {
    /// The lease's bytes, kept here so that reading does not go through it.
    bytes: NonNull<[u8]>,
    lease: Arc<Lease>,
}

// SAFETY: the bytes are plain data that nobody writes once a page is shared.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// A page with the same bytes that may be written: this one if it has no other reference, else a copy.
    ///
    /// # Errors
    /// When the arena's cap would be exceeded.
    pub fn into_mut(self) -> Result<PageMut, ArenaFull> {
        let Page { bytes, lease } = self;
        match Arc::try_unwrap(lease) {
            Ok(lease) => Ok(PageMut { lease }),
            Err(shared) => {
                let mut copy = Arena { shared: Arc::clone(&shared.shared) }.page(bytes.len())?;
                // SAFETY: the lease, which is still held, owns the bytes, and nobody writes them.
                copy.copy_from_slice(unsafe { bytes.as_ref() });
                Ok(copy)
            }
        }
    }

    /// How many references there are.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.lease)
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lease, which this reference keeps, owns the bytes, and nobody writes them.
        unsafe { self.bytes.as_ref() }
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
        assert_eq!(arena.usage(), Usage { pages: 0, used: 0, reserved: arena.usage().reserved });
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
