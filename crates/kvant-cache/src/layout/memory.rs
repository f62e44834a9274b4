//! How much memory a sequence takes, before there is one.

use super::{CacheLayout, SideCodecs};
use crate::arena::Arena;
use crate::checkpoint::WITHOUT_PAGES;
use crate::exact_window::Mode;
use crate::page::Page;
use crate::slot::{RecurrentShape, STATE_CHUNK, SlotKind};
use crate::steps::Steps;
use kvant_codec::PageCodec;

/// Tokens that can be taken back without reading more than a page again.
pub(crate) const ROLLBACK: usize = 32;

/// What is kept beyond what queries read, so that a few tokens can be taken back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slack {
    /// Tokens before the recent ones whose rows stay exact.
    pub exact: usize,
    /// Tokens before the window whose pages stay.
    pub window: usize,
    /// Closed chunks of recurrent state.
    pub chunks: usize,
}

/// How many pages a side holds.
struct Pages {
    encoded: usize,
    exact: usize,
}

impl CacheLayout {
    /// What is kept to take back a few tokens.
    ///
    /// The rows of a page are gone once it is encoded, so going back into one means reading it again from its start; where
    /// recent rows are read exactly, those before it would be needed too. So one page of exact rows is kept beyond them.
    pub(crate) fn slack(&self) -> Slack {
        let page = self.largest_page().unwrap_or(0);
        let keeps_exact = self.rule.recent > 0 && self.rule.mode == Mode::Deployed;
        // Without exact rows, the way back ends where a page starts.
        let further = if self.rule.recent == 0 { page } else { 0 };
        Slack {
            exact: if keeps_exact { page } else { 0 },
            window: page + ROLLBACK,
            chunks: (further + ROLLBACK).div_ceil(STATE_CHUNK),
        }
    }

    /// Tokens of the largest page; none where nothing lies in pages.
    pub(crate) fn largest_page(&self) -> Option<usize> {
        self.largest_page
    }

    /// The shapes of recurrent slots.
    fn states(&self) -> impl Iterator<Item = RecurrentShape> {
        self.slots.iter().filter_map(|slot| match slot.kind() {
            SlotKind::Recurrent(shape) => Some(*shape),
            SlotKind::KeysValues(_) | SlotKind::View(_) | SlotKind::Latent(_) => None,
        })
    }

    /// Bytes of one state of a slot.
    fn one_state(&self, shape: &RecurrentShape) -> usize {
        Arena::slot_bytes(self.state_type.bytes(shape.state))
    }

    /// Bytes of a checkpoint of all recurrent slots, at most.
    pub(crate) fn checkpoint_bytes(&self, steps: Steps) -> usize {
        // Where steps are no multiples of a chunk, rows up to the step are kept with the state.
        let rows = steps.sinks % STATE_CHUNK + steps.page % STATE_CHUNK;
        self.states().map(|shape| self.one_state(&shape) + row_bytes(&shape, rows)).sum()
    }

    /// Bytes that checkpoints may take when nothing is said, beside keys and values of `kv` bytes.
    pub(crate) fn checkpoint_budget(&self, kv: usize) -> usize {
        match self.largest_page() {
            Some(_) => kv,
            None => WITHOUT_PAGES * self.checkpoint_bytes(Steps::of(self)),
        }
    }

    /// The most bytes of recurrent state while a sequence grows to `len` tokens in passes of at most `chunk`.
    fn state_bytes(&self, len: usize, chunk: usize) -> usize {
        let closed = len / STATE_CHUNK;
        let in_pass = chunk.min(len).div_ceil(STATE_CHUNK);
        // The open chunk and those before it, and what a pass takes in advance.
        let kept = 1 + self.slack().chunks;
        let most = kept + in_pass.min(kept + 5);
        let states = self.states().map(|shape| {
            most.min(closed) * self.one_state(&shape) + most.min(closed + 1) * row_bytes(&shape, STATE_CHUNK)
        });
        states.sum()
    }

    /// The most bytes of a store that a sequence takes while it grows to `len` tokens in passes of at most `chunk`: its
    /// pages, the exact rows of a pass beside them, recurrent state, and as many bytes of checkpoints as their budget
    /// allows when nothing else is said: those of keys and values.
    pub fn arena_bytes(&self, len: usize, chunk: usize) -> usize {
        let slots = |pages: usize, codec: &dyn PageCodec| pages * Arena::slot_bytes(codec.page_bytes());
        let sides = self.sides().map(|(slot, _, _, side)| {
            let Pages { encoded, exact } = self.pages(slot, side, len, chunk);
            let sinks = usize::from(self.rule.sinks > 0 && len > 0);
            slots(encoded, side.codec()) + slots(exact, side.exact()) + slots(sinks, side.sinks())
        });
        let (kv, steps) = (sides.sum::<usize>(), Steps::of(self));
        let checkpoints = (steps.whole(len) / steps.page) * self.checkpoint_bytes(steps);
        kv + self.state_bytes(len, chunk) + checkpoints.min(self.checkpoint_budget(kv))
    }

    /// Bytes of memory that such a sequence comes to hold: those of the arena, and the handles of its pages.
    pub fn resident_bytes(&self, len: usize, chunk: usize) -> usize {
        let handles = self.sides().map(|(slot, _, _, side)| {
            let Pages { encoded, exact } = self.pages(slot, side, len, chunk);
            // Lists of pages double when they are full.
            let lists = encoded.next_power_of_two() + exact.next_power_of_two();
            (encoded + exact) * Page::LEASE_BYTES + lists * size_of::<Page>()
        });
        self.arena_bytes(len, chunk) + handles.sum::<usize>()
    }

    /// The most pages that a side holds meanwhile.
    fn pages(&self, slot: usize, side: &SideCodecs, len: usize, chunk: usize) -> Pages {
        let (rule, chunk, tokens) = (&self.rule, chunk.min(len), side.page_tokens());
        let all = len.saturating_sub(rule.sinks).div_ceil(tokens);
        let slack = self.slack();
        // Pages cut by a chunk's two ends, and by the window's.
        let encoded = rule.window(self.window(slot)).map_or(all, |window| {
            let seen = window.saturating_add(rule.recent).saturating_add(chunk + slack.window);
            all.min(seen / tokens + 3)
        });
        // Where the codec keeps every number, exact pages are the encoded ones.
        match side.is_exact() {
            true => Pages { encoded, exact: 0 },
            false => {
                let exact = rule.recent.saturating_add(chunk + slack.exact);
                Pages { encoded, exact: all.min(exact / tokens + 2) }
            }
        }
    }
}

fn row_bytes(shape: &RecurrentShape, rows: usize) -> usize {
    if rows == 0 { 0 } else { Arena::slot_bytes(rows * shape.row * size_of::<f32>()) }
}
