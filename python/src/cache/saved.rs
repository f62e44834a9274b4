//! The sequences of a layer as bytes: each is what a session file of one layer would be (`docs/format.md` of kvant-cache), with
//! canonical pages and their checksums. Models that run elsewhere keep their own tokens, so zeros stand in their place.

use super::refused;
use kvant_cache::snapshot::{Record, Signature, Snapshot, write};
use kvant_cache::{Arena, CacheLayout, Sequence};
use pyo3::prelude::*;
use std::sync::Arc;

/// Every sequence as bytes.
pub fn to_bytes(sequences: &[Sequence], policy: &str, signature: Signature) -> PyResult<Vec<Vec<u8>>> {
    let one = |sequence: &Sequence| {
        let tokens = vec![0; sequence.len()];
        let record = Record { signature, numerics: [0; 32], policy, tokens: &tokens, note: b"" };
        let mut bytes = Vec::new();
        write(sequence, &record, &mut bytes).map_err(refused)?;
        Ok(bytes)
    };
    sequences.iter().map(one).collect()
}

/// Sequences of such a layer from their bytes, which are checked from the first to the last.
pub fn from_bytes(
    rows: Vec<Vec<u8>>,
    signature: &Signature,
    layout: &Arc<CacheLayout>,
    arena: &Arena,
) -> PyResult<Vec<Sequence>> {
    let one = |(row, bytes)| {
        let sequence = Snapshot::from_bytes(bytes)
            .and_then(|snapshot| snapshot.sequence(signature, Arc::clone(layout), arena.clone()));
        sequence.map_err(|error| refused(format!("the saved sequence {row} {error}")))
    };
    rows.into_iter().enumerate().map(one).collect()
}
