//! The sequences of a pass: all of them in the device's own store, and of one layout.

use kvant_cache::{CacheError, CacheLayout, PageStore, Sequence, StateError, StateErrorKind, Streaming};
use std::ops::Range;
use std::sync::Arc;

/// A sequence's part of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    /// Its first position.
    pub start: usize,
    /// Its tokens.
    pub tokens: usize,
    /// Its first row among those of all sequences.
    pub row: usize,
    /// The most tokens it may hold, as the model sees it: a sequence without end is one as long as its window.
    pub capacity: usize,
    /// Where it streams.
    pub streaming: Option<Streaming>,
    /// Its row of the block tables, once it has one.
    pub seat: usize,
}

impl Span {
    /// The positions of its tokens.
    pub fn positions(&self) -> Range<usize> {
        self.start..self.start + self.tokens
    }

    /// The position of its last token.
    pub fn last(&self) -> usize {
        self.start + self.tokens - 1
    }
}

/// The sequences of a pass.
pub struct Batch {
    /// What each has of the pass.
    pub spans: Vec<Span>,
    /// [`Sequence::lineage`] of each.
    pub lineages: Vec<u64>,
    /// The layout of all.
    pub layout: Arc<CacheLayout>,
}

impl Batch {
    /// Of sequences that have begun a pass.
    ///
    /// # Errors
    /// When the pages of one lie in another store than `own`, or its layout is not that of the others, or there are none.
    pub fn of(sequences: &[&mut Sequence], own: &dyn PageStore) -> Result<Batch, StateError> {
        let Some(first) = sequences.first() else {
            return Err(StateError::new(0, StateErrorKind::Pass { what: "a pass of no sequences" }));
        };
        let layout = Arc::clone(first.layout());
        let (mut spans, mut row) = (Vec::new(), 0);
        for (index, sequence) in sequences.iter().enumerate() {
            if !sequence.store().has_pages_of(own) {
                return Err(StateError::new(index, CacheError::NotDevice));
            }
            if !Arc::ptr_eq(&layout, sequence.layout()) {
                let what = "the sequences of a pass have caches of their own making: fork them from one";
                return Err(StateError::new(index, StateErrorKind::Pass { what }));
            }
            let pass = sequence.pass();
            let capacity = pass.streaming.map_or(pass.capacity, |streaming| streaming.span());
            let (start, tokens, streaming) = (pass.start, pass.tokens, pass.streaming);
            spans.push(Span { start, tokens, row, capacity, streaming, seat: 0 });
            row += tokens;
        }
        let lineages = sequences.iter().map(|sequence| sequence.lineage()).collect();
        Ok(Batch { spans, lineages, layout })
    }

    /// Notes the rows of the block tables that the sequences have.
    pub fn sit(&mut self, seats: impl IntoIterator<Item = usize>) {
        self.spans.iter_mut().zip(seats).for_each(|(span, seat)| span.seat = seat);
    }
}
