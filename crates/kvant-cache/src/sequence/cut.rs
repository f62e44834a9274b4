//! How a sequence goes back, forks and forgets.

use super::{Contents, Paged, Sequence};
use crate::arena::ArenaError;
use crate::exact_window::Mode;
use crate::layout::ROLLBACK;
use crate::lineage::Lineage;
use crate::recurrent::StateAt;
use crate::side::SideStore;
use crate::slot::STATE_CHUNK;
use crate::steps::Steps;
use std::sync::Arc;

impl Sequence {
    /// Forgets what neither a later query nor going back a few tokens reads, and takes checkpoints in.
    pub(crate) fn settle(&mut self) {
        let (slack, keep) = (self.layout.slack(), self.rollback_floor());
        let mut taken: Vec<Vec<StateAt>> = Vec::new();
        for (slot, layout) in self.slots.iter_mut().zip(self.layout.slots()) {
            match slot {
                Contents::Pages(paged) => {
                    let window = layout.window();
                    for side in &mut paged.sides {
                        side.settle(self.layout.exact_window(), paged.len, window, slack);
                    }
                }
                Contents::View => {}
                Contents::Recurrent(state) => taken.push(state.settle(keep)),
            }
        }
        if taken.iter().any(|taken| !taken.is_empty()) {
            self.take_checkpoints(taken);
        }
    }

    /// Adds what every recurrent slot has a state for.
    fn take_checkpoints(&mut self, taken: Vec<Vec<StateAt>>) {
        let steps = Steps::of(&self.layout);
        let positions: Vec<usize> = taken.iter().flatten().map(|state| state.position).collect();
        let mut by_slot: Vec<_> = taken.into_iter().map(|taken| taken.into_iter().peekable()).collect();
        let is_everywhere =
            |position: usize| positions.iter().filter(|other| **other == position).count() == by_slot.len();
        let mut common: Vec<usize> = positions.iter().copied().filter(|at| is_everywhere(*at)).collect();
        common.sort_unstable();
        common.dedup();
        for position in common {
            let states =
                by_slot.iter_mut().filter_map(|taken| taken.find(|state| state.position == position));
            self.checkpoints.add(steps, states.collect());
        }
        self.settle_checkpoints();
    }

    /// The lowest position that taking back [`ROLLBACK`] tokens can lead to, now or when more have come: where the page of
    /// the first of them starts, which is to be read again once it is encoded.
    fn rollback_floor(&self) -> usize {
        let (rule, to) = (self.layout.exact_window(), self.len.saturating_sub(ROLLBACK));
        match self.layout.largest_page() {
            Some(page) if rule.recent == 0 && to > rule.sinks => {
                rule.page_start((to - rule.sinks) / page, page)
            }
            _ => to,
        }
    }

    /// Takes back an unfinished pass, and gives back the memory that was reserved for it.
    ///
    /// # Errors
    /// When the store has no page left to copy a tail to that was shared in the middle of the pass.
    pub fn abandon(&mut self) -> Result<(), ArenaError> {
        for slot in &mut self.slots {
            slot.sides_mut().iter_mut().for_each(|side| side.release(self.len));
            if let Contents::Recurrent(state) = slot {
                state.release();
            }
        }
        self.truncate(self.len).map(drop)
    }

    /// Goes back to at most `len` tokens and returns how many are left. Where it is less than `len`, the tokens from there
    /// on must be read again: the exact rows of a page are gone once it is encoded. After that, every bit is as if the
    /// sequence had never been longer.
    ///
    /// # Errors
    /// When the store has no page left to copy a shared tail to.
    pub fn truncate(&mut self, len: usize) -> Result<usize, ArenaError> {
        let rule = *self.layout.exact_window();
        let target = self.restorable(len);
        let mut states = self.saved_states(target).unwrap_or_default().into_iter();
        if self.slots.iter().any(|slot| matches!(slot, Contents::Pages(paged) if paged.len > target)) {
            self.lineage.cut(target);
        }
        for slot in &mut self.slots {
            match slot {
                Contents::Pages(paged) if paged.len > target => {
                    for side in &mut paged.sides {
                        side.cut(&rule, target)?;
                    }
                    paged.len = target;
                }
                Contents::Pages(_) | Contents::View => {}
                Contents::Recurrent(state) => match states.next() {
                    Some(saved) => state.restore(&saved)?,
                    None => state.cut(target)?,
                },
            }
        }
        self.checkpoints.cut(target);
        (self.len, self.under_way) = (target, None);
        Ok(target)
    }

    /// The states of a checkpoint, where recurrent slots cannot go back to `target` by themselves.
    fn saved_states(&self, target: usize) -> Option<Vec<StateAt>> {
        if self.states().all(|state| state.covers(target)) {
            return None;
        }
        let checkpoint = self.checkpoints.at(target)?;
        checkpoint.touch();
        Some(checkpoint.states.clone())
    }

    /// The largest length up to `len` that it can be cut to: what [`truncate`](Sequence::truncate) would leave.
    pub fn restorable(&self, len: usize) -> usize {
        let rule = self.layout.exact_window();
        let mut target = len.min(self.len);
        loop {
            let before = target;
            for (slot, layout) in self.slots.iter().zip(self.layout.slots()) {
                match slot {
                    Contents::Pages(paged) => {
                        let window = layout.window();
                        for side in &paged.sides {
                            if paged.len > target {
                                target = side.restorable(rule, target, window);
                            }
                        }
                    }
                    Contents::View | Contents::Recurrent(_) => {}
                }
            }
            if !self.states().all(|state| state.covers(target)) {
                target = self.checkpoints.last(target).map_or(0, |checkpoint| checkpoint.position);
            }
            if target == before {
                return target;
            }
        }
    }

    /// How many of at most `tokens` the next pass may have, at least one, so that taking it back to its first token, or to any later one,
    /// reads nothing again: it ends before another page is encoded or leaves the exact rows or the window, and before a chunk of recurrent
    /// state is closed. What is held then is what would be held if it had ended there; of recurrent state, chunks that only going back far
    /// would need may be forgotten a few tokens earlier.
    pub fn revocable(&self, tokens: usize) -> usize {
        let (rule, slack) = (self.layout.exact_window(), self.layout.slack());
        if rule.mode == Mode::Strict {
            return 1;
        }
        let first = self.len + 1;
        let mut end = self.len.saturating_add(tokens.min(1 + ROLLBACK));
        for (slot, _, _, side) in self.layout.sides() {
            let page = side.page_tokens();
            end = end.min(rule.next_change(first.saturating_sub(slack.exact), page) + slack.exact - 1);
            let window = self.layout.window(slot);
            if let Some(width) = rule.window(window) {
                let seen = rule.first_seen(first, window).saturating_sub(slack.window);
                let left = seen.saturating_sub(rule.sinks) / page;
                let leaves =
                    rule.page_start(left + 1, page).saturating_add(slack.window).saturating_add(width);
                end = end.min(leaves - 2);
            }
        }
        if self.has_states() {
            end = end.min((first / STATE_CHUNK + 1) * STATE_CHUNK - 1);
        }
        end.max(first) - self.len
    }

    /// Another sequence with the first `len` tokens, or fewer: as a [`fork`](Sequence::fork) that is
    /// [truncated](Sequence::truncate). At the end of a page it takes no memory.
    ///
    /// # Errors
    /// When the store has no more memory.
    pub fn prefix(&self, len: usize) -> Result<Sequence, ArenaError> {
        let (rule, len) = (self.layout.exact_window(), self.restorable(len));
        let mut states = self.saved_states(len).unwrap_or_default().into_iter();
        self.copy(len, |slot| {
            Ok(match slot {
                Contents::Pages(paged) => {
                    let side =
                        |side: &SideStore| if paged.len > len { side.prefix(rule, len) } else { side.fork() };
                    let sides = paged.sides.iter().map(side).collect::<Result<_, _>>()?;
                    Contents::Pages(Paged { len, sides })
                }
                Contents::View => Contents::View,
                Contents::Recurrent(state) => Contents::Recurrent(Box::new(match states.next() {
                    Some(saved) => state.at_checkpoint(&saved)?,
                    None => state.prefix(len)?,
                })),
            })
        })
    }

    /// Another sequence with the same tokens. Full pages and sinks are shared; only tails are copied.
    ///
    /// # Errors
    /// When the store has no more memory.
    pub fn fork(&self) -> Result<Sequence, ArenaError> {
        self.copy(self.len, |slot| {
            Ok(match slot {
                Contents::Pages(Paged { len, sides }) => {
                    let sides = sides.iter().map(SideStore::fork).collect::<Result<_, _>>()?;
                    Contents::Pages(Paged { len: *len, sides })
                }
                Contents::View => Contents::View,
                Contents::Recurrent(state) => Contents::Recurrent(Box::new(state.fork()?)),
            })
        })
    }

    fn copy(
        &self,
        len: usize,
        slot: impl FnMut(&Contents) -> Result<Contents, ArenaError>,
    ) -> Result<Sequence, ArenaError> {
        let slots = self.slots.iter().map(slot).collect::<Result<_, _>>()?;
        let (layout, memory) = (Arc::clone(&self.layout), self.memory.clone());
        let (checkpoints, lineage) = (self.checkpoints.prefix(len), Lineage::new());
        let (capacity, under_way) = (self.capacity, None);
        Ok(Sequence { layout, memory, len, capacity, under_way, slots, checkpoints, lineage })
    }
}
