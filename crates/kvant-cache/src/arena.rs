//! Where pages of host memory live: blocks of equal slots that are never moved and never given back before the arena itself. The last
//! owner of a page puts its slot on the free list.

use crate::lease::{FileBytes, Lease};
use crate::page::{Page, PageMut};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use memmap2::MmapMut;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

/// Slots start at multiples of this: a cache line.
const ALIGN: usize = 64;

/// Bytes by which the arena first grows for slots of a size, rounded to whole slots.
const BLOCK: usize = 1 << 20;

/// The same once they have filled [`SEVERAL`] bytes: then they are worth memory in large pages. A step reads every page
/// at an address of its own, and looking up where a small page of memory lies takes as long as reading a page of the cache.
const LARGE_BLOCK: usize = 8 << 20;
const SEVERAL: usize = 2 << 20;

/// Bytes from which on the system is asked first whether it has so many.
const MANY: usize = 1 << 30;

/// What the large pages of most systems are aligned to.
const LARGE_PAGE: usize = 2 << 20;

/// The memory of pages, shared by any number of sequences. Cloning gives another handle to the same arena.
#[derive(Clone, Debug, Default)]
pub struct Arena {
    shared: Arc<Shared>,
}

/// How an arena takes memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaOptions {
    /// The most bytes its pages may take at a time; `None` for no limit.
    pub cap: Option<usize>,
    /// Pins the memory as it is taken, so that it is never swapped out.
    pub pinned: bool,
}

/// A page that cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// It would exceed the arena's cap.
    #[error(
        "the KV memory is full: {used} of {cap} bytes are in use and {asked} more were needed; end a sequence, shorten it or raise the cap"
    )]
    Full {
        /// Bytes that were asked for.
        asked: usize,
        /// Bytes in use.
        used: usize,
        /// The cap.
        cap: usize,
    },
    /// The system gives no memory.
    #[error("the system gives no {bytes} bytes of memory for keys and values: {}; shorten the context or close other programs", reason(*.code))]
    Refused {
        /// Bytes that were asked for.
        bytes: usize,
        /// The system's number for the reason.
        code: Option<i32>,
    },
    /// The system does not pin memory.
    #[error(
        "keys and values: cannot pin {bytes} bytes in memory: {}; raise the limit on locked memory (`ulimit -l`) or do without pinning",
        reason(*.code)
    )]
    NotPinned {
        /// Bytes that were to be pinned.
        bytes: usize,
        /// The system's number for the reason; none where it cannot pin at all.
        code: Option<i32>,
    },
    /// The file that a page was to be copied from has shrunk.
    #[error(
        "the file of a saved sequence was truncated or cannot be read any more: restore it and load it again, or begin anew"
    )]
    FileDamaged,
}

fn reason(code: Option<i32>) -> io::Error {
    code.map_or_else(|| io::ErrorKind::Unsupported.into(), io::Error::from_raw_os_error)
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
    state: Mutex<ArenaState>,
    options: ArenaOptions,
}

#[derive(Debug, Default)]
struct ArenaState {
    usage: Usage,
    /// By slot size.
    classes: HashMap<usize, Class>,
    /// What the slots lie in.
    blocks: Vec<MmapMut>,
}

/// Slots of one size.
#[derive(Debug, Default)]
struct Class {
    free: Vec<PageSlot>,
    /// Bytes taken for them.
    reserved: usize,
}

/// The start of a slot.
#[derive(Clone, Copy, Debug)]
struct PageSlot(NonNull<u8>);

// SAFETY: an address; what it points to is reached through the page handles alone.
unsafe impl Send for PageSlot {}

impl Arena {
    /// An arena without a limit.
    pub fn new() -> Arena {
        Arena::default()
    }

    /// An arena whose pages take at most `cap` bytes at a time.
    pub fn with_cap(cap: usize) -> Arena {
        Arena::with(ArenaOptions { cap: Some(cap), ..ArenaOptions::default() })
    }

    /// An arena that takes memory as these options say.
    pub fn with(options: ArenaOptions) -> Arena {
        Arena { shared: Arc::new(Shared { state: Mutex::default(), options }) }
    }

    /// The most bytes its pages may take.
    pub fn cap(&self) -> Option<usize> {
        self.shared.options.cap
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
    /// When the cap would be exceeded, or the system gives or pins no more memory.
    pub fn page(&self, len: usize) -> Result<PageMut, ArenaError> {
        let slot = self.shared.take(Arena::slot_bytes(len))?;
        let mut bytes = NonNull::slice_from_raw_parts(slot.0, len);
        // SAFETY: the slot has at least `len` bytes and no other owner.
        unsafe { bytes.as_mut() }.fill(0);
        Ok(PageMut::new(Lease::slot(bytes, self.clone())))
    }

    /// Whether so many bytes more may be taken: whoever takes pages one by one without having asked fills the memory before there is an
    /// error.
    ///
    /// # Errors
    /// When the cap would be exceeded, or the system has not so much memory.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), ArenaError> {
        let Usage { used, reserved, .. } = self.usage();
        if let Some(cap) = self.cap().filter(|cap| bytes > cap.saturating_sub(used)) {
            return Err(ArenaError::Full { asked: bytes, used, cap });
        }
        let fresh = bytes.saturating_sub(reserved - used);
        if fresh > MANY {
            // Pages of memory that nobody touches cost nothing.
            let refused = |e: io::Error| ArenaError::Refused { bytes, code: e.raw_os_error() };
            MmapMut::map_anon(fresh.min(isize::MAX as usize)).map_err(refused)?;
        }
        Ok(())
    }

    /// A page that lies in a file; `None` when the range reaches beyond its end.
    pub(crate) fn mapped(&self, file: &Arc<FileBytes>, range: Range<usize>) -> Option<Page> {
        let bytes = NonNull::from(file.get(range)?);
        self.shared.lock().usage.mapped += bytes.len();
        Some(Page::new(Lease::file(bytes, Arc::clone(file), self.clone())))
    }

    pub(crate) fn give_back(&self, bytes: NonNull<[u8]>) {
        self.shared.give_back(PageSlot(bytes.cast()), Arena::slot_bytes(bytes.len()));
    }

    pub(crate) fn unmap(&self, bytes: usize) {
        self.shared.lock().usage.mapped -= bytes;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, ArenaState> {
        // The state is consistent between statements; a panic elsewhere does not harm it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, size: usize) -> Result<PageSlot, ArenaError> {
        let mut state = self.lock();
        let used = state.usage.used;
        if let Some(cap) = self.options.cap.filter(|cap| size > cap.saturating_sub(used)) {
            return Err(ArenaError::Full { asked: size, used, cap });
        }
        let slot = match state.classes.entry(size).or_default().free.pop() {
            Some(slot) => slot,
            None => state.grow(size, self.options.pinned)?,
        };
        state.usage.pages += 1;
        state.usage.used += size;
        Ok(slot)
    }

    fn give_back(&self, slot: PageSlot, size: usize) {
        let mut state = self.lock();
        state.usage.pages -= 1;
        state.usage.used -= size;
        state.classes.entry(size).or_default().free.push(slot);
    }
}

impl ArenaState {
    /// Adds a block of slots and returns the first.
    fn grow(&mut self, size: usize, pinned: bool) -> Result<PageSlot, ArenaError> {
        let class = self.classes.entry(size).or_default();
        let large = class.reserved >= SEVERAL;
        let bytes = (if large { LARGE_BLOCK } else { BLOCK } / size).max(1) * size;
        let refused = |e: io::Error| ArenaError::Refused { bytes, code: e.raw_os_error() };
        // Room to begin on a boundary; what is not touched takes no memory, but pinning touches all.
        let room = if large && !pinned { LARGE_PAGE } else { 0 };
        let mut block = MmapMut::map_anon(bytes + room).map_err(refused)?;
        #[cfg(target_os = "linux")]
        if large {
            // Without large pages all is as right, and slower.
            let _ = block.advise(memmap2::Advice::HugePage);
        }
        if pinned {
            pin(&block).map_err(|e| ArenaError::NotPinned { bytes, code: e.raw_os_error() })?;
        }
        let offset = block.as_ptr().align_offset(LARGE_PAGE).min(room);
        let start = NonNull::from(&mut block[offset..offset + bytes]).cast::<u8>();
        self.blocks.push(block);
        self.usage.reserved += bytes;
        class.reserved += bytes;
        // Last first, so that slots are handed out in the order of their addresses.
        // SAFETY: every slot lies within the block.
        let slots = (1..bytes / size).rev().map(|i| PageSlot(unsafe { start.add(i * size) }));
        class.free.extend(slots);
        Ok(PageSlot(start))
    }
}

fn pin(block: &MmapMut) -> io::Result<()> {
    #[cfg(unix)]
    {
        block.lock()
    }
    #[cfg(not(unix))]
    {
        let _ = block;
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_once_and_slots_are_used_again() {
        let arena = Arena::new();
        let mut page = arena.page(100).unwrap();
        page.edit(|bytes| bytes[99] = 7);
        let address = page.host().unwrap().as_ptr();
        let page = page.freeze();
        let other = page.clone();
        assert_eq!((arena.usage().pages, arena.usage().used, page.references()), (1, 128, 2));
        drop(page);
        assert_eq!((other.host().unwrap()[99], other.size(), arena.usage().pages), (7, 100, 1));
        drop(other);
        assert_eq!(arena.usage(), Usage { reserved: arena.usage().reserved, ..Usage::default() });
        let again = arena.page(90).unwrap();
        assert_eq!(again.host().unwrap().as_ptr(), address);
        assert!(again.host().unwrap().iter().all(|byte| *byte == 0), "a page starts empty");
    }

    #[test]
    fn growing_never_moves_a_page() {
        let arena = Arena::new();
        let pages: Vec<Page> = (0..600)
            .map(|i| {
                let mut page = arena.page(5000).unwrap();
                page.edit(|bytes| bytes.fill(i as u8));
                page.freeze()
            })
            .collect();
        assert!(arena.usage().reserved > 2 * BLOCK);
        for (i, page) in pages.iter().enumerate() {
            let bytes = page.host().unwrap();
            assert!(bytes.iter().all(|byte| *byte == i as u8));
            assert_eq!(bytes.as_ptr() as usize % ALIGN, 0);
        }
    }

    #[test]
    fn the_cap_is_exact_and_its_error_says_what_to_do() {
        let arena = Arena::with_cap(256);
        let first = arena.page(128).unwrap();
        let copy = first.copy().unwrap();
        let error = arena.page(1).unwrap_err();
        assert_eq!(error, ArenaError::Full { asked: 64, used: 256, cap: 256 });
        assert!(error.to_string().contains("raise the cap"));
        drop(copy);
        assert!(arena.page(128).is_ok());
    }

    #[test]
    fn pinned_memory_is_like_any_other_or_refused_in_words() {
        let arena = Arena::with(ArenaOptions { pinned: true, ..ArenaOptions::default() });
        match arena.page(100) {
            Ok(page) => assert!(page.canonical().iter().all(|byte| *byte == 0)),
            Err(error) => {
                assert!(matches!(error, ArenaError::NotPinned { .. }), "{error}");
                assert_eq!(arena.usage(), Usage::default(), "what cannot be pinned is given back");
            }
        }
        let error = ArenaError::NotPinned { bytes: 4096, code: Some(12) }.to_string();
        assert!(error.contains("cannot pin 4096 bytes") && error.contains("ulimit -l"), "{error}");
        assert!(ArenaError::NotPinned { bytes: 1, code: None }.to_string().contains("unsupported"));
    }

    #[test]
    fn pages_outlive_the_handle_of_their_arena() {
        let page = Arena::new().page(3).unwrap().freeze();
        assert_eq!(page.host(), Some(&[0; 3][..]));
    }
}
