//! Memory for packed weights: on page boundaries, in large pages where the system has them.

use memmap2::MmapMut;
use std::io;
use std::ops::{Deref, DerefMut};

/// A buffer of fixed size that begins on a page.
pub(crate) struct AlignedBytes {
    map: MmapMut,
}

impl AlignedBytes {
    /// `len` zeros, `len` above zero. Pages are taken as they are written.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(len)?;
        #[cfg(target_os = "linux")]
        {
            // Fewer pages are filled sooner and found faster; without the advice all is as right.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        Ok(Self { map })
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}
