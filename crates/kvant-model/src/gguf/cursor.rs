//! A bounds-checked walk over little-endian bytes.

use crate::error::{LoadError, Result};

/// A position in a byte slice. Every read checks what is left first, so a hostile length can fail but never
/// allocate or reach outside.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes consumed so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8]> {
        let left = self.remaining();
        let count = usize::try_from(count).ok().filter(|&n| n <= left).ok_or_else(|| {
            LoadError::malformed(format!(
                "{count} bytes were announced at offset {}, where only {left} are left; the file is truncated \
                 or damaged, fetch it again",
                self.at
            ))
        })?;
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    /// The next `N` bytes, for `from_le_bytes`.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: a 64-bit length, then that many bytes of UTF-8.
    pub(super) fn string(&mut self) -> Result<&'a str> {
        let start = self.at;
        let length = self.u64()?;
        std::str::from_utf8(self.take(length)?)
            .map_err(|_| LoadError::malformed(format!("the string at offset {start} is not UTF-8")))
    }
}
