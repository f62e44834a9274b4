//! What a sequence takes.

use super::{Contents, Sequence};
use crate::arena::ArenaError;
use crate::store::Store;

/// What a sequence takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Bytes of encoded pages, shared ones included.
    pub encoded: usize,
    /// Bytes of sinks, exact pages and tails.
    pub exact: usize,
    /// Bytes of recurrent state and its rows.
    pub recurrent: usize,
    /// Bytes of recurrent state at earlier positions, kept for prefix hits.
    pub checkpoints: usize,
    /// Bytes of what is stored: encoded pages, and exact rows without the room kept for more.
    pub stored: usize,
    /// Bytes that the same numbers would take with 16 bits each: what `stored` is compared with.
    pub f16: usize,
    /// Bits per value of the encoded pages, scales and all; 0 while there are none.
    pub bits_per_value: f64,
    /// Bits per value over everything held, exact rows included; 0 for an empty sequence.
    pub bits_total: f64,
}

impl Footprint {
    /// All bytes of memory.
    pub fn bytes(&self) -> usize {
        self.encoded + self.exact + self.recurrent + self.checkpoints
    }
}

impl Sequence {
    /// Refuses more tokens than there is memory for, before any is taken.
    pub(super) fn check_room(&self, tokens: usize) -> Result<(), ArenaError> {
        // Slots are in the order of layers, so those of one place stand together.
        let mut asked: Vec<(&Store, usize)> = Vec::new();
        for (slot, layout) in self.slots.iter().zip(self.layout.slots()) {
            let place = self.memory.of_layer(layout.layer());
            let bytes = slot.sides().iter().fold(0_usize, |bytes, side| {
                bytes.saturating_add(side.bytes_to_reserve(self.layout.exact_window(), self.len, tokens))
            });
            match asked.last_mut().filter(|(last, _)| std::ptr::eq(*last, place)) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => asked.push((place, bytes)),
            }
        }
        asked.into_iter().try_for_each(|(place, bytes)| place.check_room(bytes))
    }

    /// What it takes now.
    pub fn footprint(&self) -> Footprint {
        let (mut sum, mut page_bits, mut page_values, mut bits, mut values) =
            (Footprint::default(), 0.0, 0.0, 0.0, 0.0);
        sum.checkpoints = self.checkpoints.bytes();
        for slot in &self.slots {
            let len = match slot {
                Contents::Pages(paged) => paged.len,
                Contents::View => 0,
                Contents::Recurrent(state) => {
                    sum.recurrent += state.bytes();
                    0
                }
            };
            for side in slot.sides() {
                let (encoded, exact) = side.bytes();
                sum.encoded += encoded;
                sum.exact += exact;
                let codec = side.codecs().codec();
                let pages = side.pages().len();
                let paged = (pages * codec.page_tokens() * codec.dim()) as f64;
                let stored = 8.0 * (pages * codec.page_bytes()) as f64;
                let rows = (side.exact_rows(self.layout.exact_window(), len) * codec.dim()) as f64;
                page_bits += stored;
                sum.stored += pages * codec.page_bytes();
                sum.stored += rows as usize * side.codecs().exact().element().bytes();
                page_values += paged;
                bits += stored + 8.0 * rows * side.codecs().exact().element().bytes() as f64;
                values += paged + rows;
            }
        }
        let ratio = |bits: f64, values: f64| if values > 0.0 { bits / values } else { 0.0 };
        sum.f16 = 2 * values as usize;
        Footprint { bits_per_value: ratio(page_bits, page_values), bits_total: ratio(bits, values), ..sum }
    }

    /// Bytes of the slots of keys and values: what checkpoints of recurrent state may take as well.
    pub(super) fn kv_bytes(&self) -> usize {
        let sides = self.slots.iter().flat_map(Contents::sides).map(|side| side.bytes());
        sides.map(|(encoded, exact)| encoded + exact).sum()
    }
}
