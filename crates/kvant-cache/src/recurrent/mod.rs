//! What a recurrent slot of one sequence holds.
//!
//! ```text
//! position   … 64 ───────────── 128 ───────────── 192 ──── 200
//!             chunk before: state    open chunk: state at 128,
//!             at 64, 64 rows         64 rows, then 192, 8 rows
//! ```
//!
//! Chunks of [`STATE_CHUNK`] tokens lie on absolute positions. A mixer computes a token from the state at its chunk's start
//! and the chunk's rows, so it does not matter in which passes they came. Chunks before the open one are kept as rollback
//! slack: taking back a few tokens drops rows, or opens such a chunk again, and copies no state.
//!
//! The state at a chunk's start may be stored narrower than it is computed: see [`StateType`].
//!
//! State and rows lie in pages of the sequence's store: they count towards its cap, and forks share what is closed.

mod cut;
mod device;
mod stored;
mod wide;

pub use device::{RowsCopy, StatePiece, StateWork};
pub use stored::{StateNumbers, StateType, StateTypeError};

use crate::arena::{Arena, ArenaError};
use crate::error::CacheError;
use crate::page::{AnyPage, Page, PageMut};
use crate::slot::{RecurrentShape, STATE_CHUNK};
use crate::store::{PageKind, Store};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a recurrent slot of one sequence holds.
pub struct RecurrentState {
    layer: usize,
    shape: RecurrentShape,
    state_type: StateType,
    memory: Store,
    /// What every sequence starts from.
    zeros: Arc<Vec<f32>>,
    open: Chunk,
    /// Rows of the open chunk, `(STATE_CHUNK, row)`; none before its first token.
    rows: Option<PageMut>,
    /// How many of them count.
    count: usize,
    /// Closed chunks up to the open one, oldest first: at most `slack` of them.
    before: VecDeque<Closed>,
    slack: usize,
    /// The chunk that was open when the pass began, once it is closed, and those before it.
    pass_start: Option<(Closed, VecDeque<Closed>)>,
    /// Positions of this pass at which checkpoints are to be taken, and those taken.
    wanted: Vec<usize>,
    taken: Vec<StateAt>,
    /// Rows of this pass that a device writes and nobody goes back to.
    passing: Vec<Page>,
    spare_states: Vec<PageMut>,
    spare_rows: Vec<PageMut>,
}

/// Where a chunk starts, and from which state.
#[derive(Clone)]
pub(crate) struct Chunk {
    pub start: usize,
    /// None for zeros.
    pub state: Option<Page>,
}

/// A chunk that all tokens have come for.
#[derive(Clone)]
pub(crate) struct Closed {
    pub chunk: Chunk,
    pub rows: Page,
}

impl Closed {
    fn covers(&self, len: usize) -> bool {
        (self.chunk.start..=self.chunk.start + STATE_CHUNK).contains(&len)
    }

    fn pages(&self) -> impl Iterator<Item = &Page> {
        self.chunk.state.iter().chain([&self.rows])
    }
}

/// The state at a position: that at its chunk's start, and the chunk's rows up to it.
#[derive(Clone)]
pub(crate) struct StateAt {
    pub position: usize,
    pub chunk: Chunk,
    /// `(position - start, row)`; none at a chunk's start.
    pub rows: Option<Page>,
}

impl StateAt {
    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.chunk.state.iter().chain(&self.rows)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.pages().map(|page| Arena::slot_bytes(page.size())).sum()
    }
}

impl RecurrentState {
    pub(crate) fn new(
        layer: usize,
        shape: RecurrentShape,
        state_type: StateType,
        slack: usize,
        zeros: Arc<Vec<f32>>,
        memory: Store,
    ) -> RecurrentState {
        RecurrentState {
            layer,
            shape,
            state_type,
            memory,
            zeros,
            open: Chunk { start: 0, state: None },
            rows: None,
            count: 0,
            before: VecDeque::new(),
            slack,
            pass_start: None,
            wanted: Vec::new(),
            taken: Vec::new(),
            passing: Vec::new(),
            spare_states: Vec::new(),
            spare_rows: Vec::new(),
        }
    }

    /// The layer it belongs to.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// Another one of the same slot that holds nothing.
    fn fresh(&self) -> RecurrentState {
        let (zeros, memory) = (Arc::clone(&self.zeros), self.memory.clone());
        RecurrentState::new(self.layer, self.shape, self.state_type, self.slack, zeros, memory)
    }

    /// Its shape.
    pub fn shape(&self) -> RecurrentShape {
        self.shape
    }

    /// Tokens taken, those of an unfinished pass included.
    pub fn len(&self) -> usize {
        self.open.start + self.count
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of the open chunk. When they are [`STATE_CHUNK`], it waits to be [closed](RecurrentState::close).
    pub fn open_tokens(&self) -> usize {
        self.count
    }

    /// Rows of the open chunk, `(open tokens, row)`. Nothing where a device owns them.
    pub fn rows(&self) -> &[f32] {
        self.rows
            .as_ref()
            .and_then(|page| page.floats().get(..self.count * self.shape.row))
            .unwrap_or_default()
    }

    /// Takes the rows of further tokens of the open chunk, `(tokens, row)`.
    ///
    /// # Errors
    /// When they are no whole number of rows, go beyond the chunk's end or are not finite; or when memory is full.
    pub fn push(&mut self, rows: &[f32]) -> Result<(), CacheError> {
        let width = self.shape.row;
        let tokens = rows.len() / width;
        if tokens * width != rows.len() {
            return Err(CacheError::Size { what: "rows", got: rows.len(), width });
        }
        if tokens > STATE_CHUNK - self.count {
            let what = "more rows than its open chunk has room for: close the chunk first";
            return Err(CacheError::Chunk { layer: self.layer, what });
        }
        if let Some(at) = wide::first_odd(rows) {
            let position = self.len() + at / width;
            return Err(CacheError::Row { layer: self.layer, position, value: rows[at] });
        }
        if tokens == 0 {
            return Ok(());
        }
        let mut page = match self.rows.take().or_else(|| self.spare_rows.pop()) {
            Some(page) => page,
            None => self.memory.page(PageKind::BYTES, self.row_bytes())?,
        };
        let at = self.count * width;
        page.edit_floats(|numbers| wide::copy(&mut numbers[at..at + rows.len()], rows));
        self.rows = Some(page);
        self.count += tokens;
        self.take_checkpoints();
        Ok(())
    }

    /// Closes the open chunk, which is full: `write` gets the new state, which is a copy of the old one, and the chunk's rows,
    /// and makes of it the state at the next chunk's start.
    ///
    /// # Errors
    /// When the chunk is not full, the new state is not finite, or memory is full; the chunk then stays open.
    pub fn close(&mut self, write: impl FnOnce(&mut [f32], &[f32])) -> Result<(), CacheError> {
        if self.count != STATE_CHUNK {
            let what = "no full chunk to be closed: a chunk has 64 tokens";
            return Err(CacheError::Chunk { layer: self.layer, what });
        }
        let mut state = match self.spare_states.pop() {
            Some(page) => page,
            None => self.memory.page(PageKind::BYTES, self.state_bytes())?,
        };
        let odd = match self.state_type {
            StateType::F32 => state.edit_floats(|new| {
                wide::copy(new, &self.state());
                write(new, self.rows());
                wide::first_odd(new).map(|at| new[at])
            }),
            narrow @ (StateType::Bf16 | StateType::Int8) => {
                // Computed in f32, from what is stored of the state before, and rounded once.
                let mut new = self.state().into_lent();
                write(new.lent_mut(), self.rows());
                state.edit(|bytes| narrow.store(&new, bytes).err())
            }
        };
        if let Some(value) = odd {
            return Err(CacheError::Row { layer: self.layer, position: self.len(), value });
        }
        let Some(rows) = self.rows.take() else { return Ok(()) };
        let next = Chunk { start: self.len(), state: Some(state.freeze()) };
        let closed = Closed { chunk: std::mem::replace(&mut self.open, next), rows: rows.freeze() };
        self.count = 0;
        if self.pass_start.is_none() {
            self.pass_start = Some((closed.clone(), self.before.clone()));
        }
        self.before.push_back(closed);
        while self.before.len() > self.slack {
            if let Some(Closed { chunk, rows }) = self.before.pop_front() {
                self.spare_states.extend(chunk.state.and_then(Page::reclaim));
                self.spare_rows.extend(rows.reclaim());
            }
        }
        self.take_checkpoints();
        Ok(())
    }

    /// Takes the checkpoints that are wanted at positions which the open chunk has reached. One that there is no memory for
    /// is not taken: it only saves time.
    fn take_checkpoints(&mut self) {
        while let Some(position) = self.wanted.first().copied().filter(|position| *position <= self.len()) {
            // A chunk's end is the next one's start.
            if position == self.open.start + STATE_CHUNK {
                return;
            }
            self.wanted.remove(0);
            self.taken.extend(self.at(position).and_then(Result::ok));
        }
    }

    /// The state at an earlier position, if a chunk that is held has it.
    pub(crate) fn at(&self, position: usize) -> Option<Result<StateAt, ArenaError>> {
        let (chunk, rows) = if position >= self.open.start {
            (position <= self.len()).then_some((&self.open, self.rows.as_ref().map(AnyPage::Own)))?
        } else {
            let closed = self.before.iter().find(|closed| closed.covers(position))?;
            (&closed.chunk, Some(AnyPage::Shared(&closed.rows)))
        };
        let bytes = (position - chunk.start) * self.shape.row * size_of::<f32>();
        let rows = rows
            .filter(|_| bytes > 0)
            .map(|rows| self.memory.upload(PageKind::BYTES, &rows.canonical()[..bytes]));
        Some(rows.transpose().map(|rows| StateAt { position, chunk: chunk.clone(), rows }))
    }

    /// Bytes of the page of a state.
    fn state_bytes(&self) -> usize {
        self.state_type.bytes(self.shape.state)
    }

    /// Bytes of the page of a chunk's rows.
    fn row_bytes(&self) -> usize {
        STATE_CHUNK * self.shape.row * size_of::<f32>()
    }

    /// Takes the memory that `tokens` more will need, and is told at which positions, in order, checkpoints are to be taken.
    pub(crate) fn reserve(&mut self, tokens: usize, wanted: &[usize]) -> Result<(), ArenaError> {
        self.wanted.clear();
        self.wanted.extend_from_slice(wanted);
        let closed = (self.count + tokens) / STATE_CHUNK;
        let begun = (self.count + tokens).div_ceil(STATE_CHUNK) - usize::from(self.rows.is_some());
        // Further ones are those of chunks that this pass has left behind, unless a checkpoint keeps them.
        let most = self.slack + 2 + wanted.len();
        while self.spare_states.len() < closed.min(most) {
            self.spare_states.push(self.memory.page(PageKind::BYTES, self.state_bytes())?);
        }
        while self.spare_rows.len() < begun.min(most) {
            self.spare_rows.push(self.memory.page(PageKind::BYTES, self.row_bytes())?);
        }
        Ok(())
    }

    /// Gives back memory taken in advance, and forgets what was wanted of the pass.
    pub(crate) fn release(&mut self) {
        self.wanted.clear();
        self.taken.clear();
        self.passing.clear();
        self.spare_states.clear();
        self.spare_rows.clear();
    }

    /// Ends a pass: what was kept to take it back is forgotten, and chunks that end at `keep` or before.
    pub(crate) fn settle(&mut self, keep: usize) -> Vec<StateAt> {
        let taken = std::mem::take(&mut self.taken);
        self.pass_start = None;
        self.release();
        while self.before.front().is_some_and(|closed| closed.chunk.start + STATE_CHUNK <= keep) {
            self.before.pop_front();
        }
        taken
    }

    /// The open chunk, the page of its rows, and chunks before it that are kept, oldest first.
    pub(crate) fn chunks(&self) -> (&Chunk, Option<&PageMut>, &VecDeque<Closed>) {
        (&self.open, self.rows.as_ref(), &self.before)
    }

    /// Holds what it held when it was saved: the state at the end, and closed chunks before it.
    pub(crate) fn load(&mut self, at: &StateAt, before: VecDeque<Closed>) -> Result<(), ArenaError> {
        self.restore(at)?;
        self.before = before;
        Ok(())
    }

    /// Pages that other sequences may share.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &Page> {
        let earlier = self.pass_start.iter().flat_map(|(closed, before)| before.iter().chain([closed]));
        let closed = self.before.iter().chain(earlier).flat_map(Closed::pages);
        let passing = self.taken.iter().flat_map(StateAt::pages).chain(&self.passing);
        self.open.state.iter().chain(closed).chain(passing)
    }

    /// Pages that nobody shares.
    pub(crate) fn own(&self) -> impl Iterator<Item = &PageMut> {
        self.rows.iter().chain(&self.spare_states).chain(&self.spare_rows)
    }

    /// Bytes of the slots it takes, shared ones included.
    pub(crate) fn bytes(&self) -> usize {
        let own: usize = self.own().map(|page| Arena::slot_bytes(page.size())).sum();
        own + self.shared().map(|page| Arena::slot_bytes(page.size())).sum::<usize>()
    }
}
