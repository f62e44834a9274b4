//! How recurrent state goes back, and how another comes to share it.

use super::{Chunk, Closed, RecurrentState, StateAt};
use crate::arena::ArenaError;
use crate::page::PageMut;
use crate::slot::STATE_CHUNK;
use crate::store::{PageKind, Store};

impl RecurrentState {
    /// Whether it can go back to `len` tokens by itself.
    pub(crate) fn covers(&self, len: usize) -> bool {
        let live = len >= self.open.start && len <= self.len();
        let earlier = self.pass_start.iter().flat_map(|(closed, before)| before.iter().chain([closed]));
        len == 0 || live || self.before.iter().chain(earlier).any(|closed| closed.covers(len))
    }

    /// Goes back to `len` tokens, which it [covers](RecurrentState::covers).
    pub(crate) fn cut(&mut self, len: usize) -> Result<(), ArenaError> {
        self.release();
        let pass_start = self.pass_start.take();
        if len == 0 {
            *self = self.fresh();
            return Ok(());
        }
        if len < self.open.start {
            if let Some((closed, before)) = pass_start {
                self.before = before;
                self.before.push_back(closed);
            }
            while let Some(Closed { chunk, rows }) = self.before.pop_back() {
                if chunk.start <= len {
                    self.rows = if chunk.start < len { Some(rows.into_mut()?) } else { None };
                    self.open = chunk;
                    break;
                }
            }
            self.count = STATE_CHUNK;
        }
        self.count = self.count.min(len - self.open.start);
        self.rows = self.rows.take().filter(|_| self.count > 0);
        Ok(())
    }

    /// Another one of the same slot that holds the state at a checkpoint, and nothing before it.
    pub(crate) fn at_checkpoint(&self, at: &StateAt) -> Result<RecurrentState, ArenaError> {
        let rows = at.rows.as_ref().map(|rows| {
            let mut page = self.memory.page(PageKind::BYTES, self.row_bytes())?;
            page.edit(|bytes| bytes[..rows.size()].copy_from_slice(&rows.canonical()));
            Ok(page)
        });
        let (open, count) = (at.chunk.clone(), at.position - at.chunk.start);
        Ok(RecurrentState { open, rows: rows.transpose()?, count, ..self.fresh() })
    }

    /// Holds the state at a checkpoint, and nothing before it.
    pub(crate) fn restore(&mut self, at: &StateAt) -> Result<(), ArenaError> {
        *self = self.at_checkpoint(at)?;
        Ok(())
    }

    /// Stands at `len` tokens with the state and the rows it has: for contexts that are made up to measure speed on.
    pub(crate) fn skip_to(&mut self, len: usize) -> Result<(), ArenaError> {
        self.before.clear();
        self.count = len % STATE_CHUNK;
        self.open.start = len - self.count;
        if self.rows.is_none() {
            self.rows = Some(self.memory.page(PageKind::BYTES, self.row_bytes())?);
        }
        Ok(())
    }

    /// A copy that shares the closed parts; the open rows are copied.
    pub(crate) fn fork(&self) -> Result<RecurrentState, ArenaError> {
        Ok(RecurrentState {
            open: self.open.clone(),
            rows: self.rows.as_ref().map(PageMut::copy).transpose()?,
            count: self.count,
            before: self.before.clone(),
            pass_start: self.pass_start.clone(),
            ..self.fresh()
        })
    }

    /// A copy in another arena, of what it holds now.
    pub(crate) fn copy(&self, memory: Store) -> Result<RecurrentState, ArenaError> {
        let state = self
            .open
            .state
            .as_ref()
            .map(|page| memory.upload(PageKind::BYTES, &page.canonical()))
            .transpose()?;
        let rows = self
            .rows
            .as_ref()
            .map(|page| memory.upload(PageKind::BYTES, &page.canonical())?.into_mut())
            .transpose()?;
        let open = Chunk { start: self.open.start, state };
        Ok(RecurrentState { memory, open, rows, count: self.count, ..self.fresh() })
    }

    /// A copy cut to `len` tokens, which it [covers](RecurrentState::covers).
    pub(crate) fn prefix(&self, len: usize) -> Result<RecurrentState, ArenaError> {
        let rows = self.rows.as_ref().filter(|_| len > self.open.start).map(PageMut::copy).transpose()?;
        let mut prefix = RecurrentState {
            open: self.open.clone(),
            rows,
            count: self.count,
            before: self.before.clone(),
            pass_start: self.pass_start.clone(),
            ..self.fresh()
        };
        prefix.cut(len)?;
        Ok(prefix)
    }
}
