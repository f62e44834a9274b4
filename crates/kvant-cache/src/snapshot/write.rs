//! From a sequence to a file.

use super::format::{Extent, PageSizes, Preamble, SideRecord};
use super::replace::replace;
use super::{Record, SnapshotError, VERSION, states};
use crate::exact_window::{ExactWindow, Mode};
use crate::page::AnyPage;
use crate::sequence::Sequence;
use crate::side::SideStore;
use std::io::Write;
use std::path::Path;

/// Writes a sequence as [the format](crate::snapshot) says, and returns the number of bytes.
///
/// # Errors
/// When the sequence is in the middle of a pass, or made for strict evaluation; when the record's tokens are not as many
/// as it holds; when its pages are on a device that is lost or in a file that has shrunk; or when writing fails.
pub fn write(sequence: &Sequence, record: &Record<'_>, out: &mut dyn Write) -> Result<u64, SnapshotError> {
    let unsaved = |what| Err(SnapshotError::Unsaved { what });
    can_be_saved(sequence)?;
    if record.tokens.len() != sequence.len() {
        return unsaved("it holds another number of tokens than were given to be saved with it");
    }
    let layout = sequence.layout();
    let extent = Extent { from: 0, len: sequence.len(), ends: true };
    let (mut sides, mut pages) = (Vec::new(), Vec::new());
    for (sizes, store) in PageSizes::of(layout).zip(sequence.stores()) {
        let record = SideRecord { dropped: store.dropped(), exact_first: Some(store.exact_first()), sizes };
        if !collect(&record, store, layout.exact_window(), extent, &mut pages) {
            return unsaved("it does not hold the pages that it should");
        }
        sides.push(record);
    }
    let Some((states, state_pages)) = states::collect(sequence) else {
        return unsaved("its recurrent slots do not hold the same chunks");
    };
    pages.extend(state_pages);
    let preamble = Preamble {
        version: VERSION,
        signature: record.signature,
        numerics: Some(record.numerics),
        part: None,
        rule: *layout.exact_window(),
        slots: layout.slot_list().clone(),
        state_type: layout.state_type(),
        sides,
        states,
        policy: record.policy.to_owned(),
        tokens: record.tokens.to_vec(),
        note: record.note.to_vec(),
        checksums: pages.iter().map(PagePart::checksum).collect(),
    };
    let bytes = put(&preamble, &pages, out)?;
    were_readable(sequence)?;
    Ok(bytes)
}

/// Refuses what was read of pages from a device that is lost, or from a file that has shrunk: no file is replaced by zeros.
pub(super) fn were_readable(sequence: &Sequence) -> Result<(), SnapshotError> {
    let damaged = || sequence.check_files().err().map(|error| error.to_string());
    let fault = sequence.store().fault().or_else(damaged);
    fault.map_or(Ok(()), |what| {
        Err(SnapshotError::io("read the pages of the cache")(std::io::Error::other(what)))
    })
}

/// Refuses what no file can hold.
pub(super) fn can_be_saved(sequence: &Sequence) -> Result<(), SnapshotError> {
    let layout = sequence.layout();
    let unsaved = |what| Err(SnapshotError::Unsaved { what });
    if layout.exact_window().mode == Mode::Strict {
        return unsaved("it is one of strict evaluation");
    }
    if !sequence.is_settled() {
        return unsaved("a pass over it is not finished");
    }
    Ok(())
}

/// A page of a file: the first bytes of one that is held.
pub(super) struct PagePart<'a> {
    pub page: AnyPage<'a>,
    pub len: usize,
}

impl<'a> PagePart<'a> {
    pub(super) fn whole(page: AnyPage<'a>) -> PagePart<'a> {
        PagePart { page, len: page.size() }
    }

    pub(super) fn checksum(&self) -> u32 {
        crc32fast::hash(&self.page.canonical()[..self.len])
    }
}

/// Writes preamble and pages, and returns the number of bytes.
pub(super) fn put(
    preamble: &Preamble,
    pages: &[PagePart<'_>],
    out: &mut dyn Write,
) -> Result<u64, SnapshotError> {
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
        .and_then(|()| {
            places
                .iter()
                .zip(pages)
                .try_for_each(|(place, page)| put(place.start, &page.page.canonical()[..page.len]))
        })
        .and_then(|()| put(end, &[]));
    written.map_err(failed)?;
    Ok(end as u64)
}

/// The pages of one side in the order of the file; false if they are not all there.
pub(super) fn collect<'a>(
    record: &SideRecord,
    store: &'a SideStore,
    rule: &ExactWindow,
    extent: Extent,
    pages: &mut Vec<PagePart<'a>>,
) -> bool {
    let expected = record.pages(rule, extent);
    let before = pages.len();
    pages.extend(store.sinks_page().filter(|_| expected.sinks).map(PagePart::whole));
    let encoded = expected.encoded.clone().filter_map(|page| store.encoded_page(page));
    pages.extend(encoded.map(PagePart::whole));
    let last = expected.exact.end + usize::from(expected.tail);
    let exact = (expected.exact.start..last).filter_map(|page| store.exact_page(page));
    pages.extend(exact.map(PagePart::whole));
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
