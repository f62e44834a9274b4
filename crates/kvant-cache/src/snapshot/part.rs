//! Parts of a sequence: a file for each stretch of whole pages, which names what comes before it.

use super::format::{Extent, OPENING, PageSizes, Part, Preamble, SidePages, SideRecord};
use super::states::{LoadedState, collect_at};
use super::write::{PagePart, can_be_saved, collect, put, were_readable};
use super::{Digest, Numerics, Signature, Snapshot, SnapshotError, VERSION};
use crate::arena::ArenaError;
use crate::checkpoint::Checkpoint;
use crate::layout::{CacheLayout, SideKinds, SlotLayout};
use crate::page::Page;
use crate::recurrent::StateAt;
use crate::sequence::Sequence;
use crate::side::SideContents;
use crate::slot::SlotKind;
use crate::store::{PageKind, Store};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Which part is to be saved, and what is saved beside it.
pub(crate) struct PartRecord<'a> {
    pub signature: Signature,
    pub numerics: Numerics,
    pub policy: &'a str,
    /// Names all tokens before.
    pub before: Digest,
    /// Tokens before.
    pub from: usize,
    /// Its own tokens.
    pub tokens: &'a [u32],
}

/// How much of a stretch a part has. A window may have dropped pages of it, and exact rows are gone once they are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Quality {
    /// From this position on no page is missing; 0 if none is.
    pub held_from: usize,
    /// Exact rows and states that a query after the end reads are there.
    pub ends: bool,
}

impl Quality {
    pub(crate) const BEST: Quality = Quality { held_from: 0, ends: true };

    /// Of the stretch `from..end` as `sequence` holds it.
    pub(crate) fn of(sequence: &Sequence, from: usize, end: usize) -> Quality {
        let rule = sequence.layout().exact_window();
        let mut quality = Quality { ends: sequence.has_states_at(end), ..Quality::BEST };
        for (sizes, store) in PageSizes::of(sequence.layout()).zip(sequence.stores()) {
            let extent = Extent { from, len: end, ends: true };
            let record = SideRecord { dropped: 0, exact_first: None, sizes };
            let SidePages { encoded, mut exact, tail, .. } = record.pages(rule, extent);
            let dropped = store.dropped().min(encoded.end);
            if dropped > encoded.start {
                quality.held_from = quality.held_from.max(rule.page_start(dropped, sizes.tokens));
            }
            quality.ends &= !tail && exact.all(|page| store.exact(page).is_some());
        }
        quality
    }

    /// Whether it has something that `other` lacks, and lacks nothing that it has.
    pub(crate) fn exceeds(self, other: Quality) -> bool {
        self != other && self.held_from <= other.held_from && self.ends >= other.ends
    }
}

impl PartRecord<'_> {
    /// The file of this part of a sequence.
    pub(crate) fn bytes(&self, sequence: &Sequence) -> Result<Vec<u8>, SnapshotError> {
        can_be_saved(sequence)?;
        let (layout, end) = (sequence.layout(), self.from + self.tokens.len());
        let Quality { ends, .. } = Quality::of(sequence, self.from, end);
        let extent = Extent { from: self.from, len: end, ends };
        let rule = layout.exact_window();
        let (mut sides, mut pages) = (Vec::new(), Vec::new());
        for (sizes, store) in PageSizes::of(layout).zip(sequence.stores()) {
            let dropped = store.dropped().min(rule.encoded_at(end, sizes.tokens));
            let record = SideRecord { dropped, exact_first: None, sizes };
            if end > sequence.len() || !collect(&record, store, rule, extent, &mut pages) {
                return Err(SnapshotError::Unsaved { what: "it does not hold the pages that it should" });
            }
            sides.push(record);
        }
        let states = if ends && sequence.has_states() { sequence.states_at(end).transpose()? } else { None };
        let states = states.unwrap_or_default();
        let shapes = sequence.states().map(|state| state.shape());
        let Some((states, state_pages)) = collect_at(shapes, &states) else {
            return Err(SnapshotError::Unsaved { what: "its recurrent slots do not hold the same chunks" });
        };
        pages.extend(state_pages);
        let preamble = Preamble {
            version: VERSION,
            signature: self.signature,
            numerics: Some(self.numerics),
            part: Some(Part { from: self.from, before: self.before, ends }),
            rule: *rule,
            slots: layout.slot_list().clone(),
            state_type: layout.state_type(),
            sides,
            states,
            policy: self.policy.to_owned(),
            tokens: self.tokens.to_vec(),
            note: Vec::new(),
            checksums: pages.iter().map(PagePart::checksum).collect(),
        };
        let mut bytes = Vec::new();
        put(&preamble, &pages, &mut bytes)?;
        were_readable(sequence)?;
        Ok(bytes)
    }
}

/// What a file says of the part it holds. Its pages have not been looked at.
pub(crate) struct Head {
    pub signature: Signature,
    pub numerics: Option<Numerics>,
    pub policy: String,
    pub before: Digest,
    pub from: usize,
    pub tokens: Vec<u32>,
    pub quality: Quality,
}

impl Head {
    /// Reads the beginning of a file.
    pub(crate) fn read(path: &Path) -> Result<Head, SnapshotError> {
        let mut file = File::open(path).map_err(SnapshotError::io("open the file"))?;
        let size = file.metadata().map_err(SnapshotError::io("read the size of the file"))?.len();
        let mut bytes = Vec::new();
        let mut more = |bytes: &mut Vec<u8>, len: u64| {
            let missing = len.min(size).saturating_sub(bytes.len() as u64);
            file.by_ref().take(missing).read_to_end(bytes).map_err(SnapshotError::io("read the file"))
        };
        more(&mut bytes, OPENING as u64)?;
        // What is no length is found out when all is there.
        let len = bytes.get(16..24).and_then(|len| len.try_into().ok()).map_or(0, u64::from_le_bytes);
        more(&mut bytes, len)?;
        let preamble = Preamble::parse(&bytes, size)?;
        let held_from = preamble.held_from();
        let Some(Part { from, before, ends }) = preamble.part else {
            return Err(SnapshotError::Part { what: "a whole sequence, and not a part of one" });
        };
        let Preamble { signature, numerics, policy, tokens, .. } = preamble;
        Ok(Head { signature, numerics, policy, before, from, tokens, quality: Quality { held_from, ends } })
    }
}

/// A sequence that grows by parts. Their pages are copied to the store.
pub(crate) struct Growth {
    layout: Arc<CacheLayout>,
    memory: Store,
    len: usize,
    /// What will be held in the end: pages that have left its window are not copied.
    end: usize,
    ends: bool,
    /// (slots, kv heads, keys and values).
    sides: Vec<SideContents>,
    /// Recurrent states at the ends of parts that have them, and of what they were added to.
    states: Vec<Vec<StateAt>>,
}

impl Growth {
    /// Begins with a sequence that ends where a part begins, and is to hold `end` tokens.
    pub(crate) fn new(mut base: Sequence, end: usize) -> Growth {
        let (layout, memory, len) = (Arc::clone(base.layout()), base.store().clone(), base.len());
        let slots = 0..layout.slots().len();
        let states = base.checkpoint_list().map(|checkpoint| checkpoint.states.clone()).collect();
        let sides = slots.flat_map(|slot| base.take_sides(slot)).collect();
        Growth { layout, memory, len, end, ends: true, sides, states }
    }

    /// Tokens held.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Goes on with a part that begins here and is named as `before` and `tokens` say. On an error nothing has changed.
    pub(crate) fn add(
        &mut self,
        saved: &Snapshot,
        signature: &Signature,
        before: &Digest,
        tokens: &[u32],
    ) -> Result<(), SnapshotError> {
        saved.fits(signature, &self.layout)?;
        let part = saved.preamble.part.filter(|part| part.from == self.len && part.before == *before);
        let Some(part) = part.filter(|_| saved.tokens() == tokens) else {
            return Err(SnapshotError::Part { what: "another part than its name says" });
        };
        let mut added = Vec::with_capacity(self.sides.len());
        let mut bytes = saved.pages();
        let windows = self.layout.sides().map(|(slot, ..)| self.layout.window(slot));
        let places = self.layout.slots().iter().flat_map(|slot| {
            let memory = self.memory.of_layer(slot.layer());
            slot.kinds(memory).iter().map(|kinds| (*kinds, memory)).collect::<Vec<_>>()
        });
        for ((record, window), place) in saved.preamble.sides.iter().zip(windows).zip(places) {
            let pages = record.pages(self.layout.exact_window(), saved.preamble.extent());
            let gone = self.left_behind(record.sizes.tokens, window);
            added.push(AddedSide::copy(pages, gone, &mut bytes, place)?);
        }
        let end = saved.preamble.extent().len;
        let mut states = Vec::new();
        let is_state = |slot: &&SlotLayout| matches!(slot.kind(), SlotKind::Recurrent(_));
        let layers = self.layout.slots().iter().filter(is_state).map(SlotLayout::layer);
        for (shape, layer) in saved.preamble.states().zip(layers).filter(|_| part.ends) {
            let (record, memory) = (&saved.preamble.states, self.memory.of_layer(layer));
            let loaded = LoadedState::read(record, &mut bytes, memory)?;
            states.extend(loaded.at(record, end, shape, memory)?);
        }
        let is_early =
            |(side, added): (&SideContents, &AddedSide)| added.first < side.dropped + side.encoded.len();
        if self.sides.iter().zip(&added).any(is_early) {
            return Err(SnapshotError::Absurd { what: "it has pages that come before it" });
        }
        for (side, added) in self.sides.iter_mut().zip(added) {
            added.join(side);
        }
        self.states.extend((!states.is_empty()).then_some(states));
        (self.len, self.ends) = (self.len + tokens.len(), part.ends);
        Ok(())
    }

    /// Pages that a sequence of `end` tokens has dropped.
    fn left_behind(&self, page_tokens: usize, window: Option<usize>) -> usize {
        let (rule, slack) = (self.layout.exact_window(), self.layout.slack().window);
        rule.first_seen(self.end, window).saturating_sub(slack + rule.sinks) / page_tokens
    }

    /// The sequence.
    pub(crate) fn finish(self) -> Result<Sequence, SnapshotError> {
        let rule = *self.layout.exact_window();
        let mut sequence = Sequence::new(Arc::clone(&self.layout), self.memory);
        let mut sides = self.sides.into_iter();
        let mut complete = self.ends;
        for slot in 0..self.layout.slots().len() {
            let seen = rule.first_seen(self.len, self.layout.window(slot));
            for (store, contents) in sequence.sides_mut(slot).iter_mut().zip(sides.by_ref()) {
                let start = rule.page_start(contents.dropped, store.codecs().page_tokens());
                complete &= contents.dropped == 0 || start <= seen;
                store.restore(contents);
            }
        }
        let mut checkpoints = self.states;
        if sequence.has_states() && self.len > 0 {
            let last = checkpoints.last().filter(|states| states.iter().all(|at| at.position == self.len));
            let Some(last) = last else {
                return Err(SnapshotError::Absurd { what: "the state at its end is missing" });
            };
            for (state, at) in sequence.states_mut().zip(last) {
                state.restore(at)?;
            }
        }
        if !complete {
            return Err(SnapshotError::Absurd { what: "pages are missing that can be seen" });
        }
        sequence.set_len(self.len);
        checkpoints.dedup_by_key(|states| states.first().map(|at| at.position));
        let checkpoints = checkpoints.into_iter().filter_map(|states| Checkpoint::new(true, states));
        sequence.load_checkpoints(checkpoints.collect());
        // Forgets what a sequence of this length has no use for.
        sequence.settle();
        Ok(sequence)
    }
}

/// What a part adds to a side.
struct AddedSide {
    sinks: Option<Page>,
    /// Number of the first of `encoded`.
    first: usize,
    encoded: Vec<Page>,
    exact_first: usize,
    exact: Vec<Page>,
}

impl AddedSide {
    /// Copies the pages of one side, those of them that are not `gone`.
    fn copy<'a>(
        pages: SidePages,
        gone: usize,
        bytes: &mut impl Iterator<Item = &'a [u8]>,
        (kinds, memory): (SideKinds, &Store),
    ) -> Result<AddedSide, ArenaError> {
        let mut copies = |kind: PageKind, count: usize, skip: usize| -> Result<Vec<Page>, ArenaError> {
            let taken = bytes.by_ref().take(count).enumerate().filter(|(index, _)| *index >= skip);
            taken.map(|(_, bytes)| memory.upload(kind, bytes)).collect()
        };
        let skip = gone.saturating_sub(pages.encoded.start).min(pages.encoded.len());
        Ok(AddedSide {
            sinks: copies(kinds.sinks, usize::from(pages.sinks), 0)?.pop(),
            first: pages.encoded.start + skip,
            encoded: copies(kinds.encoded, pages.encoded.len(), skip)?,
            exact_first: pages.exact.start,
            exact: copies(kinds.exact, pages.exact.len() + usize::from(pages.tail), 0)?,
        })
    }

    fn join(self, side: &mut SideContents) {
        if self.sinks.is_some() {
            side.sinks = self.sinks;
        }
        if self.first > side.dropped + side.encoded.len() {
            // What lies between was dropped, so what came before it is not seen either.
            side.encoded.clear();
            side.dropped = self.first;
        }
        side.encoded.extend(self.encoded);
        (side.exact_first, side.exact) = (self.exact_first, self.exact.into());
    }
}
