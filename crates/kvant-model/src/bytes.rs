//! Shared, immutable bytes: a stretch of a mapped file, or memory of our own.

use crate::error::{LoadError, LoadErrorKind, Result};
use kvant_cache::mapped::{FileHealth, MappedFile};
use memmap2::{Mmap, MmapMut};
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// A cheaply cloned slice of a mapped file or of an owned buffer; the owner lives as long as any slice of it.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    range: Range<usize>,
}

#[derive(Clone)]
enum Owner {
    File(Arc<MappedFile>),
    Zeros(Arc<Mmap>),
    Heap(Arc<Vec<u8>>),
}

impl Bytes {
    /// Maps a whole file for reading.
    ///
    /// **Invariant:** kvant itself never writes into a model file in place (downloads are renamed into position when complete). Where
    /// another program shrinks the file, or its disk fails, what is gone reads as zeros; [`crate::Checkpoint::intact`] then says so.
    pub fn map(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| LoadError::io("open the file", path, e))?;
        let metadata = file.metadata().map_err(|e| LoadError::io("read the size of the file", path, e))?;
        if !metadata.is_file() {
            return Err(LoadError::malformed("is not a regular file").in_file(path));
        }
        if metadata.len() == 0 {
            return Err(LoadError::malformed("the file is empty; fetch it again").in_file(path));
        }
        let map = MappedFile::new(&file, path).map_err(|e| LoadError::io("map the file", path, e))?;
        let range = 0..map.len();
        Ok(Self { owner: Owner::File(Arc::new(map)), range })
    }

    /// Tells whether the file behind these bytes is still whole; none for bytes that are not in a file.
    pub(crate) fn health(&self) -> Option<&Arc<FileHealth>> {
        match &self.owner {
            Owner::File(map) => Some(map.health()),
            Owner::Zeros(_) | Owner::Heap(_) => None,
        }
    }

    /// Zeros, which take addresses but no memory.
    pub fn zeros(len: usize) -> Result<Self> {
        // An empty map is refused by some systems.
        let map = MmapMut::map_anon(len.max(1)).and_then(MmapMut::make_read_only).map_err(|e| {
            LoadError::new(
                LoadErrorKind::Io,
                format!("the system has no addresses for a tensor of {len} bytes: {e}"),
            )
        })?;
        Ok(Self { owner: Owner::Zeros(Arc::new(map)), range: 0..len })
    }

    /// The part `range` of these bytes, sharing the owner; `None` when it reaches beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.range.len() {
            return None;
        }
        let start = self.range.start + range.start;
        Some(Self { owner: self.owner.clone(), range: start..start + range.len() })
    }

    /// True when the bytes lie in a mapped file, or nowhere, and so cost no memory of their own.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::File(_) | Owner::Zeros(_))
    }

    /// Tells the kernel that the mapped pages of these bytes are not needed now, for instance after a tensor was
    /// repacked; those at both ends too, which hold others' bytes as well. They come back from the file when touched.
    /// Nothing happens to owned bytes, nor on systems without `madvise`.
    pub fn release(&self) {
        #[cfg(unix)]
        {
            let map = match &self.owner {
                Owner::File(file) => file.map(),
                Owner::Zeros(map) => map,
                Owner::Heap(_) => return,
            };
            const PAGE: usize = 1 << 16; // a multiple of every page size in use: 4, 16 (Apple) and 64 KiB (some ARM)
            let start = self.range.start / PAGE * PAGE;
            let end = self.range.end.next_multiple_of(PAGE).min(map.len());
            if start < end {
                // SAFETY: DontNeed on a private read-only file mapping drops cached pages only; the next read
                // faults the same file contents back in (zeros where there is no file), so existing references stay valid.
                let advised = unsafe {
                    map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
                };
                // Advice that is refused costs memory, not correctness.
                drop(advised);
            }
        }
    }
}

/// Keeps the pages of `bytes` in memory until the process ends or they are freed.
///
/// # Errors
/// If the system refuses, usually because of its limit on locked memory, or has no such call.
pub fn lock(bytes: &[u8]) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        // SAFETY: the address and length are those of a live slice; locking changes no contents.
        let status = unsafe { libc::mlock(bytes.as_ptr().cast(), bytes.len()) };
        if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
    #[cfg(not(unix))]
    {
        let _ = bytes;
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { owner: Owner::Heap(Arc::new(bytes)), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.owner {
            Owner::File(map) => &map[self.range.clone()],
            Owner::Zeros(map) => &map[self.range.clone()],
            Owner::Heap(bytes) => &bytes[self.range.clone()],
        }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_mapped() { "mapped" } else { "owned" };
        write!(f, "Bytes({} {kind})", self.len())
    }
}
