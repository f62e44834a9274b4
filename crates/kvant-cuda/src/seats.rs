//! The tables of closed pages on the card: a *seat* per sequence, which stays while passes come and go.
//!
//! A sequence that only grows keeps its entries ([`Sequence::lineage`]), so a step adds the pages that were closed since its last one and
//! nothing else. Sequences that have no seat take the one that was not used for the longest time.

use crate::buffer::Buffer;
use crate::cache::SlotPages;
use crate::device::{Card, OpenError};
use crate::pages::Book;
use crate::params::Address;
use crate::table::{PageEntry, PageTable};
use kvant_cache::{KvSlot, PageId, Sequence};
use kvant_codec::Side;
use std::sync::Arc;

/// Seats before one has to leave for another.
const SEATS: usize = 64;

/// The seats of one layout's slots.
pub(crate) struct Seats {
    seats: Vec<Seat>,
    clock: u64,
    tables: Vec<Option<SlotTable>>,
}

struct Seat {
    lineage: u64,
    used: u64,
    /// Pages of each slot that are in its table.
    filled: Vec<usize>,
    /// Pages of each slot that its last pass read exactly: the store knows their kinds.
    exact: Vec<Vec<PageId>>,
}

struct SlotTable {
    table: PageTable,
    device: Option<Buffer>,
}

impl Seats {
    pub(crate) fn new(slots: &[Option<SlotPages>]) -> Seats {
        let table = |slot: &SlotPages| SlotTable { table: PageTable::new(slot.kv_heads), device: None };
        Seats {
            seats: Vec::new(),
            clock: 0,
            tables: slots.iter().map(|slot| slot.as_ref().map(table)).collect(),
        }
    }

    /// The seats of the sequences of a pass, by lineage.
    pub(crate) fn of(&mut self, lineages: &[u64]) -> Vec<usize> {
        self.clock += 1;
        let mut found: Vec<Option<usize>> = lineages
            .iter()
            .map(|lineage| self.seats.iter().position(|seat| seat.lineage == *lineage))
            .collect();
        for seat in found.iter().flatten() {
            self.seats[*seat].used = self.clock;
        }
        for (lineage, place) in lineages.iter().zip(&mut found).filter(|(_, place)| place.is_none()) {
            let filled = vec![0; self.tables.len()];
            let exact = vec![Vec::new(); self.tables.len()];
            let fresh = Seat { lineage: *lineage, used: self.clock, filled, exact };
            let oldest = (0..self.seats.len()).min_by_key(|seat| self.seats[*seat].used);
            *place = Some(
                match oldest.filter(|seat| self.seats.len() >= SEATS && self.seats[*seat].used < self.clock) {
                    Some(seat) => {
                        self.seats[seat] = fresh;
                        seat
                    }
                    None => {
                        self.seats.push(fresh);
                        self.seats.len() - 1
                    }
                },
            );
        }
        found.into_iter().flatten().collect()
    }

    /// The pages of a slot that a seat's last pass read exactly, to be replaced by those of the next.
    pub(crate) fn exact(&mut self, seat: usize, slot: KvSlot) -> &mut Vec<PageId> {
        &mut self.seats[seat].exact[slot.index()]
    }

    /// Enters the pages of a sequence up to `closed`, whose keys and values are both codes, into the table of a slot.
    pub(crate) fn enter(
        &mut self,
        seat: usize,
        slot: KvSlot,
        of: &SlotPages,
        sequence: &Sequence,
        closed: usize,
        book: &mut Book<'_>,
    ) -> Result<(), String> {
        let Some(table) = self.tables.get_mut(slot.index()).and_then(Option::as_mut) else {
            return Err("a slot without a table".to_owned());
        };
        let filled = &mut self.seats[seat].filled[slot.index()];
        for head in 0..of.kv_heads {
            let side = |side| sequence.side(slot, head, side).ok_or("a slot holds no pages");
            let (keys, values) = (side(Side::Key)?, side(Side::Value)?);
            for page in *filled..closed {
                if page < (of.halves * keys.dropped()).max(values.dropped()) {
                    continue; // it has left the window, and no query sees it
                }
                let missing = || format!("page {page} of layer {} is not held as bytes", of.layer);
                let key = keys.encoded_id(page / of.halves).ok_or_else(missing)?;
                let key = book.place(key, of.closed_keys(head))?;
                let value = book.place(values.encoded_id(page).ok_or_else(missing)?, of.value.closed)?;
                table.table.set(seat, head, page, [key, value]);
            }
        }
        *filled = closed.max(*filled);
        Ok(())
    }

    /// Sends what has changed.
    pub(crate) fn send(&mut self, card: &Arc<Card>) -> Result<(), OpenError> {
        for SlotTable { table, device } in self.tables.iter_mut().flatten() {
            let mut changed = table.take_changed();
            let bytes = size_of_val(table.entries());
            if changed.is_empty() {
                continue;
            }
            let buffer = match device.take().filter(|buffer| buffer.bytes() >= bytes) {
                Some(buffer) => buffer,
                None => {
                    changed = 0..table.entries().len();
                    Buffer::new(card, bytes)?
                }
            };
            let words = table.entries()[changed.clone()].iter().flatten();
            let bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            buffer.upload(size_of::<PageEntry>() * changed.start, &bytes)?;
            *device = Some(buffer);
        }
        Ok(())
    }

    /// Address of a slot's table (seats, kv_heads, stride), and its stride.
    pub(crate) fn table(&self, slot: usize) -> (Address, usize) {
        match self.tables.get(slot) {
            Some(Some(SlotTable { table, device: Some(buffer) })) => (buffer.address(), table.stride()),
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_cache::{Arena, CacheLayout, KvShape, Slots};

    #[test]
    fn a_sequence_keeps_its_number_while_it_only_grows() {
        let shape = KvShape { kv_heads: 1, key_dim: 64, value_dim: 64, window: None };
        let slots = Slots::uniform(1, shape);
        let layout = Arc::new(CacheLayout::new(&"int4".parse().unwrap(), &slots).unwrap());
        let slot = slots.kv_slots().next().unwrap();
        let rows = vec![0.5; 100 * 64];
        let mut sequence = Sequence::new(layout, Arena::new());
        let first = sequence.lineage();
        for _ in 0..2 {
            sequence.append(slot, &rows, &rows).unwrap();
            sequence.advance(100).unwrap();
            assert_eq!(sequence.lineage(), first);
        }
        let mut met = vec![first, sequence.fork().unwrap().lineage(), sequence.prefix(70).unwrap().lineage()];
        assert_eq!(sequence.lineage(), first);
        sequence.truncate(190).unwrap();
        met.push(sequence.lineage());
        sequence.append(slot, &rows, &rows).unwrap();
        sequence.abandon().unwrap();
        met.push(sequence.lineage());
        met.sort_unstable();
        met.dedup();
        assert_eq!(met.len(), 5);
    }

    #[test]
    fn sequences_keep_their_seats_until_all_are_taken() {
        let mut seats = Seats::new(&[]);
        assert_eq!(seats.of(&[10, 11, 12]), [0, 1, 2]);
        assert_eq!(seats.of(&[12, 10]), [2, 0]);
        assert_eq!(seats.of(&[13, 12]), [3, 2]);
        let many: Vec<u64> = (100..100 + SEATS as u64 - 4).collect();
        assert_eq!(seats.of(&many), (4..SEATS).collect::<Vec<_>>());
        // 11 has not been seen for the longest time, then 10.
        assert_eq!(seats.of(&[1000, 1001, 12]), [1, 0, 2]);
        // A pass of more sequences than that gets more seats.
        let more: Vec<u64> = (2000..2000 + SEATS as u64 + 3).collect();
        let mut found = seats.of(&more);
        found.sort_unstable();
        assert_eq!(found, (0..SEATS + 3).collect::<Vec<_>>());
    }
}
