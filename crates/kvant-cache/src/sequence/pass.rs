//! A sequence's part of a pass: room for its tokens, then their end or the way back.

use super::Sequence;
use crate::error::{AttendError, CacheError};
use crate::layout::SlotLayout;
use crate::pass::{CacheFull, SequencePass, StateErrorKind, Streaming};
use crate::recurrent::{RecurrentState, StateWork};
use crate::slot::StateSlot;
use std::sync::Arc;

/// What is said of calls outside a pass.
pub(crate) const NOT_BEGUN: StateErrorKind =
    StateErrorKind::Pass { what: "no pass is under way: begin one, then append and attend" };

impl Sequence {
    /// The most tokens it may ever hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Lets it hold this many tokens at most from now on, and never fewer than it holds. A model that rotates by its capacity (LongRoPE,
    /// dynamic scaling) has to read again what is held: its keys are rotated for the old one.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.take_back();
        self.capacity = capacity.max(self.len);
    }

    /// The same sequence with another capacity.
    #[must_use]
    pub fn with_capacity(mut self, capacity: usize) -> Sequence {
        self.set_capacity(capacity);
        self
    }

    /// Its part of the pass that is under way; of no tokens where there is none.
    pub fn pass(&self) -> SequencePass {
        let rule = self.layout.exact_window();
        let streaming = rule.streaming.map(|window| Streaming { sinks: rule.sinks, window });
        let tokens = self.under_way.unwrap_or(0);
        SequencePass { start: self.len, tokens, capacity: self.capacity, streaming }
    }

    /// Whether a pass has begun and not ended.
    pub fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Refuses more tokens than fit.
    ///
    /// # Errors
    /// When the capacity does not suffice.
    pub fn check_capacity(&self, asked: usize) -> Result<(), CacheFull> {
        let (held, capacity) = (self.len, self.capacity);
        if asked > capacity.saturating_sub(held) {
            return Err(CacheFull { held, asked, capacity });
        }
        Ok(())
    }

    /// Begins a pass: makes room for `tokens` more. One that was left open is taken back first.
    ///
    /// # Errors
    /// When the context or the memory is full, or a file that the sequence lies in has shrunk; no pass is under way then.
    pub fn begin(&mut self, tokens: usize) -> Result<(), StateErrorKind> {
        self.take_back();
        self.check_capacity(tokens)?;
        self.check_files()?;
        self.under_way = Some(tokens);
        self.reserve(tokens).map_err(|error| {
            self.take_back();
            CacheError::from(error).into()
        })
    }

    /// Whether [`end`](Sequence::end) would end the pass.
    ///
    /// # Errors
    /// As [`end`](Sequence::end).
    pub fn check_end(&self) -> Result<(), StateErrorKind> {
        Ok(self.check_advance(self.under_way.ok_or(NOT_BEGUN)?)?)
    }

    /// Ends the pass: its tokens now count as held.
    ///
    /// # Errors
    /// When a slot has got another number of tokens than the pass has. Nothing has changed then.
    pub fn end(&mut self) -> Result<(), StateErrorKind> {
        self.advance(self.under_way.ok_or(NOT_BEGUN)?)?;
        self.under_way = None;
        Ok(())
    }

    /// Takes back a pass that is under way. Where there is no room even for the copy of a tail, nothing is held any more.
    pub fn take_back(&mut self) {
        if self.under_way.take().is_some() && self.abandon().is_err() {
            self.clear();
        }
    }

    /// Holds nothing any more.
    pub fn clear(&mut self) {
        let empty = Sequence::new(Arc::clone(&self.layout), self.memory.clone());
        *self = Sequence { capacity: self.capacity, ..empty };
    }

    /// Takes the pages of a pass in a recurrent slot that a device computes, and tells what it has to do. It is as if it had been done; the
    /// device does it before anything reads the pages.
    ///
    /// # Errors
    /// When there is no such slot, memory is full, or the sequence lies in host memory.
    pub fn advance_on_device(&mut self, slot: StateSlot, tokens: usize) -> Result<StateWork, StateErrorKind> {
        let index = slot.index();
        let found = self.layout.slots().get(index).map_or("nothing", |slot| slot.kind().name());
        let missing = StateErrorKind::Slot { slot: index, found, wanted: "recurrent state" };
        Ok(self.recurrent_mut(slot).ok_or(missing)?.advance_on_device(tokens)?)
    }

    /// The recurrent state of a slot, to be read and advanced by a mixer of the host.
    ///
    /// # Errors
    /// When there is no such slot, or the sequence lies on a device.
    pub fn host_state(&mut self, slot: StateSlot) -> Result<&mut RecurrentState, StateErrorKind> {
        let index = slot.index();
        let found = self.layout.slots().get(index).map_or("nothing", |slot| slot.kind().name());
        let memory = self.memory.of_layer(self.layout.slots().get(index).map_or(0, SlotLayout::layer));
        if !memory.is_host() {
            return Err(AttendError::NotHost { store: memory.name().to_owned() }.into());
        }
        self.recurrent_mut(slot).ok_or(StateErrorKind::Slot { slot: index, found, wanted: "recurrent state" })
    }
}
