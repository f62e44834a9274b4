//! Block tables that stay on a device while passes come and go: every sequence has a *seat*, its rows of the tables.
//!
//! A pass enters the pages that were closed since the last one. A sequence that went back keeps its seat, and its pages from the cut on are
//! entered anew ([`Sequence::kept_pages`]). Sequences that have no seat take the one that was not used for the longest time, once there
//! are as many as the device wants to keep; a pass of more sequences than that gets more seats.

use kvant_cache::{KvSlot, Sequence};

/// The seats of one layout's slots.
#[derive(Debug, Default)]
pub struct BlockTables {
    seats: Vec<Seat>,
    slots: usize,
    most: usize,
    clock: u64,
}

#[derive(Debug)]
struct Seat {
    lineage: u64,
    used: u64,
    /// By slot.
    entered: Vec<Entered>,
}

/// What a table has of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Entered {
    /// Pages of keys and of values.
    pages: [usize; 2],
    /// [`Sequence::cuts`] at that time.
    cuts: u64,
}

impl BlockTables {
    /// Room for this many slots of a layout; `most` seats before one has to leave for another.
    pub fn new(slots: usize, most: usize) -> BlockTables {
        BlockTables { seats: Vec::new(), slots, most, clock: 0 }
    }

    /// Tables that were ever taken.
    pub fn len(&self) -> usize {
        self.seats.len()
    }

    /// True before the first pass.
    pub fn is_empty(&self) -> bool {
        self.seats.is_empty()
    }

    /// Forgets everything: the tables are made anew.
    pub fn clear(&mut self) {
        self.seats.clear();
    }

    /// The seats of the sequences of a pass, by lineage.
    pub fn of(&mut self, lineages: &[u64]) -> Vec<usize> {
        self.clock += 1;
        // Before any leaves: whoever is in the pass keeps its own.
        for seat in self.seats.iter_mut().filter(|seat| lineages.contains(&seat.lineage)) {
            seat.used = self.clock;
        }
        lineages.iter().map(|lineage| self.seat(*lineage)).collect()
    }

    fn seat(&mut self, lineage: u64) -> usize {
        if let Some(seat) = self.seats.iter().position(|seat| seat.lineage == lineage) {
            return seat;
        }
        let fresh = Seat { lineage, used: self.clock, entered: vec![Entered::default(); self.slots] };
        let oldest = (0..self.seats.len()).min_by_key(|seat| self.seats[*seat].used);
        match oldest.filter(|seat| self.seats.len() >= self.most && self.seats[*seat].used < self.clock) {
            Some(seat) => {
                self.seats[seat] = fresh;
                seat
            }
            None => {
                self.seats.push(fresh);
                self.seats.len() - 1
            }
        }
    }

    /// Pages of keys and of values of a slot that the tables have of a sequence; those after them are to be entered. `page_tokens` are
    /// the tokens of a page of keys, and of values.
    pub fn entered(
        &self,
        seat: usize,
        slot: KvSlot,
        sequence: &Sequence,
        page_tokens: [usize; 2],
    ) -> [usize; 2] {
        let Entered { pages, cuts } = self.seats[seat].entered[slot.index()];
        [0, 1].map(|side| {
            let kept = sequence.kept_pages(cuts, page_tokens[side]);
            kept.map_or(pages[side], |kept| kept.min(pages[side]))
        })
    }

    /// Notes that the tables have so many pages of a sequence now.
    pub fn enter(&mut self, seat: usize, slot: KvSlot, sequence: &Sequence, pages: [usize; 2]) {
        self.seats[seat].entered[slot.index()] = Entered { pages, cuts: sequence.cuts() };
    }
}
