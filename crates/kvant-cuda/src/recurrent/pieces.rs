//! Which pages of recurrent state a pass reads and writes, by piece of a chunk.

use super::chunks::MANY_TOKENS;
use crate::pages::unit_as;
use crate::pass::PassParams;
use kvant_cache::{
    PageId, PageKind, RowsCopy, Sequence, StateError, StateErrorKind, StateSlot, StateType, StateWork,
};
use kvant_device::Span;
use std::collections::HashMap;

/// No page, as `kernels/recurrent.cuh` has it.
const NO_PAGE: u32 = u32::MAX;

/// The recurrent state of a pass.
#[derive(Default)]
pub(crate) struct StatePlan {
    /// By row: its piece.
    pub piece_of_at: u64,
    /// By sequence, those with many tokens first: its first piece, and how many.
    pub sequences_at: u64,
    pub sequences: usize,
    /// Sequences that bring many tokens, and their pieces, which are the first ones.
    pub long: (usize, usize),
    /// By slot: the pieces.
    pub pieces_at: HashMap<usize, u64>,
    /// Rows that checkpoints keep.
    pub copies: Vec<RowsCopy>,
    /// How state is stored.
    pub state_type: StateType,
    /// Pages that kernels write.
    pub written: Vec<PageId>,
}

/// Where its lists lie in the plan of a pass: piece_of, sequences and how many, pieces by slot; how state is stored; what goes by chunks.
pub(crate) type StateOffsets = (u64, u64, usize, HashMap<usize, u64>, StateType, (usize, usize));

impl StatePlan {
    /// All of it that launches are told.
    pub(crate) fn offsets(&self) -> StateOffsets {
        let pieces_at = self.pieces_at.clone();
        (self.piece_of_at, self.sequences_at, self.sequences, pieces_at, self.state_type, self.long)
    }

    /// Takes the pages of a pass in every slot.
    pub(crate) fn new(
        words: &mut PassParams,
        slots: impl Iterator<Item = StateSlot>,
        spans: &[Span],
        sequences: &mut [&mut Sequence],
    ) -> Result<StatePlan, StateError> {
        let mut plan = StatePlan { sequences: spans.len(), ..StatePlan::default() };
        for slot in slots {
            let mut all = Vec::with_capacity(spans.len());
            for (index, (span, sequence)) in spans.iter().zip(&mut *sequences).enumerate() {
                let state_type = sequence.recurrent(slot).map(|state| state.state_type());
                plan.state_type = state_type.unwrap_or_default();
                let work = sequence
                    .advance_on_device(slot, span.tokens)
                    .map_err(|error| StateError::new(index, error))?;
                plan.copies.extend(&work.copies);
                let pages = |piece: &kvant_cache::StatePiece| [piece.rows, piece.next];
                plan.written.extend(work.pieces.iter().flat_map(pages).flatten());
                all.push((work, span));
            }
            // Sequences with many tokens first.
            all.sort_by_key(|(_, span)| !is_long(span));
            let device = |what| StateError::new(0, StateErrorKind::Device(what));
            let at = words.add(table(&all).map_err(device)?);
            // Pieces are of positions alone: all slots have the same.
            if plan.pieces_at.is_empty() {
                plan.rows(words, &all);
            }
            plan.pieces_at.insert(slot.index(), at);
        }
        Ok(plan)
    }

    fn rows(&mut self, words: &mut PassParams, all: &[(StateWork, &Span)]) {
        let rows = all.iter().map(|(_, span)| span.tokens).sum();
        let (mut piece_of, mut ranges) = (vec![0; rows], Vec::with_capacity(2 * all.len()));
        let mut piece = 0;
        for (work, span) in all {
            ranges.extend([piece, work.pieces.len() as u32]);
            let mut row = span.row;
            for own in &work.pieces {
                piece_of[row..row + own.tokens].fill(piece);
                row += own.tokens;
                piece += 1;
            }
            if is_long(span) {
                self.long = (self.long.0 + 1, piece as usize);
            }
        }
        self.piece_of_at = words.add(piece_of);
        self.sequences_at = words.add(ranges);
    }
}

/// Whether a sequence goes by chunks.
fn is_long(span: &Span) -> bool {
    span.tokens >= MANY_TOKENS
}

/// `Piece` of `kernels/recurrent.cuh`, one after another.
fn table(all: &[(StateWork, &Span)]) -> Result<Vec<u32>, String> {
    let unit = |page: Option<PageId>| page.map_or(Ok(NO_PAGE), |page| unit_as(page, PageKind::BYTES));
    let (mut words, mut count) = (Vec::new(), 0);
    for (work, span) in all {
        let (first, mut row) = (count, span.row);
        for piece in &work.pieces {
            let [state, rows, next] = [unit(piece.state)?, unit(piece.rows)?, unit(piece.next)?];
            let [at, tokens, before] = [row, piece.tokens, piece.before].map(|n| n as u32);
            words.extend([state, rows, next, at, tokens, before, first, 0]);
            row += piece.tokens;
            count += 1;
        }
    }
    Ok(words)
}
