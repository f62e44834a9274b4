//! Which pages of recurrent state a pass reads and writes, by piece of a chunk.

use crate::pages::unit_as;
use crate::pass::PassParams;
use kvant_cache::{
    PageId, PageKind, RowsCopy, Sequence, StateError, StateErrorKind, StateSlot, StateType, StateWork,
};
use kvant_device::Span;
use std::collections::HashMap;

/// No page, as `kernels/recurrent.cu` has it.
const NO_PAGE: u32 = u32::MAX;

/// The recurrent state of a pass.
#[derive(Default)]
pub(crate) struct StatePlan {
    /// By row: its piece.
    pub piece_of_at: u64,
    /// By sequence: its first piece, and how many.
    pub sequences_at: u64,
    pub sequences: usize,
    /// By slot: the pieces.
    pub pieces_at: HashMap<usize, u64>,
    /// Rows that checkpoints keep.
    pub copies: Vec<RowsCopy>,
    /// How state is stored.
    pub state_type: StateType,
    /// Pages that kernels write.
    pub written: Vec<PageId>,
}

/// Where its lists lie in the plan of a pass: piece_of, sequences and how many, pieces by slot; how state is stored.
pub(crate) type StateOffsets = (u64, u64, usize, HashMap<usize, u64>, StateType);

impl StatePlan {
    /// All of it that launches are told.
    pub(crate) fn offsets(&self) -> StateOffsets {
        (self.piece_of_at, self.sequences_at, self.sequences, self.pieces_at.clone(), self.state_type)
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
            let mut all = Vec::new();
            for (index, (span, sequence)) in spans.iter().zip(&mut *sequences).enumerate() {
                let state_type = sequence.recurrent(slot).map(|state| state.state_type());
                plan.state_type = state_type.unwrap_or_default();
                let work = sequence
                    .advance_on_device(slot, span.tokens)
                    .map_err(|error| StateError::new(index, error))?;
                plan.copies.extend(&work.copies);
                let pages = |piece: &kvant_cache::StatePiece| [piece.rows, piece.next];
                plan.written.extend(work.pieces.iter().flat_map(pages).flatten());
                all.push(work);
            }
            let device = |what| StateError::new(0, StateErrorKind::Device(what));
            let at = words.add(table(&all, spans).map_err(device)?);
            // Pieces are of positions alone: all slots have the same.
            if plan.pieces_at.is_empty() {
                plan.rows(words, &all);
            }
            plan.pieces_at.insert(slot.index(), at);
        }
        Ok(plan)
    }

    fn rows(&mut self, words: &mut PassParams, all: &[StateWork]) {
        let pieces = all.iter().flat_map(|work| &work.pieces).enumerate();
        let of_rows = pieces.flat_map(|(index, piece)| std::iter::repeat_n(index as u32, piece.tokens));
        self.piece_of_at = words.add(of_rows);
        let mut first = 0;
        let sequences: Vec<u32> = all
            .iter()
            .flat_map(|work| {
                let own = [first, work.pieces.len() as u32];
                first += own[1];
                own
            })
            .collect();
        self.sequences_at = words.add(sequences);
    }
}

/// `Piece` of `kernels/recurrent.cu`, one after another.
fn table(all: &[StateWork], spans: &[Span]) -> Result<Vec<u32>, String> {
    let unit = |page: Option<PageId>| page.map_or(Ok(NO_PAGE), |page| unit_as(page, PageKind::BYTES));
    let (mut words, mut count) = (Vec::new(), 0);
    for (work, span) in all.iter().zip(spans) {
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
