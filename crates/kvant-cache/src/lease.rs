//! The right to a page's bytes, wherever they lie.

use crate::arena::{Arena, ArenaError};
#[cfg(unix)]
use crate::mapped::MappedFile;
use crate::page::PageMut;
use crate::store::{PageId, PageStore, Store};
use crate::sync::Arc;
use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;

/// The bytes of a file, mapped or read.
pub(crate) enum FileBytes {
    #[cfg(unix)]
    Map(MappedFile),
    Read(Vec<u8>),
}

impl FileBytes {
    /// The file, if some of it could not be read any more: what is gone reads as zeros.
    pub(crate) fn damaged(&self) -> Option<&Path> {
        match self {
            #[cfg(unix)]
            FileBytes::Map(map) => {
                Some(map.health()).filter(|health| health.is_damaged()).map(|health| health.path())
            }
            FileBytes::Read(_) => None,
        }
    }
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
pub(crate) struct Lease {
    len: usize,
    place: Place,
}

enum Place {
    /// A slot of an arena, whose only owner is the lease.
    Slot(NonNull<[u8]>, Arena),
    /// A part of a file, which is only read; it counts as mapped by the arena.
    File(NonNull<[u8]>, Arena, Arc<FileBytes>),
    /// A page of a device.
    Device(PageId, Arc<dyn PageStore>),
}

// SAFETY: the bytes are plain data; those of a slot have the lease as only owner, those of a file are only read.
unsafe impl Send for Lease {}
// SAFETY: as above; shared leases are only read.
unsafe impl Sync for Lease {}

impl Lease {
    pub(crate) fn slot(bytes: NonNull<[u8]>, arena: Arena) -> Lease {
        Lease { len: bytes.len(), place: Place::Slot(bytes, arena) }
    }

    pub(crate) fn file(bytes: NonNull<[u8]>, file: Arc<FileBytes>, arena: Arena) -> Lease {
        Lease { len: bytes.len(), place: Place::File(bytes, arena, file) }
    }

    pub(crate) fn device(page: PageId, len: usize, store: Arc<dyn PageStore>) -> Lease {
        Lease { len, place: Place::Device(page, store) }
    }

    /// The address, if the host has one.
    pub(crate) fn host(&self) -> Option<NonNull<[u8]>> {
        match self.place {
            Place::Slot(bytes, _) | Place::File(bytes, ..) => Some(bytes),
            Place::Device(..) => None,
        }
    }

    pub(crate) fn is_mapped(&self) -> bool {
        match self.place {
            Place::File(..) => true,
            Place::Slot(..) | Place::Device(..) => false,
        }
    }

    /// The file that the bytes lie in, if some of it is gone.
    pub(crate) fn damaged_file(&self) -> Option<&Path> {
        match &self.place {
            Place::File(_, _, file) => file.damaged(),
            Place::Slot(..) | Place::Device(..) => None,
        }
    }

    pub(crate) fn id(&self) -> Option<PageId> {
        match self.place {
            Place::Device(page, _) => Some(page),
            Place::Slot(..) | Place::File(..) => None,
        }
    }

    pub(crate) fn canonical(&self) -> Cow<'_, [u8]> {
        match &self.place {
            // SAFETY: the lease owns the bytes or the file keeps them, and whoever may write them has the lease mutably.
            Place::Slot(bytes, _) | Place::File(bytes, ..) => Cow::Borrowed(unsafe { bytes.as_ref() }),
            Place::Device(page, store) => {
                let mut bytes = vec![0; self.len];
                store.read(*page, &mut bytes);
                Cow::Owned(bytes)
            }
        }
    }

    /// Its number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes all bytes of a page on a device.
    pub(crate) fn write_to_device(&self, bytes: &[u8]) {
        match &self.place {
            Place::Device(page, store) => store.write(*page, bytes),
            Place::Slot(..) | Place::File(..) => {}
        }
    }

    /// Another page with the same bytes, to be written.
    pub(crate) fn copy(&self) -> Result<PageMut, ArenaError> {
        match &self.place {
            Place::Slot(_, arena) | Place::File(_, arena, _) => {
                let mut copy = arena.page(self.len)?;
                copy.write(&self.canonical());
                // What is gone was copied as zeros, of which nobody could tell later that they are none of the sequence's.
                if self.damaged_file().is_some() { Err(ArenaError::FileDamaged) } else { Ok(copy) }
            }
            Place::Device(page, store) => {
                let copy = Store::Device(Arc::clone(store)).page(store.kind_of(*page), self.len)?;
                if let Some(to) = copy.id() {
                    store.copy(*page, to, self.len);
                }
                Ok(copy)
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match &self.place {
            Place::Slot(bytes, arena) => arena.give_back(*bytes),
            Place::File(_, arena, _) => arena.unmap(self.len),
            Place::Device(page, store) => store.give_back(*page, self.len),
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.len)
    }
}
