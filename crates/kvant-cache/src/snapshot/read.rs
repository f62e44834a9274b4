//! From a file to a sequence.

use super::format::{Preamble, SideRecord};
use super::{Signature, SnapshotError};
use crate::arena::Arena;
use crate::layout::{CacheLayout, EntryShape};
use crate::page::{FileBytes, Page};
use crate::sequence::Sequence;
use crate::side::{Contents, SideStore};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A saved sequence, checked from the first byte to the last.
pub struct Snapshot {
    file: Arc<FileBytes>,
    pub(super) preamble: Preamble,
    places: Vec<Range<usize>>,
}

impl Snapshot {
    /// Maps a file and checks it. On systems where a mapped file could not be replaced it is read.
    ///
    /// **Invariant:** nobody shortens or overwrites the file in place while it is in use. [`Sequence::save`] does not:
    /// it replaces files, and a sequence that lies in the old one keeps it.
    ///
    /// # Errors
    /// When it cannot be read, or is not what [`Sequence::save`] has written.
    pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
        Snapshot::check(read(path)?)
    }

    /// The same of bytes in memory.
    ///
    /// # Errors
    /// When they are not what [`write()`](super::write) has written.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Snapshot, SnapshotError> {
        Snapshot::check(FileBytes::Read(bytes))
    }

    fn check(file: FileBytes) -> Result<Snapshot, SnapshotError> {
        let preamble = Preamble::parse(&file, file.len() as u64)?;
        let beyond = || SnapshotError::Absurd { what: "the sizes of its pages" };
        let (places, end) = preamble.places().ok_or_else(beyond)?;
        if end != file.len() {
            return Err(beyond());
        }
        let mut at = preamble.len();
        for (number, (place, sum)) in places.iter().zip(&preamble.checksums).enumerate() {
            let page = file.get(place.clone()).ok_or_else(beyond)?;
            if crc32fast::hash(page) != *sum || file[at..place.start].iter().any(|byte| *byte != 0) {
                let what = format!("page {number} does not match its checksum");
                return Err(SnapshotError::Damaged { what });
            }
            at = place.end;
        }
        if file[at..].iter().any(|byte| *byte != 0) {
            return Err(SnapshotError::Damaged { what: "there is something after the last page".into() });
        }
        Ok(Snapshot { file: Arc::new(file), preamble, places })
    }

    /// What it was signed with.
    pub fn signature(&self) -> &Signature {
        &self.preamble.signature
    }

    /// The policy of its cache, as text.
    pub fn policy(&self) -> &str {
        &self.preamble.policy
    }

    /// The tokens of the sequence; of a part, its own.
    pub fn tokens(&self) -> &[u32] {
        &self.preamble.tokens
    }

    /// What was saved beside it.
    pub fn note(&self) -> &[u8] {
        &self.preamble.note
    }

    /// The shapes of its layers.
    pub fn shapes(&self) -> &[EntryShape] {
        &self.preamble.shapes
    }

    /// The sequence as it was saved. Its pages stay in the file; only tails are copied to the arena, because they grow.
    ///
    /// # Errors
    /// When the signature or the layout is another, or the arena has no room for the tails.
    pub fn sequence(
        &self,
        signature: &Signature,
        layout: Arc<CacheLayout>,
        arena: Arena,
    ) -> Result<Sequence, SnapshotError> {
        if self.preamble.part.is_some() {
            return Err(SnapshotError::Part { what: "a part of a sequence, and not a whole one" });
        }
        self.fits(signature, &layout)?;
        let Preamble { shapes, sides, tokens, .. } = &self.preamble;
        let mut sequence = Sequence::new(layout, arena.clone());
        let (mut records, mut places) = (sides.iter(), self.places.iter());
        for entry in 0..shapes.len() {
            for store in sequence.sides_mut(entry) {
                let Some(record) = records.next() else { continue };
                self.fill(store, record, &mut places, &arena)?;
            }
        }
        sequence.set_len(tokens.len());
        Ok(sequence)
    }

    /// Whether it was saved from such a cache.
    pub(super) fn fits(&self, signature: &Signature, layout: &CacheLayout) -> Result<(), SnapshotError> {
        let Preamble { rule, shapes, sides, policy, .. } = &self.preamble;
        if self.signature() != signature {
            return Err(SnapshotError::Signature { policy: policy.clone() });
        }
        let differ = |what| SnapshotError::Layout { what, policy: policy.clone() };
        if layout.rule() != rule {
            return Err(differ("sinks, recent tokens or windows"));
        }
        if !layout.entries().iter().map(|entry| entry.shape()).eq(shapes) {
            return Err(differ("the shapes of its layers"));
        }
        if !SideRecord::of(layout).eq(sides.iter().map(|side| SideRecord { dropped: 0, ..*side })) {
            return Err(differ("the sizes of its pages"));
        }
        Ok(())
    }

    /// The bytes of its pages, in the order of the file.
    pub(super) fn pages(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().filter_map(|place| self.file.get(place.clone()))
    }

    fn fill<'a>(
        &self,
        store: &mut SideStore,
        record: &SideRecord,
        places: &mut impl Iterator<Item = &'a Range<usize>>,
        arena: &Arena,
    ) -> Result<(), SnapshotError> {
        let pages = record.pages(&self.preamble.rule, self.preamble.extent());
        let mut next = |count: usize| -> Vec<Page> {
            places.by_ref().take(count).filter_map(|place| arena.mapped(&self.file, place.clone())).collect()
        };
        store.restore(Contents {
            sinks: next(usize::from(pages.sinks)).pop(),
            dropped: record.dropped,
            encoded: next(pages.encoded.len()).into(),
            exact_first: pages.exact.start,
            exact: next(pages.exact.len()).into(),
            tail: next(usize::from(pages.tail)).pop().map(Page::into_mut).transpose()?,
        });
        Ok(())
    }
}

#[cfg(unix)]
fn read(path: &Path) -> Result<FileBytes, SnapshotError> {
    let opened = SnapshotError::io("open the file");
    let file = std::fs::File::open(path).map_err(opened)?;
    let metadata = file.metadata().map_err(SnapshotError::io("read the size of the file"))?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Err(SnapshotError::Foreign);
    }
    // SAFETY: the map is private and read-only; that nobody changes the file is the invariant of `Snapshot::open`.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(SnapshotError::io("map the file"))?;
    Ok(FileBytes::Map(map))
}

#[cfg(not(unix))]
fn read(path: &Path) -> Result<FileBytes, SnapshotError> {
    std::fs::read(path).map(FileBytes::Read).map_err(SnapshotError::io("read the file"))
}
