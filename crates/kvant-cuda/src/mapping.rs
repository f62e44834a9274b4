//! The page memory of a card: one range of addresses, in which memory is mapped as pages need it.

use crate::device::{CudaGpu, OpenError, failed};
use crate::params::Address;
use cudarc::driver::sys;
use std::sync::Arc;

/// Bytes that are mapped at a time, where the range has as many.
const STEP: usize = 64 << 20;

/// What a range and each piece of memory in it is a multiple of.
const GRANULE: usize = 2 << 20;

/// A range of addresses whose first `mapped` bytes are memory.
pub(crate) struct Mapping {
    card: Arc<CudaGpu>,
    base: Address,
    bytes: usize,
    mapped: usize,
    pieces: Vec<(sys::CUmemGenericAllocationHandle, usize)>,
}

impl Mapping {
    /// A range of so many bytes, rounded up to granules, without memory.
    pub(crate) fn new(card: &Arc<CudaGpu>, bytes: usize) -> Result<Mapping, OpenError> {
        card.bind()?;
        let bytes = bytes.next_multiple_of(GRANULE).max(GRANULE);
        let mut base = 0;
        // SAFETY: the pointer is to an integer of ours.
        unsafe { sys::cuMemAddressReserve(&mut base, bytes, GRANULE, 0, 0) }
            .result()
            .map_err(failed(format!("reserving {bytes} bytes of addresses")))?;
        Ok(Mapping { card: Arc::clone(card), base, bytes, mapped: 0, pieces: Vec::new() })
    }

    pub(crate) fn base(&self) -> Address {
        self.base
    }

    pub(crate) fn mapped(&self) -> usize {
        self.mapped
    }

    /// Sees to it that the first `wanted` bytes are memory.
    pub(crate) fn extend(&mut self, wanted: usize) -> Result<(), OpenError> {
        while self.mapped < wanted {
            let least = (wanted - self.mapped).next_multiple_of(GRANULE);
            let step = STEP.max(least).min(self.bytes - self.mapped);
            // A card that is nearly full may still have what is needed now.
            if self.add(step).is_err() {
                self.add(least)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, bytes: usize) -> Result<(), OpenError> {
        self.card.bind()?;
        let what = || format!("taking {bytes} bytes of {}'s memory for pages", self.card.label());
        // SAFETY: all zeros is a description of nothing; what is wanted is set below.
        let mut wanted: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.location.id = self.card.device();
        let mut handle = 0;
        // SAFETY: pointers to values of ours.
        unsafe { sys::cuMemCreate(&mut handle, bytes, &wanted, 0) }.result().map_err(failed(what()))?;
        let at = self.base + self.mapped as u64;
        // SAFETY: the addresses are of our range and nothing is mapped there.
        let mapped = unsafe { sys::cuMemMap(at, bytes, 0, handle, 0) }.result();
        let access = sys::CUmemAccessDesc {
            location: wanted.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let ready = mapped.and_then(|()| {
            // SAFETY: the addresses were mapped above.
            unsafe { sys::cuMemSetAccess(at, bytes, &access, 1) }.result()
        });
        if let Err(error) = ready {
            // SAFETY: the handle is ours; a mapping that was not made is refused, which changes nothing.
            unsafe {
                let _ = sys::cuMemUnmap(at, bytes);
                let _ = sys::cuMemRelease(handle);
            }
            return Err(failed(what())(error));
        }
        self.pieces.push((handle, bytes));
        self.mapped += bytes;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.card.synchronize().is_err() {
            return; // what a lost card had is gone
        }
        let mut at = self.base;
        for (handle, bytes) in self.pieces.drain(..) {
            // SAFETY: mapped by us, and nothing on the stream uses it any more.
            unsafe {
                let _ = sys::cuMemUnmap(at, bytes);
                let _ = sys::cuMemRelease(handle);
            }
            at += bytes as u64;
        }
        // SAFETY: reserved by us, and nothing is mapped there.
        let _ = unsafe { sys::cuMemAddressFree(self.base, self.bytes) };
    }
}
