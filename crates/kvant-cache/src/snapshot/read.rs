//! From a file to a sequence.

use super::format::{PageSizes, Preamble, SideRecord};
use super::states::LoadedState;
use super::{Numerics, Signature, SnapshotError, VERSION};
use crate::arena::ArenaError;
use crate::checkpoint::Checkpoint;
use crate::layout::CacheLayout;
use crate::lease::FileBytes;
#[cfg(unix)]
use crate::mapped::MappedFile;
use crate::page::Page;
use crate::sequence::Sequence;
use crate::side::{SideContents, SideStore};
use crate::slot::Slots;
use crate::store::{PageKind, Store};
use std::collections::VecDeque;
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
    /// **Invariant:** nobody overwrites the file in place while it is in use. [`Sequence::save`] does not: it replaces files, and a
    /// sequence that lies in the old one keeps it. Where another program shortens it, the next pass over the sequence fails and says so
    /// ([`CacheError::FileDamaged`](crate::CacheError::FileDamaged)).
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
        let parsed = Snapshot::parse(&file);
        intact(&file)?;
        let (preamble, places) = parsed?;
        Ok(Snapshot { file: Arc::new(file), preamble, places })
    }

    fn parse(file: &FileBytes) -> Result<(Preamble, Vec<Range<usize>>), SnapshotError> {
        let preamble = Preamble::parse(file, file.len() as u64)?;
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
        Ok((preamble, places))
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

    /// What its layers keep.
    pub fn slots(&self) -> &Slots {
        &self.preamble.slots
    }

    /// The version of its format.
    pub fn version(&self) -> u32 {
        self.preamble.version
    }

    /// How the numbers in it were computed. A file of other numerics, or of none as before version 3, can be loaded: what it
    /// holds is what was computed then, and no longer bit for bit what would be computed now.
    pub fn numerics(&self) -> Option<&Numerics> {
        self.preamble.numerics.as_ref()
    }

    /// The sequence as it was saved. In host memory its pages stay in the file, and only tails are copied, because they grow; a
    /// device gets copies of all.
    ///
    /// # Errors
    /// When the signature or the layout is another, the store has no room for the tails, or the file has shrunk since it was opened.
    pub fn sequence(
        &self,
        signature: &Signature,
        layout: Arc<CacheLayout>,
        store: impl Into<Store>,
    ) -> Result<Sequence, SnapshotError> {
        let loaded = self.load(signature, layout, store.into());
        intact(&self.file)?;
        loaded
    }

    fn load(
        &self,
        signature: &Signature,
        layout: Arc<CacheLayout>,
        memory: Store,
    ) -> Result<Sequence, SnapshotError> {
        if self.preamble.part.is_some() {
            return Err(SnapshotError::Part { what: "a part of a sequence, and not a whole one" });
        }
        self.fits(signature, &layout)?;
        let Preamble { sides, tokens, states, .. } = &self.preamble;
        let mut sequence = Sequence::new(layout, memory.clone());
        let (mut records, mut places) = (sides.iter(), self.places.iter());
        for slot in 0..self.preamble.slots.len() {
            let memory = memory.of_layer(sequence.layout().slots()[slot].layer()).clone();
            for store in sequence.sides_mut(slot) {
                let Some(record) = records.next() else { continue };
                self.fill(store, record, &mut places, &memory)?;
            }
        }
        let mut bytes = places.filter_map(|place| self.file.get(place.clone()));
        let mut checkpoints = vec![Vec::new(); states.checkpoints.len()];
        for state in sequence.states_mut() {
            let memory = memory.of_layer(state.layer());
            let loaded = LoadedState::read(states, &mut bytes, memory)?;
            loaded.fill(states, tokens.len(), state, memory)?;
            for (checkpoint, saved) in states.checkpoints.iter().zip(&mut checkpoints) {
                saved.extend(loaded.at(states, checkpoint.position, state.shape(), memory)?);
            }
        }
        sequence.set_len(tokens.len());
        let kept = states.checkpoints.iter().map(|checkpoint| checkpoint.is_kept);
        let checkpoints =
            kept.zip(checkpoints).filter_map(|(is_kept, saved)| Checkpoint::new(is_kept, saved));
        sequence.load_checkpoints(checkpoints.collect());
        Ok(sequence)
    }

    /// Whether it was saved from such a cache.
    pub(super) fn fits(&self, signature: &Signature, layout: &CacheLayout) -> Result<(), SnapshotError> {
        let Preamble { version, rule, slots, state_type, sides, policy, .. } = &self.preamble;
        if self.signature() != signature {
            return Err(SnapshotError::Signature { policy: policy.clone() });
        }
        let differ = |what| SnapshotError::Layout { what, policy: policy.clone() };
        if layout.exact_window() != rule {
            return Err(differ("sinks, recent tokens or windows"));
        }
        // Before version 3 it was not written which layer a slot belongs to.
        let kinds = |slots: &Slots| slots.iter().map(|(_, slot)| slot.kind).collect::<Vec<_>>();
        let is_same = match *version {
            VERSION => layout.slot_list() == slots,
            _ => kinds(layout.slot_list()) == kinds(slots),
        };
        if !is_same {
            return Err(differ("what its layers keep"));
        }
        if self.preamble.states().next().is_some() && layout.state_type() != *state_type {
            return Err(differ("the numbers that recurrent state is stored in"));
        }
        if !PageSizes::of(layout).eq(sides.iter().map(|side| side.sizes)) {
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
        memory: &Store,
    ) -> Result<(), SnapshotError> {
        let pages = record.pages(&self.preamble.rule, self.preamble.extent());
        let kinds = store.kinds();
        let mut next = |kind: PageKind, count: usize| -> Result<Vec<Page>, ArenaError> {
            let places = places.by_ref().take(count);
            places.filter_map(|place| memory.of_file(kind, &self.file, place.clone())).collect()
        };
        let sinks = next(kinds.sinks, usize::from(pages.sinks))?.pop();
        let encoded: VecDeque<Page> = next(kinds.encoded, pages.encoded.len())?.into();
        let mut exact: VecDeque<Page> = next(kinds.exact, pages.exact.len())?.into();
        if store.codecs().is_exact() {
            // A page that is exact and encoded is one page.
            for (page, number) in exact.iter_mut().zip(pages.exact.clone()) {
                let same = number.checked_sub(pages.encoded.start).and_then(|index| encoded.get(index));
                *page = same.unwrap_or(page).clone();
            }
        }
        let tail = next(kinds.exact, usize::from(pages.tail))?.pop().map(Page::into_mut).transpose()?;
        let (dropped, exact_first) = (record.dropped, pages.exact.start);
        store.restore(SideContents { sinks, dropped, encoded, exact_first, exact, tail });
        Ok(())
    }
}

/// Refuses what was read of a file that has shrunk meanwhile.
fn intact(file: &FileBytes) -> Result<(), SnapshotError> {
    let what = || "it was truncated while it was read, or its disk failed".into();
    file.damaged().map_or(Ok(()), |_| Err(SnapshotError::Damaged { what: what() }))
}

#[cfg(unix)]
fn read(path: &Path) -> Result<FileBytes, SnapshotError> {
    let opened = SnapshotError::io("open the file");
    let file = std::fs::File::open(path).map_err(opened)?;
    let metadata = file.metadata().map_err(SnapshotError::io("read the size of the file"))?;
    if !metadata.is_file() || metadata.len() == 0 {
        return Err(SnapshotError::Foreign);
    }
    let map = MappedFile::new(&file, path).map_err(SnapshotError::io("map the file"))?;
    Ok(FileBytes::Map(map))
}

#[cfg(not(unix))]
fn read(path: &Path) -> Result<FileBytes, SnapshotError> {
    std::fs::read(path).map(FileBytes::Read).map_err(SnapshotError::io("read the file"))
}
