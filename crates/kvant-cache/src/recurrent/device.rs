//! How recurrent state grows where a device computes it: which pages it reads and writes, told before it does.

use super::{Chunk, Closed, RecurrentState, StateAt};
use crate::error::CacheError;
use crate::page::{Page, PageMut};
use crate::slot::STATE_CHUNK;
use crate::store::{PageId, PageKind};

/// A piece of a pass that lies in one chunk. The device goes through the pieces of a pass in order: the state at a piece's start is in a
/// page for the first piece alone, and for others what the piece before it ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatePiece {
    /// The state at the start of the first piece's chunk; none for zeros, and for later pieces.
    pub state: Option<PageId>,
    /// Where the chunk's rows are kept, `(STATE_CHUNK, row)`; none where nobody will read them. The first piece has one.
    pub rows: Option<PageId>,
    /// Tokens of the chunk that came in earlier passes.
    pub before: usize,
    /// Tokens of the piece.
    pub tokens: usize,
    /// Where the state at the chunk's end is kept; none where the chunk is not full, and where nobody will read it.
    pub next: Option<PageId>,
}

/// Rows of a chunk that a checkpoint keeps: the first bytes of one page, which the device copies to another after the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsCopy {
    /// The chunk's rows.
    pub from: PageId,
    /// A page of `bytes` bytes.
    pub to: PageId,
    /// How many.
    pub bytes: usize,
}

/// What a device does to advance a slot by the tokens of a pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateWork {
    /// In the order of tokens.
    pub pieces: Vec<StatePiece>,
    /// What is copied in the end.
    pub copies: Vec<RowsCopy>,
}

impl RecurrentState {
    /// Takes the pages of further tokens, and tells what the device has to do. It is as if it had been done.
    ///
    /// Chunks of the pass that nobody can go back to have no pages. **Invariant:** no page that the device was told of is given back before
    /// the pass ends, so pieces of all slots may be worked on in any order.
    pub(crate) fn advance_on_device(&mut self, tokens: usize) -> Result<StateWork, CacheError> {
        if self.memory.is_host() {
            return Err(CacheError::NotDevice);
        }
        let (first, closing) = (self.open.start, (self.count + tokens) / STATE_CHUNK);
        let slack = self.slack;
        let stays = |chunk: usize| chunk + slack >= closing;
        let mut work = StateWork::default();
        let mut left = tokens;
        for chunk in 0..=closing {
            let count = (STATE_CHUNK - self.count).min(left);
            if count == 0 {
                break;
            }
            let state = self.open.state.as_ref().filter(|_| chunk == 0).and_then(Page::id);
            let is_wanted = |from: usize, to: usize| {
                let positions = first + chunk * STATE_CHUNK + from..first + chunk * STATE_CHUNK + to;
                self.wanted.iter().any(|position| positions.contains(position))
            };
            let keeps_rows = chunk == 0 || stays(chunk) || is_wanted(1, STATE_CHUNK);
            let keeps_next = stays(chunk + 1) || is_wanted(STATE_CHUNK, 2 * STATE_CHUNK);
            let mut rows = match self.rows.take() {
                Some(page) => Some(page),
                None if keeps_rows => Some(self.spare(false)?),
                None => None,
            };
            let before = self.count;
            self.count += count;
            left -= count;
            self.copy_checkpoints(rows.as_ref(), &mut work.copies);
            let place = rows.as_ref().and_then(PageMut::id);
            if self.count < STATE_CHUNK {
                work.pieces.push(StatePiece { state, rows: place, before, tokens: count, next: None });
                self.rows = rows.take();
                break;
            }
            let next = if keeps_next { Some(self.spare(true)?.freeze()) } else { None };
            let to = next.as_ref().and_then(Page::id);
            work.pieces.push(StatePiece { state, rows: place, before, tokens: count, next: to });
            self.close_on_device(rows.map(PageMut::freeze), next, stays(chunk));
            self.copy_checkpoints(None, &mut work.copies);
        }
        Ok(work)
    }

    /// A page for a state or for rows, of those taken in advance if there is one.
    fn spare(&mut self, is_state: bool) -> Result<PageMut, CacheError> {
        let (spare, bytes) = match is_state {
            true => (self.spare_states.pop(), self.state_bytes()),
            false => (self.spare_rows.pop(), self.row_bytes()),
        };
        match spare {
            Some(page) => Ok(page),
            None => Ok(self.memory.page(PageKind::BYTES, bytes)?),
        }
    }

    /// Opens the next chunk.
    fn close_on_device(&mut self, rows: Option<Page>, next: Option<Page>, stays: bool) {
        let next = Chunk { start: self.len(), state: next };
        let chunk = std::mem::replace(&mut self.open, next);
        self.count = 0;
        let Some(rows) = rows else {
            self.before.clear();
            return;
        };
        let closed = Closed { chunk, rows };
        if self.pass_start.is_none() {
            self.pass_start = Some((closed.clone(), self.before.clone()));
        }
        if stays {
            self.before.push_back(closed);
        } else {
            self.before.clear();
            self.passing.push(closed.rows);
        }
        while self.before.len() > self.slack {
            self.before.pop_front();
        }
    }

    /// Takes the checkpoints that the open chunk has reached; `rows` are its. One that there is no memory for is not taken.
    fn copy_checkpoints(&mut self, rows: Option<&PageMut>, copies: &mut Vec<RowsCopy>) {
        while let Some(position) = self.wanted.first().copied().filter(|position| *position <= self.len()) {
            let count = position.saturating_sub(self.open.start);
            if count == STATE_CHUNK {
                return; // the next chunk's start
            }
            self.wanted.remove(0);
            let bytes = count * self.shape.row * size_of::<f32>();
            let copy = if bytes == 0 {
                None
            } else {
                let (Some(from), Ok(page)) =
                    (rows.and_then(PageMut::id), self.memory.page(PageKind::BYTES, bytes))
                else {
                    continue;
                };
                copies.extend(page.id().map(|to| RowsCopy { from, to, bytes }));
                Some(page.freeze())
            };
            self.taken.push(StateAt { position, chunk: self.open.clone(), rows: copy });
        }
    }
}
