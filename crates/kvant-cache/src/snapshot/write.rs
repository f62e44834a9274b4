//! From a sequence to a file.

use super::format::{Extent, Preamble, SideRecord};
use super::replace::replace;
use super::{Record, SnapshotError};
use crate::sequence::Sequence;
use crate::side::SideStore;
use crate::visibility::{Mode, Visibility};
use std::io::Write;
use std::path::Path;

/// Writes a sequence as [the format](crate::snapshot) says, and returns the number of bytes.
///
/// # Errors
/// When the sequence is in the middle of a pass, or made for strict evaluation; when the record's tokens are not as many
/// as it holds; or when writing fails.
pub fn write(sequence: &Sequence, record: &Record<'_>, out: &mut dyn Write) -> Result<u64, SnapshotError> {
    let unsaved = |what| Err(SnapshotError::Unsaved { what });
    can_be_saved(sequence)?;
    if record.tokens.len() != sequence.len() {
        return unsaved("it holds another number of tokens than were given to be saved with it");
    }
    let layout = sequence.layout();
    let extent = Extent { from: 0, len: sequence.len(), ends: true };
    let (mut sides, mut pages) = (Vec::new(), Vec::new());
    for (record, store) in SideRecord::of(layout).zip(stores(sequence)) {
        let record = SideRecord { dropped: store.dropped(), ..record };
        if !collect(&record, store, layout.rule(), extent, &mut pages) {
            return unsaved("it does not hold the pages that it should");
        }
        sides.push(record);
    }
    let preamble = Preamble {
        signature: record.signature,
        part: None,
        rule: *layout.rule(),
        shapes: layout.entries().iter().map(|entry| *entry.shape()).collect(),
        sides,
        policy: record.policy.to_owned(),
        tokens: record.tokens.to_vec(),
        note: record.note.to_vec(),
        checksums: pages.iter().map(|page| crc32fast::hash(page)).collect(),
    };
    put(&preamble, &pages, out)
}

/// Refuses what no file can hold.
pub(super) fn can_be_saved(sequence: &Sequence) -> Result<(), SnapshotError> {
    let layout = sequence.layout();
    let unsaved = |what| Err(SnapshotError::Unsaved { what });
    if layout.rule().mode == Mode::Strict {
        return unsaved("it is one of strict evaluation");
    }
    if (0..layout.entries().len()).any(|entry| sequence.entry_len(entry) != sequence.len()) {
        return unsaved("a pass over it is not finished");
    }
    Ok(())
}

/// All sides of a sequence, in the order of the file.
pub(super) fn stores(sequence: &Sequence) -> impl Iterator<Item = &SideStore> {
    sequence.layout().sides().filter_map(|(entry, head, side, _)| sequence.side(entry, head, side))
}

/// Writes preamble and pages, and returns the number of bytes.
pub(super) fn put(preamble: &Preamble, pages: &[&[u8]], out: &mut dyn Write) -> Result<u64, SnapshotError> {
    let Some((places, end)) = preamble.places() else {
        return Err(SnapshotError::Unsaved { what: "it is larger than a file can be" });
    };
    let mut at = 0;
    let mut put = |start: usize, bytes: &[u8]| {
        // At most one alignment's worth of zeros between two parts.
        out.write_all(&[0; 64][..start - at])?;
        at = start + bytes.len();
        out.write_all(bytes)
    };
    let failed = SnapshotError::io("write the file");
    let written = put(0, &preamble.to_bytes(end))
        .and_then(|()| places.iter().zip(pages).try_for_each(|(place, page)| put(place.start, page)))
        .and_then(|()| put(end, &[]));
    written.map_err(failed)?;
    Ok(end as u64)
}

/// The pages of one side in the order of the file; false if they are not all there.
pub(super) fn collect<'a>(
    record: &SideRecord,
    store: &'a SideStore,
    rule: &Visibility,
    extent: Extent,
    pages: &mut Vec<&'a [u8]>,
) -> bool {
    let expected = record.pages(rule, extent);
    let before = pages.len();
    pages.extend(store.sinks().filter(|_| expected.sinks));
    pages.extend(expected.encoded.clone().filter_map(|page| store.encoded(page)));
    let last = expected.exact.end + usize::from(expected.tail);
    pages.extend((expected.exact.start..last).filter_map(|page| store.exact(page)));
    pages.len() - before == expected.count()
}

impl Sequence {
    /// Saves the sequence in a file, which is either replaced as a whole or left as it was. Returns its bytes.
    ///
    /// # Errors
    /// As [`write()`](crate::snapshot::write); and when the system refuses to make, fill or rename the file.
    pub fn save(&self, path: &Path, record: &Record<'_>) -> Result<u64, SnapshotError> {
        replace(path, |file| write(self, record, file))
    }
}
