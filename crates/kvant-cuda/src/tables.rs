//! The tables of closed pages on the card, and what of them has to be sent.

use crate::buffer::Buffer;
use crate::cache::SlotPages;
use crate::device::{CudaGpu, OpenError};
use crate::pages::unit_as;
use crate::params::Address;
use crate::table::{PageEntry, PageTable};
use kvant_cache::{KvSlot, Sequence};
use kvant_codec::Side;
use kvant_device::BlockTables;
use std::sync::Arc;

/// Tables before one has to leave for another.
const SEATS: usize = 64;

/// The tables of one layout's slots, and which rows of them are whose.
pub(crate) struct PageTables {
    seats: BlockTables,
    tables: Vec<Option<SlotTable>>,
}

struct SlotTable {
    table: PageTable,
    device: Option<Buffer>,
}

impl PageTables {
    pub(crate) fn new(slots: &[Option<SlotPages>]) -> PageTables {
        let table = |slot: &SlotPages| SlotTable { table: PageTable::new(slot.kv_heads), device: None };
        PageTables {
            seats: BlockTables::new(slots.len(), SEATS),
            tables: slots.iter().map(|slot| slot.as_ref().map(table)).collect(),
        }
    }

    /// The seats of the sequences of a pass, by lineage.
    pub(crate) fn seats(&mut self, lineages: &[u64]) -> Vec<usize> {
        self.seats.of(lineages)
    }

    /// Enters the pages of a sequence up to `closed`, whose keys and values are both codes, into the table of a slot.
    pub(crate) fn enter(
        &mut self,
        seat: usize,
        slot: KvSlot,
        of: &SlotPages,
        sequence: &Sequence,
        closed: usize,
    ) -> Result<(), String> {
        let Some(table) = self.tables.get_mut(slot.index()).and_then(Option::as_mut) else {
            return Err("a slot without a table".to_owned());
        };
        let [of_keys, of_values] = of.units.pages;
        let tokens = of.units.pages.map(|pages| pages * of.units.tokens);
        let [keys, values] = self.seats.entered(seat, slot, sequence, tokens);
        let first = (of_values * values).min(of_keys * keys);
        // Nothing new, as in most steps.
        let heads = if first < closed { of.kv_heads } else { 0 };
        for head in 0..heads {
            let side = |side| sequence.side(slot, head, side).ok_or("a slot holds no pages");
            let (keys, values) = (side(Side::Key)?, side(Side::Value)?);
            // What has left the window is seen by no query.
            for page in first.max(of_keys * keys.dropped()).max(of_values * values.dropped())..closed {
                let missing = || format!("page {page} of layer {} is not held as bytes", of.layer);
                let key = keys.encoded_id(page / of_keys).ok_or_else(missing)?;
                let value = values.encoded_id(page / of_values).ok_or_else(missing)?;
                let [of_key, of_value] = of.closed(head);
                table.table.set(seat, head, page, [unit_as(key, of_key)?, unit_as(value, of_value)?]);
            }
        }
        let entered = closed.max(first);
        self.seats.enter(seat, slot, sequence, [entered / of_keys, entered / of_values]);
        Ok(())
    }

    /// What has changed and where it belongs, with memory for it.
    pub(crate) fn changes(&mut self, card: &Arc<CudaGpu>) -> Result<Vec<(Address, Vec<u8>)>, OpenError> {
        let mut changes = Vec::new();
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
            let at = buffer.address() + (size_of::<PageEntry>() * changed.start) as u64;
            changes.push((at, words.flat_map(|word| word.to_le_bytes()).collect()));
            *device = Some(buffer);
        }
        Ok(changes)
    }

    /// Addresses of all slots' tables, and their strides.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Address, usize)> {
        (0..self.tables.len()).map(|slot| self.table(slot))
    }

    /// Address of a slot's table (seats, kv_heads, stride), and its stride.
    pub(crate) fn table(&self, slot: usize) -> (Address, usize) {
        match self.tables.get(slot) {
            Some(Some(SlotTable { table, device: Some(buffer) })) => (buffer.address(), table.stride()),
            _ => (0, 0),
        }
    }
}
