//! Comparisons of one cache with the reference over one window.

use super::file::{self, Digest, Draft, HEADER_BYTES, Kind};
use crate::divergence::Comparison;
use kvant_cache::Footprint;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// What a cache showed in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WindowResult {
    /// One per scored position.
    pub comparisons: Vec<Comparison>,
    /// What the cache took at the end.
    pub footprint: Footprint,
}

const FOOTPRINT_BYTES: usize = 5 * 8;
const COMPARISON_BYTES: usize = 3 * 8 + 1;
const CHECKSUM: usize = 4;

impl WindowResult {
    /// Writes it down.
    pub fn save(&self, path: &Path, digest: &Digest) -> io::Result<()> {
        // Recurrent state is the same for every cache, and no cache is judged by it.
        let Footprint { encoded, exact, stored, bits_per_value, bits_total, .. } = self.footprint;
        let mut body: Vec<u8> = Vec::new();
        for count in [encoded, exact, stored] {
            body.extend((count as u64).to_le_bytes());
        }
        for bits in [bits_per_value, bits_total] {
            body.extend(bits.to_le_bytes());
        }
        for Comparison { kl, agrees, reference_nll, nll } in &self.comparisons {
            for number in [kl, reference_nll, nll] {
                body.extend(number.to_le_bytes());
            }
            body.push(u8::from(*agrees));
        }
        let checksum = crc32fast::hash(&body);
        let mut draft = Draft::new(path, Kind::Comparisons, digest)?;
        draft.write(&body)?;
        draft.write(&checksum.to_le_bytes())?;
        draft.finish()
    }

    /// Reads it back; none if it is not there, `Err` with the reason if it is refused.
    pub fn load(path: &Path, digest: &Digest, positions: usize) -> Result<Option<Self>, String> {
        let Ok(mut file) = File::open(path) else { return Ok(None) };
        let size = FOOTPRINT_BYTES + positions * COMPARISON_BYTES + CHECKSUM;
        file::check(&mut file, Kind::Comparisons, digest, size as u64)?;
        let mut body = vec![0; size];
        file.read_exact(&mut body).map_err(|e| format!("cannot be read ({e})"))?;
        let found = Self::decode(&body).ok_or("is damaged")?;
        Ok(Some(found))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM>()?;
        if crc32fast::hash(body).to_le_bytes() != *checksum {
            return None;
        }
        let (footprint, comparisons) = body.split_at_checked(FOOTPRINT_BYTES)?;
        let word =
            |bytes: &[u8], at: usize| -> Option<[u8; 8]> { bytes.get(8 * at..8 * at + 8)?.try_into().ok() };
        let count = |at| Some(u64::from_le_bytes(word(footprint, at)?) as usize);
        let real = |bytes: &[u8], at| Some(f64::from_le_bytes(word(bytes, at)?)).filter(|x| x.is_finite());
        let (stored, bits_total) = (count(2)?, real(footprint, 4)?);
        let footprint = Footprint {
            encoded: count(0)?,
            exact: count(1)?,
            stored,
            // As many numbers as take so many bits each.
            f16: if bits_total > 0.0 { (16.0 * stored as f64 / bits_total).round() as usize } else { 0 },
            bits_per_value: real(footprint, 3)?,
            bits_total,
            recurrent: 0,
            checkpoints: 0,
        };
        let comparison = |bytes: &[u8]| {
            Some(Comparison {
                kl: real(bytes, 0)?,
                reference_nll: real(bytes, 1)?,
                nll: real(bytes, 2)?,
                agrees: *bytes.last()? == 1,
            })
        };
        let comparisons: Option<Vec<_>> =
            comparisons.chunks_exact(COMPARISON_BYTES).map(comparison).collect();
        Some(Self { comparisons: comparisons?, footprint })
    }
}

/// Bytes of a file.
pub fn file_bytes(positions: usize) -> u64 {
    HEADER_BYTES + (FOOTPRINT_BYTES + positions * COMPARISON_BYTES + CHECKSUM) as u64
}
