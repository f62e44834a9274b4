//! Pages: written once by their only owner ([`PageMut`]), then shared ([`Page`]).
//!
//! What sequences hold are handles with the address inside, so reading a page of host memory follows one pointer, wherever the
//! bytes lie: in a slot of an arena, or in a file. A page of a device has no address: [`Page::host`] says so, and
//! [`Page::canonical`] asks the device for the bytes.

use crate::arena::ArenaError;
use crate::lease::Lease;
use crate::store::PageId;
use crate::sync::Arc;
use std::borrow::Cow;
use std::path::Path;
use std::ptr::NonNull;

/// A page with one owner, who may write it.
#[derive(Debug)]
pub struct PageMut {
    /// Of a slot or a device: bytes of a file are never written.
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

    /// Its number of bytes.
    pub fn size(&self) -> usize {
        self.lease.len()
    }

    /// Its bytes, if they lie in host memory.
    pub fn host(&self) -> Option<&[u8]> {
        // SAFETY: the lease owns these bytes.
        self.lease.host().map(|bytes| unsafe { bytes.as_ref() })
    }

    /// The same, to be written.
    pub fn host_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the lease owns these bytes, they are those of a slot, and nobody shares it.
        self.lease.host().map(|mut bytes| unsafe { bytes.as_mut() })
    }

    /// Its number on a device; none in host memory.
    pub fn id(&self) -> Option<PageId> {
        self.lease.id()
    }

    /// Its bytes in the canonical layout: read from the device where they do not lie in host memory.
    pub fn canonical(&self) -> Cow<'_, [u8]> {
        self.lease.canonical()
    }

    /// Changes its bytes, in the canonical layout; on a device they go there and back.
    pub fn edit<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> R {
        if let Some(bytes) = self.host_mut() {
            return change(bytes);
        }
        let mut bytes = self.canonical().into_owned();
        let result = change(&mut bytes);
        self.write(&bytes);
        result
    }

    /// Replaces its bytes; there must be as many.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        if let Some(own) = self.host_mut() {
            own.copy_from_slice(bytes);
        } else {
            self.lease.write_to_device(bytes);
        }
    }

    /// Its bytes as numbers; none on a device.
    pub(crate) fn floats(&self) -> &[f32] {
        self.host().map_or(&[], floats)
    }

    /// Changes its bytes as numbers.
    pub(crate) fn edit_floats<R>(&mut self, change: impl FnOnce(&mut [f32]) -> R) -> R {
        if let Some(bytes) = self.host_mut() {
            // SAFETY: any four bytes are a float.
            let (start, numbers, _) = unsafe { bytes.align_to_mut() };
            debug_assert!(start.is_empty(), "slots are aligned");
            return change(numbers);
        }
        let bytes = self.canonical();
        let mut numbers: Vec<f32> = bytes.chunks_exact(4).map(number).collect();
        let result = change(&mut numbers);
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
        self.write(&bytes);
        result
    }

    /// Another page with the same bytes.
    ///
    /// # Errors
    /// When the store has no more memory.
    pub fn copy(&self) -> Result<PageMut, ArenaError> {
        self.lease.copy()
    }
}

/// A reference to a page that never changes. Cloning it shares the page.
#[derive(Clone, Debug)]
pub struct Page {
    /// The lease's address, kept here so that reading does not go through it.
    host: Option<NonNull<[u8]>>,
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
        Page { host: lease.host(), lease: Arc::new(lease) }
    }

    /// Its number of bytes.
    pub fn size(&self) -> usize {
        self.lease.len()
    }

    /// Its bytes, if they lie in host memory.
    #[inline]
    pub fn host(&self) -> Option<&[u8]> {
        // SAFETY: the lease, which this reference keeps, owns the bytes, and nobody writes them.
        self.host.map(|bytes| unsafe { bytes.as_ref() })
    }

    /// Its number on a device; none in host memory.
    pub fn id(&self) -> Option<PageId> {
        self.lease.id()
    }

    /// Its bytes in the canonical layout: read from the device where they do not lie in host memory.
    pub fn canonical(&self) -> Cow<'_, [u8]> {
        self.lease.canonical()
    }

    /// Its bytes as numbers; none on a device. Pages of a file are not aligned for that: they are copied when they are loaded.
    pub(crate) fn floats(&self) -> &[f32] {
        self.host().map_or(&[], floats)
    }

    /// A page with the same bytes that may be written: this one if it has no other reference, else a copy.
    ///
    /// # Errors
    /// When the store has no more memory.
    pub fn into_mut(self) -> Result<PageMut, ArenaError> {
        match Arc::try_unwrap(self.lease) {
            Ok(lease) if !lease.is_mapped() => Ok(PageMut { lease }),
            Ok(lease) => lease.copy(),
            Err(shared) => shared.copy(),
        }
    }

    /// The same page to be written, if it can be and has no other reference.
    pub(crate) fn reclaim(self) -> Option<PageMut> {
        Arc::try_unwrap(self.lease).ok().filter(|lease| !lease.is_mapped()).map(PageMut::new)
    }

    /// How many references there are.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.lease)
    }

    /// Whether it is the same page.
    pub(crate) fn key(&self) -> usize {
        Arc::as_ptr(&self.lease) as usize
    }

    /// The file that the page lies in, if some of it is gone.
    pub(crate) fn damaged_file(&self) -> Option<&Path> {
        self.lease.damaged_file()
    }

    /// Whether the page lies in a file and takes no slot of an arena.
    pub fn is_mapped(&self) -> bool {
        self.lease.is_mapped()
    }
}

fn floats(bytes: &[u8]) -> &[f32] {
    // SAFETY: any four bytes are a float.
    let (start, floats, _) = unsafe { bytes.align_to() };
    debug_assert!(start.is_empty(), "slots are aligned");
    floats
}

fn number(bytes: &[u8]) -> f32 {
    bytes.try_into().map_or(0.0, f32::from_ne_bytes)
}

/// A page to be read, whoever owns it.
#[derive(Clone, Copy)]
pub(crate) enum AnyPage<'a> {
    Own(&'a PageMut),
    Shared(&'a Page),
}

impl<'a> AnyPage<'a> {
    pub(crate) fn host(self) -> Option<&'a [u8]> {
        match self {
            AnyPage::Own(page) => page.host(),
            AnyPage::Shared(page) => page.host(),
        }
    }

    pub(crate) fn canonical(self) -> Cow<'a, [u8]> {
        match self {
            AnyPage::Own(page) => page.canonical(),
            AnyPage::Shared(page) => page.canonical(),
        }
    }

    pub(crate) fn id(self) -> Option<PageId> {
        match self {
            AnyPage::Own(page) => page.id(),
            AnyPage::Shared(page) => page.id(),
        }
    }

    pub(crate) fn size(self) -> usize {
        match self {
            AnyPage::Own(page) => page.size(),
            AnyPage::Shared(page) => page.size(),
        }
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

    pub(crate) fn any(&self) -> AnyPage<'_> {
        match self {
            Held::Own(page) => AnyPage::Own(page),
            Held::Shared(page) => AnyPage::Shared(page),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::lease::FileBytes;

    #[test]
    fn pages_of_a_file_are_shared_in_place_and_copied_to_be_written() {
        let arena = Arena::new();
        let file = Arc::new(FileBytes::Read((0..100).collect()));
        let page = arena.mapped(&file, 10..90).unwrap();
        assert!(arena.mapped(&file, 10..101).is_none() && page.is_mapped());
        let address = |page: &Page| page.host().unwrap().as_ptr();
        assert_eq!((address(&page), page.host().unwrap()[0]), (file[10..].as_ptr(), 10));
        assert_eq!((arena.usage().mapped, arena.usage().used), (80, 0));
        let mut own = page.clone().into_mut().unwrap();
        own.edit(|bytes| bytes[0] = 99);
        assert_eq!((page.canonical()[0], own.canonical()[1], arena.usage().used), (10, 11, 128));
        // The last reference to a page of a file gives no right to write the file.
        let alone = page.into_mut().unwrap();
        assert_ne!(alone.host().unwrap().as_ptr(), file[10..].as_ptr());
        assert_eq!(arena.usage().mapped, 0);
    }

    #[test]
    fn the_last_reference_may_write_in_place() {
        let page = Arena::new().page(70).unwrap().freeze();
        let (address, other) = (page.host().unwrap().as_ptr(), page.clone());
        assert_ne!(page.into_mut().unwrap().host().unwrap().as_ptr(), address);
        assert_eq!(other.into_mut().unwrap().host().unwrap().as_ptr(), address);
    }

    #[test]
    fn numbers_are_those_of_the_bytes() {
        let mut page = Arena::new().page(12).unwrap();
        page.edit_floats(|numbers| numbers.copy_from_slice(&[1.0, -2.0, 0.5]));
        assert_eq!(page.floats(), [1.0, -2.0, 0.5]);
        assert_eq!(page.canonical()[4..8], (-2.0f32).to_ne_bytes());
    }
}
