//! Tables of coded pages that stay on the device while passes come and go: a *seat* per sequence ([`BlockTables`]).
//!
//! The tables are the first words of the plan's buffer, and the words of a pass follow them. Slots with a window read few pages and are
//! not kept: theirs are listed anew in every pass.
//!
//! An entry lies at (seat, slot, kv head, side, page); all seats have room for as many pages, so slots of one shape differ by where
//! they begin.

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::layout::{LayoutKernels, SlotKernels};
use kvant_cache::{ExactWindow, KvSlot, Sequence};
use kvant_codec::Side;
use kvant_device::BlockTables;
use std::ops::Range;

/// Tables before one has to leave for another.
const SEATS: usize = 16;

/// Pages that a table has room for at first.
const FIRST_PAGES: usize = 16;

/// The tables of one layout's slots.
#[derive(Default)]
pub(crate) struct Tables {
    words: Vec<u32>,
    seats: BlockTables,
    /// Pages that every table has room for.
    pages: usize,
    /// First list of each slot within a seat; `None` where a slot is not kept.
    slots: Vec<Option<usize>>,
    /// Lists of a seat: one for every kv head and side.
    lists: usize,
    /// What the device has not got yet, and the buffer that has the rest.
    changed: Vec<Range<usize>>,
    there: Option<u64>,
}

impl Tables {
    pub(crate) fn new(kernels: &LayoutKernels, rule: &ExactWindow) -> Tables {
        let mut lists = 0;
        let slot = |slot: &Option<SlotKernels>| {
            let slot = slot.as_ref().filter(|slot| rule.window(slot.window).is_none())?;
            lists += 2 * slot.kv_heads;
            Some(lists - 2 * slot.kv_heads)
        };
        let slots: Vec<Option<usize>> = kernels.slots.iter().map(slot).collect();
        Tables { seats: BlockTables::new(slots.len(), SEATS), slots, lists, ..Tables::default() }
    }

    /// Words of all tables.
    pub(crate) fn len(&self) -> usize {
        self.words.len()
    }

    /// Pages from one list of a seat to the next.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Where the first list of a slot is in the first seat; `None` where it is not kept.
    pub(crate) fn slot_at(&self, slot: KvSlot) -> Option<usize> {
        self.slots.get(slot.index()).copied().flatten().map(|list| list * self.pages)
    }

    /// Words from the first seat to this one.
    pub(crate) fn seat_at(&self, seat: usize) -> usize {
        seat * self.lists * self.pages
    }

    /// The seats of the sequences of a pass, by lineage, with room for this many pages.
    pub(crate) fn seats(&mut self, lineages: &[u64], pages: usize) -> Vec<usize> {
        if pages > self.pages {
            self.pages = pages.next_power_of_two().max(FIRST_PAGES);
            self.seats.clear();
        }
        let places = self.seats.of(lineages);
        let words = self.seats.len() * self.lists * self.pages;
        if words != self.words.len() {
            // The words of passes begin elsewhere now, and so may the buffer.
            self.words.resize(words, 0);
            self.there = None;
        }
        places
    }

    /// Enters the coded pages of a sequence up to these counts of keys and values.
    pub(crate) fn enter(
        &mut self,
        seat: usize,
        slot: KvSlot,
        of: &SlotKernels,
        sequence: &Sequence,
        coded: [usize; 2],
    ) -> Result<(), String> {
        let Some(slot_at) = self.slot_at(slot) else { return Ok(()) };
        let first = self.seat_at(seat) + slot_at;
        let entered = self.seats.entered(seat, slot, sequence, [of.key.tokens(), of.value.tokens()]);
        for (index, side) in [Side::Key, Side::Value].into_iter().enumerate() {
            let new = entered[index]..coded[index];
            if new.is_empty() {
                continue;
            }
            for head in 0..of.kv_heads {
                let store = sequence.side(slot, head, side).ok_or("a slot holds no pages")?;
                let at = first + (2 * head + index) * self.pages;
                for page in new.clone() {
                    let id = store.encoded_id(page);
                    let id = id.ok_or_else(|| format!("page {page} of layer data is not held as bytes"))?;
                    self.words[at + page] = id.0 as u32;
                }
            }
            self.changed.push(first..first + 2 * of.kv_heads * self.pages);
        }
        self.seats.enter(seat, slot, sequence, [0, 1].map(|side| entered[side].max(coded[side])));
        Ok(())
    }

    /// Writes what has changed to the first words of a buffer.
    pub(crate) fn upload(&mut self, gpu: &Gpu, buffer: &Buffer) {
        if self.there == Some(buffer.number()) {
            self.changed.dedup();
            for range in self.changed.drain(..) {
                buffer.write(gpu, 4 * range.start, &self.words[range]);
            }
        } else {
            self.there = Some(buffer.number());
            self.changed.clear();
            buffer.write(gpu, 0, &self.words);
        }
    }
}
