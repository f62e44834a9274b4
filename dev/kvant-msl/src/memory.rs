//! Memory that the host and a launcher's kernels share.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use wgpu::custom::{
    BufferInterface, BufferMapCallback, BufferMappedRangeInterface, DispatchBufferMappedRange,
};

/// Bytes with a place of their own, all zero at first.
pub(crate) struct Memory {
    at: *mut u8,
    bytes: usize,
    owner: Box<dyn Any + Send + Sync>,
}

/// An allocation of the host.
struct Allocation {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: an address that nothing is done with but to free it.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

// SAFETY: who reads or writes it goes through a device's queue, which does one thing at a time, or maps it while nothing is
// submitted, which is wgpu's rule for mapped buffers.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Of the host alone.
    pub(crate) fn on_host(bytes: usize) -> Memory {
        // Enough for the widest vector, and no allocation is empty.
        let layout = Layout::from_size_align(bytes.max(16), 64).expect("a size that fits into memory");
        // SAFETY: the layout has bytes.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        Memory { at, bytes: layout.size(), owner: Box::new(Allocation { at, layout }) }
    }

    /// Memory that `owner` keeps.
    ///
    /// # Safety
    /// `at` is valid for so many bytes, all of them written, as long as the owner lives.
    #[cfg(target_os = "macos")]
    pub(crate) unsafe fn of(at: *mut u8, bytes: usize, owner: Box<dyn Any + Send + Sync>) -> Memory {
        Memory { at, bytes, owner }
    }

    /// Who keeps it.
    #[cfg(target_os = "macos")]
    pub(crate) fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.owner
    }

    /// With these bytes at its start.
    pub(crate) fn filled(self, bytes: &[u8]) -> Memory {
        self.write(0, bytes);
        self
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the allocation has that many bytes, all of them written when it was made.
        unsafe { std::slice::from_raw_parts(self.at, self.len()) }
    }

    /// Writes bytes at a place that must lie within.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.len()), "a write beyond a buffer");
        // SAFETY: the bytes fit, as was just checked; `bytes` may be another part of the same memory.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.at.add(at), bytes.len()) };
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is not used any more.
        unsafe { dealloc(self.at, self.layout) };
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes of {:?})", self.len(), (*self.owner).type_id())
    }
}

/// A buffer of wgpu.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    pub memory: Arc<Memory>,
}

impl BufferInterface for HostBuffer {
    fn map_async(&self, _: wgpu::MapMode, _: Range<u64>, callback: BufferMapCallback) {
        // What was submitted has been done.
        callback(Ok(()));
    }

    fn get_mapped_range(&self, range: Range<u64>) -> Result<DispatchBufferMappedRange, wgpu::MapRangeError> {
        let range = range.start as usize..range.end as usize;
        Ok(DispatchBufferMappedRange::custom(Mapped { memory: Arc::clone(&self.memory), range }))
    }

    fn unmap(&self) {}

    fn destroy(&self) {}
}

/// A part of a buffer that the host reads.
#[derive(Debug)]
struct Mapped {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl BufferMappedRangeInterface for Mapped {
    fn len(&self) -> usize {
        self.range.len()
    }

    unsafe fn read_slice(&self) -> &[u8] {
        &self.memory.bytes()[self.range.clone()]
    }

    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        unreachable!("buffers are mapped to be read")
    }
}
