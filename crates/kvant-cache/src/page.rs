//! Pages: written once by their only owner ([`PageMut`]), then shared ([`Page`]).
//!
//! What sequences hold are handles with the address inside, so reading a page follows one pointer, wherever the bytes
//! lie: in a slot of an arena, or in a file.

use crate::arena::{Arena, ArenaError};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// The bytes of a file, mapped or read.
pub(crate) enum FileBytes {
    #[cfg(unix)]
    Map(memmap2::Mmap),
    Read(Vec<u8>),
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileBytes({})", self.len())
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            #[cfg(unix)]
            FileBytes::Map(map) => map,
            FileBytes::Read(bytes) => bytes,
        }
    }
}

/// The right to a page's bytes; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Lease {
    bytes: NonNull<[u8]>,
    arena: Arena,
    /// Where the bytes lie, if not in a slot of the arena.
    file: Option<Arc<FileBytes>>,
}

// SAFETY: the bytes are plain data; those of a slot have the lease as only owner, those of a file are only read.
unsafe impl Send for Lease {}
// SAFETY: as above; shared leases are only read.
unsafe impl Sync for Lease {}

impl Lease {
    pub(crate) fn slot(bytes: NonNull<[u8]>, arena: Arena) -> Lease {
        Lease { bytes, arena, file: None }
    }

    pub(crate) fn file(bytes: NonNull<[u8]>, file: Arc<FileBytes>, arena: Arena) -> Lease {
        Lease { bytes, arena, file: Some(file) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self.file {
            None => self.arena.give_back(self.bytes),
            Some(_) => self.arena.unmap(self.bytes.len()),
        }
    }
}

/// A page with one owner, who may write it.
#[derive(Debug)]
pub struct PageMut {
    /// Of a slot: bytes of a file are never written.
    lease: Lease,
}

impl PageMut {
    pub(crate) fn new(slot: Lease) -> PageMut {
        PageMut { lease: slot }
    }

    /// Ends writing: from now on the page is shared and never changes.
    pub fn freeze(self) -> Page {
        Page::new(self.lease)
    }

    /// Another page with the same bytes.
    ///
    /// # Errors
    /// When the arena has no more memory.
    pub fn copy(&self) -> Result<PageMut, ArenaError> {
        let mut copy = self.lease.arena.page(self.len())?;
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
        // SAFETY: the lease owns these bytes, they are those of a slot, and nobody shares it.
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
    /// Bytes that a page takes besides its own: the lease, its counters, and what the allocator adds.
    pub(crate) const LEASE_BYTES: usize = size_of::<Lease>() + 2 * size_of::<usize>() + 16;

    pub(crate) fn new(lease: Lease) -> Page {
        Page { bytes: lease.bytes, lease: Arc::new(lease) }
    }

    /// A page with the same bytes that may be written: this one if it has no other reference, else a copy.
    ///
    /// # Errors
    /// When the arena has no more memory.
    pub fn into_mut(self) -> Result<PageMut, ArenaError> {
        let Page { bytes, lease } = self;
        match Arc::try_unwrap(lease) {
            Ok(lease) if lease.file.is_none() => Ok(PageMut { lease }),
            Ok(lease) => copy(bytes, &lease),
            Err(shared) => copy(bytes, &shared),
        }
    }

    /// How many references there are.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.lease)
    }

    /// Whether the page lies in a file and takes no slot of the arena.
    pub fn is_mapped(&self) -> bool {
        self.lease.file.is_some()
    }
}

fn copy(bytes: NonNull<[u8]>, lease: &Lease) -> Result<PageMut, ArenaError> {
    let mut copy = lease.arena.page(bytes.len())?;
    // SAFETY: the lease, which is still held, owns the bytes, and nobody writes them.
    copy.copy_from_slice(unsafe { bytes.as_ref() });
    Ok(copy)
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the lease, which this reference keeps, owns the bytes, and nobody writes them.
        unsafe { self.bytes.as_ref() }
    }
}

/// A page that may still be written, or one that is complete and shared.
pub(crate) enum Held {
    Own(PageMut),
    Shared(Page),
}

impl Held {
    /// The same page, to be written.
    pub(crate) fn into_mut(self) -> Result<PageMut, ArenaError> {
        match self {
            Held::Own(page) => Ok(page),
            Held::Shared(page) => page.into_mut(),
        }
    }

    /// Another reference to a shared page, a copy of one that may be written.
    pub(crate) fn fork(&self) -> Result<Held, ArenaError> {
        Ok(match self {
            Held::Own(page) => Held::Own(page.copy()?),
            Held::Shared(page) => Held::Shared(page.clone()),
        })
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Held::Own(page) => page,
            Held::Shared(page) => page,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_file_are_shared_in_place_and_copied_to_be_written() {
        let arena = Arena::new();
        let file = Arc::new(FileBytes::Read((0..100).collect()));
        let page = arena.mapped(&file, 10..90).unwrap();
        assert!(arena.mapped(&file, 10..101).is_none() && page.is_mapped());
        assert_eq!((page.as_ptr(), page[0]), (file[10..].as_ptr(), 10));
        assert_eq!((arena.usage().mapped, arena.usage().used), (80, 0));
        let mut own = page.clone().into_mut().unwrap();
        own[0] = 99;
        assert_eq!((page[0], own[1], arena.usage().used), (10, 11, 128));
        // The last reference to a page of a file gives no right to write the file.
        let alone = page.into_mut().unwrap();
        assert_ne!(alone.as_ptr(), file[10..].as_ptr());
        assert_eq!(arena.usage().mapped, 0);
    }

    #[test]
    fn the_last_reference_may_write_in_place() {
        let page = Arena::new().page(70).unwrap().freeze();
        let (address, other) = (page.as_ptr(), page.clone());
        assert_ne!(page.into_mut().unwrap().as_ptr(), address);
        assert_eq!(other.into_mut().unwrap().as_ptr(), address);
    }
}
