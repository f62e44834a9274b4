//! Recurrent state in a file: chunks with their rows, and checkpoints in them.

use super::SnapshotError;
use super::format::{SavedCheckpoint, StateChunk, StateRecord};
use super::write::PagePart;
use crate::checkpoint::Checkpoint;
use crate::page::{AnyPage, Page};
use crate::recurrent::{Chunk, Closed, RecurrentState, StateAt};
use crate::sequence::Sequence;
use crate::slot::{RecurrentShape, STATE_CHUNK};
use crate::store::{PageKind, Store};
use std::collections::{BTreeMap, VecDeque};

/// The chunks of one slot by their start, each with the most rows that are known of it.
type Chunks<'a> = BTreeMap<usize, Source<'a>>;

struct Source<'a> {
    state: Option<&'a Page>,
    count: usize,
    /// A page of at least as many rows.
    rows: Option<AnyPage<'a>>,
}

impl<'a> Source<'a> {
    fn add(chunks: &mut Chunks<'a>, chunk: &'a Chunk, count: usize, rows: Option<AnyPage<'a>>) {
        let source = Source { state: chunk.state.as_ref(), count, rows };
        match chunks.get_mut(&chunk.start) {
            Some(other) if other.count >= count => {}
            Some(other) => *other = source,
            None => drop(chunks.insert(chunk.start, source)),
        }
    }

    fn add_at(chunks: &mut Chunks<'a>, at: &'a StateAt) {
        let rows = at.rows.as_ref().map(AnyPage::Shared);
        Source::add(chunks, &at.chunk, at.position - at.chunk.start, rows);
    }
}

/// What a sequence has of recurrent state: the record, and the pages of all slots in the order of the file; `None` if slots
/// have chunks at different places.
pub(super) fn collect(sequence: &Sequence) -> Option<(StateRecord, Vec<PagePart<'_>>)> {
    let saved = |checkpoint: &Checkpoint| SavedCheckpoint {
        position: checkpoint.position,
        is_kept: checkpoint.is_kept,
    };
    let checkpoints = sequence.checkpoint_list().map(saved).collect();
    let slots = sequence.states().enumerate().filter(|(_, state)| !state.is_empty());
    join(slots.map(|(index, state)| {
        let mut chunks = Chunks::new();
        let (open, rows, before) = state.chunks();
        Source::add(&mut chunks, open, state.open_tokens(), rows.map(AnyPage::Own));
        for Closed { chunk, rows } in before {
            Source::add(&mut chunks, chunk, STATE_CHUNK, Some(AnyPage::Shared(rows)));
        }
        for checkpoint in sequence.checkpoint_list() {
            Source::add_at(&mut chunks, &checkpoint.states[index]);
        }
        (state.shape(), chunks)
    }))
    .map(|(chunks, pages)| (StateRecord { checkpoints, ..chunks }, pages))
}

/// The same of the states at one position alone.
pub(super) fn collect_at(
    shapes: impl Iterator<Item = RecurrentShape>,
    states: &[StateAt],
) -> Option<(StateRecord, Vec<PagePart<'_>>)> {
    join(shapes.zip(states).map(|(shape, at)| {
        let mut chunks = Chunks::new();
        Source::add_at(&mut chunks, at);
        (shape, chunks)
    }))
}

fn join<'a>(
    slots: impl Iterator<Item = (RecurrentShape, Chunks<'a>)>,
) -> Option<(StateRecord, Vec<PagePart<'a>>)> {
    let (mut record, mut pages) = (None, Vec::new());
    for (shape, chunks) in slots {
        let own: Vec<StateChunk> =
            chunks.iter().map(|(start, source)| StateChunk { start: *start, rows: source.count }).collect();
        if record.as_ref().is_some_and(|record| *record != own) {
            return None;
        }
        record = Some(own);
        for Source { state, count, rows } in chunks.into_values() {
            pages.extend(state.map(|state| PagePart::whole(AnyPage::Shared(state))));
            let len = count * shape.row * size_of::<f32>();
            pages.extend(rows.filter(|_| count > 0).map(|page| PagePart { page, len }));
        }
    }
    Some((StateRecord { chunks: record.unwrap_or_default(), checkpoints: Vec::new() }, pages))
}

/// One slot's state as it was saved.
pub(super) struct LoadedState {
    chunks: Vec<(Chunk, Option<Page>)>,
}

impl LoadedState {
    /// Copies the pages of one slot to the store.
    pub(super) fn read<'a>(
        record: &StateRecord,
        bytes: &mut impl Iterator<Item = &'a [u8]>,
        memory: &Store,
    ) -> Result<LoadedState, SnapshotError> {
        let mut copy = |is_there: bool| -> Result<Option<Page>, SnapshotError> {
            let page = if is_there { bytes.next() } else { None };
            Ok(page.map(|page| memory.upload(PageKind::BYTES, page)).transpose()?)
        };
        let mut chunks = Vec::with_capacity(record.chunks.len());
        for StateChunk { start, rows } in &record.chunks {
            let chunk = Chunk { start: *start, state: copy(*start > 0)? };
            chunks.push((chunk, copy(*rows > 0)?));
        }
        Ok(LoadedState { chunks })
    }

    /// The state at a position.
    pub(super) fn at(
        &self,
        record: &StateRecord,
        position: usize,
        shape: RecurrentShape,
        memory: &Store,
    ) -> Result<Option<StateAt>, SnapshotError> {
        let Some((chunk, rows)) = record.chunk_of(position).map(|index| &self.chunks[index]) else {
            return Ok(None);
        };
        let count = position - chunk.start;
        let rows = match rows {
            Some(rows) if count > 0 => {
                let bytes = count * shape.row * size_of::<f32>();
                Some(memory.upload(PageKind::BYTES, &rows.canonical()[..bytes])?)
            }
            _ => None,
        };
        Ok(Some(StateAt { position, chunk: chunk.clone(), rows }))
    }

    /// Closed chunks that reach up to the last one.
    fn before(&self, record: &StateRecord) -> VecDeque<Closed> {
        let mut before = VecDeque::new();
        let Some(((last, _), others)) = self.chunks.split_last() else { return before };
        let mut next = last.start;
        for ((chunk, rows), StateChunk { rows: count, .. }) in
            others.iter().zip(&record.chunks[..others.len()]).rev()
        {
            let is_next = *count == STATE_CHUNK && chunk.start + STATE_CHUNK == next;
            let Some(rows) = rows.as_ref().filter(|_| is_next) else { break };
            next = chunk.start;
            before.push_front(Closed { chunk: chunk.clone(), rows: rows.clone() });
        }
        before
    }

    /// Puts it into a slot of a sequence of `len` tokens.
    pub(super) fn fill(
        &self,
        record: &StateRecord,
        len: usize,
        state: &mut RecurrentState,
        memory: &Store,
    ) -> Result<(), SnapshotError> {
        let Some(at) = self.at(record, len, state.shape(), memory)? else { return Ok(()) };
        Ok(state.load(&at, self.before(record))?)
    }
}
