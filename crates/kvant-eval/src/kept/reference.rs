//! Predictions of one window with the exact cache.
//!
//! After the header one record per scored position, all of one size:
//!
//! ```text
//! f32 Δ | u32 most likely token | f64 nll at the token that came | u16 × vocabulary | u32 checksum of the record
//! ```

use super::file::{self, Digest, Draft, HEADER_BYTES, Kind};
use super::rounding;
use crate::divergence::Seen;
use kvant_model::Rows;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

const BEFORE_CODES: usize = 4 + 4 + 8;
const CHECKSUM: usize = 4;

/// Bytes of a record.
fn record_bytes(vocabulary: usize) -> usize {
    BEFORE_CODES + 2 * vocabulary + CHECKSUM
}

/// Bytes of a file.
pub fn file_bytes(positions: usize, vocabulary: usize) -> u64 {
    HEADER_BYTES + positions as u64 * record_bytes(vocabulary) as u64
}

/// Rounds logits as they would be kept, in place, and returns the records to keep; or the first row that cannot be.
pub fn round(logits: &mut Rows, seen: &[Seen]) -> Result<Vec<u8>, usize> {
    let vocabulary = logits.width();
    let size = record_bytes(vocabulary);
    let mut records = vec![0; size * seen.len()];
    let mut rows: Vec<(&mut [f32], &mut [u8], bool)> = logits
        .data_mut()
        .chunks_exact_mut(vocabulary)
        .zip(records.chunks_exact_mut(size))
        .map(|(row, record)| (row, record, false))
        .collect();
    kvant_threads::for_each_chunk(&mut rows, 1, |number, row| {
        let (row, record, fits) = &mut row[0];
        let mut codes = vec![0; vocabulary];
        let Some(step) = rounding::encode(row, &mut codes) else { return };
        rounding::decode(codes.iter().copied(), step, row);
        let Seen { top, nll } = seen[number];
        record[..4].copy_from_slice(&step.to_le_bytes());
        record[4..8].copy_from_slice(&(top as u32).to_le_bytes());
        record[8..16].copy_from_slice(&nll.to_le_bytes());
        for (bytes, code) in record[BEFORE_CODES..size - CHECKSUM].chunks_exact_mut(2).zip(codes) {
            bytes.copy_from_slice(&code.to_le_bytes());
        }
        let checksum = crc32fast::hash(&record[..size - CHECKSUM]);
        record[size - CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
        *fits = true;
    });
    match rows.iter().position(|(.., fits)| !fits) {
        Some(row) => Err(row),
        None => Ok(records),
    }
}

/// A reference under way to the disk.
pub struct Writer(Draft);

impl Writer {
    /// Begins a file.
    pub fn new(path: &Path, digest: &Digest) -> io::Result<Self> {
        Draft::new(path, Kind::Reference, digest).map(Self)
    }

    /// Adds the records of [`round`].
    pub fn write(&mut self, records: &[u8]) -> io::Result<()> {
        self.0.write(records)
    }

    /// The window is done.
    pub fn finish(self) -> io::Result<()> {
        self.0.finish()
    }

    /// The window will not be done.
    pub fn discard(self) {
        self.0.discard();
    }
}

/// A reference that was kept.
pub struct Reader {
    file: File,
    vocabulary: usize,
}

impl Reader {
    /// Opens the reference of a window with so many scored positions; none if it is not there, `Err` with the reason if it
    /// is refused.
    pub fn open(
        path: &Path,
        digest: &Digest,
        positions: usize,
        vocabulary: usize,
    ) -> Result<Option<Self>, String> {
        let Ok(mut file) = File::open(path) else { return Ok(None) };
        let body = file_bytes(positions, vocabulary) - HEADER_BYTES;
        file::check(&mut file, Kind::Reference, digest, body)?;
        let mut reader = Self { file, vocabulary };
        // Every record is checked before the first is used: a window is done with one reference or the other.
        for first in (0..positions).step_by(64) {
            reader.read(first, 64.min(positions - first))?;
        }
        Ok(Some(reader))
    }

    /// The logits `(count, vocabulary)` and what was seen at `count` scored positions from `first` on.
    pub fn read(&mut self, first: usize, count: usize) -> Result<(Rows, Vec<Seen>), String> {
        let size = record_bytes(self.vocabulary);
        let mut bytes = vec![0; count * size];
        let at = HEADER_BYTES + first as u64 * size as u64;
        self.file
            .seek(SeekFrom::Start(at))
            .and_then(|_| self.file.read_exact(&mut bytes))
            .map_err(|e| format!("cannot be read ({e})"))?;
        let mut logits = vec![0.0; count * self.vocabulary];
        let mut seen = Vec::with_capacity(count);
        for (record, logits) in bytes.chunks_exact(size).zip(logits.chunks_exact_mut(self.vocabulary)) {
            seen.push(decode(record, logits).ok_or("has a damaged record")?);
        }
        Ok((Rows::from_vec(logits, self.vocabulary), seen))
    }
}

/// What a record says, if its checksum is right and its numbers can be.
fn decode(record: &[u8], logits: &mut [f32]) -> Option<Seen> {
    let (body, checksum) = record.split_last_chunk::<CHECKSUM>()?;
    if crc32fast::hash(body).to_le_bytes() != *checksum {
        return None;
    }
    let (step, rest) = body.split_first_chunk::<4>()?;
    let (top, rest) = rest.split_first_chunk::<4>()?;
    let (nll, codes) = rest.split_first_chunk::<8>()?;
    let (step, nll) = (f32::from_le_bytes(*step), f64::from_le_bytes(*nll));
    let top = u32::from_le_bytes(*top) as usize;
    let fits = step.is_finite() && step >= 0.0 && nll.is_finite() && top < logits.len();
    let codes = codes.chunks_exact(2).map(|code| u16::from_le_bytes([code[0], code[1]]));
    rounding::decode(codes, step, logits);
    fits.then_some(Seen { top, nll })
}
