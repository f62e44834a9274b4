//! Memory of a card, and of the host where the card copies to.

use crate::device::{CudaGpu, OpenError, failed};
use crate::params::Address;
use cudarc::driver::result;
use std::ops::Range;
use std::sync::Arc;

/// Bytes on a card.
pub(crate) struct Buffer {
    card: Arc<CudaGpu>,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// Memory of this many bytes, whose contents are anything; never empty.
    pub(crate) fn new(card: &Arc<CudaGpu>, bytes: usize) -> Result<Buffer, OpenError> {
        card.bind()?;
        let bytes = bytes.next_multiple_of(256).max(256);
        // SAFETY: the context is current.
        let address = unsafe { result::malloc_sync(bytes) }
            .map_err(failed(format!("taking {bytes} bytes of {}'s memory", card.label())))?;
        Ok(Buffer { card: Arc::clone(card), address, bytes })
    }

    /// The same with these bytes.
    pub(crate) fn of(card: &Arc<CudaGpu>, bytes: &[u8]) -> Result<Buffer, OpenError> {
        let buffer = Buffer::new(card, bytes.len())?;
        buffer.upload(0, bytes)?;
        Ok(buffer)
    }

    /// The same with these numbers.
    pub(crate) fn of_floats(card: &Arc<CudaGpu>, numbers: &[f32]) -> Result<Buffer, OpenError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        Buffer::of(card, &bytes)
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes bytes from `at` on, after all that was put on the stream.
    pub(crate) fn upload(&self, at: usize, bytes: &[u8]) -> Result<(), OpenError> {
        assert!(at + bytes.len() <= self.bytes, "{} bytes at {at} of {}", bytes.len(), self.bytes);
        // SAFETY: the range is of this buffer.
        unsafe { upload(&self.card, self.address + at as u64, bytes) }
    }

    /// Copies a part of itself to another part that does not overlap it.
    pub(crate) fn repeat(&self, from: usize, to: usize, bytes: usize) -> Result<(), OpenError> {
        assert!(from + bytes <= to && to + bytes <= self.bytes, "{bytes} bytes from {from} to {to}");
        self.card.bind()?;
        let at = |offset: usize| self.address + offset as u64;
        // SAFETY: both ranges are of this buffer and do not overlap.
        unsafe { result::memcpy_dtod_async(at(to), at(from), bytes, self.card.stream()) }
            .map_err(failed("copying on the card"))
    }

    /// Sets some bytes to zero.
    pub(crate) fn clear(&self, range: Range<usize>) -> Result<(), OpenError> {
        assert!(range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.card.bind()?;
        let at = self.address + range.start as u64;
        // SAFETY: the range is of this buffer.
        unsafe { result::memset_d8_async(at, 0, range.len(), self.card.stream()) }
            .map_err(failed("clearing memory"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.card.synchronize().is_ok() {
            // SAFETY: the memory is ours and nothing on the stream uses it any more. What a lost card had is gone.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Writes bytes to the card; they may change once this returns.
///
/// # Safety
/// The range is memory of the card.
pub(crate) unsafe fn upload(card: &CudaGpu, to: Address, bytes: &[u8]) -> Result<(), OpenError> {
    if bytes.is_empty() {
        return Ok(());
    }
    card.bind()?;
    // SAFETY: the caller's contract. Of memory that is not pinned the driver has made a copy when this returns.
    unsafe { result::memcpy_htod_async(to, bytes, card.stream()) }.map_err(failed("copying to the card"))
}

/// Reads bytes from the card, and waits for them.
///
/// # Safety
/// The range is memory of the card.
pub(crate) unsafe fn download(card: &CudaGpu, from: Address, bytes: &mut [u8]) -> Result<(), OpenError> {
    if bytes.is_empty() {
        return Ok(());
    }
    card.bind()?;
    // SAFETY: the caller's contract; the bytes stay borrowed until the stream has been waited for.
    unsafe { result::memcpy_dtoh_async(bytes, from, card.stream()) }
        .map_err(failed("copying from the card"))?;
    card.synchronize()
}

/// Memory of the host that the card copies to by itself.
pub(crate) struct Pinned {
    card: Arc<CudaGpu>,
    at: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}
// SAFETY: what is shared is read and never written by the host.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(crate) fn new(card: &Arc<CudaGpu>, bytes: usize) -> Result<Pinned, OpenError> {
        card.bind()?;
        let bytes = bytes.max(256);
        // SAFETY: the context is current.
        let at = unsafe { result::malloc_host(bytes, 0) }
            .map_err(failed(format!("pinning {bytes} bytes of memory")))?
            .cast::<u8>();
        // SAFETY: the memory is ours and that long.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned { card: Arc::clone(card), at, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// All of it, for the host to write; nothing on the card may be reading it.
    pub(crate) fn own(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours, that long and initialised, and nobody else refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }

    /// Where the card finds it: memory that is pinned has one address for both.
    pub(crate) fn address(&self) -> Address {
        self.at.expose_provenance() as Address
    }

    /// What its first words are now; kernels may be writing them.
    pub(crate) fn words<const N: usize>(&self) -> [i32; N] {
        const { assert!(4 * N <= 256, "as much as there always is") };
        // SAFETY: the memory is ours, initialised, aligned and at least that long; each word is read once, as it is.
        std::array::from_fn(|word| unsafe { self.at.cast::<i32>().add(word).read_volatile() })
    }

    /// Writes bytes from its place `at` on, and from there to the card after all that was put on the stream.
    ///
    /// # Safety
    /// The range is memory of the card. The place is not written again, nor the memory given back, before the stream has come so far.
    pub(crate) unsafe fn send(&mut self, at: usize, to: Address, bytes: &[u8]) -> Result<(), OpenError> {
        assert!(at + bytes.len() <= self.bytes);
        // SAFETY: the memory is ours and that long, and the card does not read this place.
        let own = unsafe { std::slice::from_raw_parts_mut(self.at.add(at), bytes.len()) };
        own.copy_from_slice(bytes);
        // SAFETY: the caller's contract.
        unsafe { upload(&self.card, to, own) }
    }

    /// Begins to read some bytes of a buffer.
    ///
    /// # Safety
    /// Nothing else is done with it before the stream has come so far.
    pub(crate) unsafe fn begin_read(&mut self, from: &Buffer, range: Range<usize>) -> Result<(), OpenError> {
        let bytes = range.len();
        assert!(bytes <= self.bytes && range.end <= from.bytes());
        self.card.bind()?;
        // SAFETY: the memory is ours, that long and initialised, and nobody else refers to it.
        let own = unsafe { std::slice::from_raw_parts_mut(self.at, bytes) };
        // SAFETY: the range is of that buffer; the rest is the caller's contract.
        unsafe { result::memcpy_dtoh_async(own, from.address() + range.start as u64, self.card.stream()) }
            .map_err(failed("copying from the card"))
    }

    /// Its first bytes.
    ///
    /// # Safety
    /// The card writes nothing there.
    pub(crate) unsafe fn bytes_at_start(&self, bytes: usize) -> &[u8] {
        assert!(bytes <= self.bytes);
        // SAFETY: the memory is ours, initialised and that long; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts(self.at, bytes) }
    }

    /// Reads some bytes of a buffer, and waits for them.
    pub(crate) fn read(&mut self, from: &Buffer, range: Range<usize>) -> Result<&[u8], OpenError> {
        let bytes = range.len();
        assert!(bytes <= self.bytes && range.end <= from.bytes());
        let card = Arc::clone(&self.card);
        let own = &mut self.own()[..bytes];
        // SAFETY: the range is of that buffer.
        unsafe { download(&card, from.address() + range.start as u64, own)? };
        Ok(own)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.card.bind().is_ok() {
            // SAFETY: the memory is ours; every copy to it was waited for.
            let _ = unsafe { result::free_host(self.at.cast()) };
        }
    }
}
