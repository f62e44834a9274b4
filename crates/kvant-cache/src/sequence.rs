//! One sequence: what every kv head of every layer holds, and how it grows, forks and goes back.

use crate::arena::{Arena, ArenaError};
use crate::error::CacheError;
use crate::layout::CacheLayout;
use crate::page::Page;
use crate::reader::Reader;
use crate::side::{Contents, Fault, Rows, SideStore};
use kvant_codec::Side;
use std::sync::{Arc, Mutex, PoisonError};

/// Tokens of a chunk from which on its heads are worth sharing between threads.
const WORTH_SHARING: usize = 16;

/// The cache of one sequence.
///
/// A pass over a chunk of n tokens is: for every entry one [`append`](Sequence::append) and any number of attentions;
/// then one [`advance`](Sequence::advance). Exact rows of the chunk are kept until then, because its own queries read
/// them.
pub struct Sequence {
    layout: Arc<CacheLayout>,
    arena: Arena,
    len: usize,
    entries: Vec<Entry>,
}

struct Entry {
    /// Tokens appended: those held and those of the pass.
    len: usize,
    /// (kv heads, keys and values).
    sides: Vec<SideStore>,
}

impl Entry {
    fn copy(
        &self,
        len: usize,
        side: impl Fn(&SideStore) -> Result<SideStore, ArenaError>,
    ) -> Result<Entry, ArenaError> {
        Ok(Entry { len, sides: self.sides.iter().map(side).collect::<Result<_, _>>()? })
    }
}

/// What a sequence takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Bytes of encoded pages, shared ones included.
    pub encoded: usize,
    /// Bytes of sinks, exact pages and tails.
    pub exact: usize,
    /// Bytes of what is stored: encoded pages, and exact rows without the room kept for more.
    pub stored: usize,
    /// Bits per value of the encoded pages, scales and all; 0 while there are none.
    pub bits_per_value: f64,
    /// Bits per value over everything held, exact rows included; 0 for an empty sequence.
    pub bits_total: f64,
}

impl Footprint {
    /// All bytes of memory.
    pub fn bytes(&self) -> usize {
        self.encoded + self.exact
    }
}

impl Sequence {
    /// An empty sequence whose pages come from `arena`.
    pub fn new(layout: Arc<CacheLayout>, arena: Arena) -> Sequence {
        let entries = layout
            .entries()
            .iter()
            .map(|entry| {
                let sides = entry.heads().iter().flat_map(|head| [&head.key, &head.value]);
                Entry { len: 0, sides: sides.map(|codecs| SideStore::new(Arc::clone(codecs))).collect() }
            })
            .collect();
        Sequence { layout, arena, len: 0, entries }
    }

    /// Its layout.
    pub fn layout(&self) -> &Arc<CacheLayout> {
        &self.layout
    }

    /// Where its pages come from.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Tokens held; those of an unfinished pass do not count.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens of an entry, those of an unfinished pass included.
    pub fn entry_len(&self, entry: usize) -> usize {
        self.entries.get(entry).map_or(0, |entry| entry.len)
    }

    /// What one side of one kv head holds.
    pub fn side(&self, entry: usize, head: usize, side: Side) -> Option<&SideStore> {
        self.entries.get(entry)?.sides.get(2 * head + usize::from(side == Side::Value))
    }

    /// Takes the memory that `tokens` more will need, so that appending them cannot fail for lack of it.
    ///
    /// # Errors
    /// When the arena has no more memory.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), ArenaError> {
        for entry in &mut self.entries {
            for side in &mut entry.sides {
                side.reserve(self.layout.rule(), self.len, tokens, &self.arena)?;
            }
        }
        Ok(())
    }

    /// Takes a chunk's keys, (tokens, kv heads, key_dim), and values, (tokens, kv heads, value_dim), and encodes every
    /// page that is due.
    ///
    /// # Errors
    /// When sizes do not fit, a number cannot be stored or memory is full. The chunk is then in part appended:
    /// [`truncate`](Sequence::truncate) to [`len`](Sequence::len) undoes it.
    pub fn append(&mut self, entry: usize, keys: &[f32], values: &[f32]) -> Result<(), CacheError> {
        let count = self.entries.len();
        let missing = CacheError::Entry { entry, count };
        let (Some(held), Some(layout)) = (self.entries.get_mut(entry), self.layout.entries().get(entry))
        else {
            return Err(missing);
        };
        let shape = layout.shape();
        let (key_width, value_width) = (shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim);
        let tokens = keys.len().checked_div(key_width).unwrap_or(0);
        if tokens * key_width != keys.len() {
            return Err(CacheError::Size { what: "keys", got: keys.len(), width: key_width });
        }
        if tokens * value_width != values.len() {
            return Err(CacheError::Size { what: "values", got: values.len(), width: value_width });
        }
        let at = held.len;
        held.len += tokens;
        let (rule, arena) = (self.layout.rule(), &self.arena);
        each_side(entry, at, &mut held.sides, tokens >= WORTH_SHARING, |head, side, store| {
            let (numbers, stride) = match side {
                Side::Key => (&keys[(head * shape.key_dim).min(keys.len())..], key_width),
                Side::Value => (&values[(head * shape.value_dim).min(values.len())..], value_width),
            };
            store.append(rule, at, Rows { numbers, stride, count: tokens }, arena)
        })
    }

    /// Ends a pass: its tokens now count as held, and what no later query reads is forgotten.
    pub fn advance(&mut self, tokens: usize) {
        self.len += tokens;
        for (entry, layout) in self.entries.iter_mut().zip(self.layout.entries()) {
            for side in &mut entry.sides {
                side.settle(self.layout.rule(), entry.len, layout.shape().window);
            }
        }
    }

    /// Goes back to at most `len` tokens and returns how many are left. Where it is less than `len`, the tokens from there
    /// on must be read again: the exact rows of a page are gone once it is encoded. After that, every bit is as if the
    /// sequence had never been longer.
    ///
    /// # Errors
    /// When the arena has no page left to copy a shared tail to.
    pub fn truncate(&mut self, len: usize) -> Result<usize, ArenaError> {
        let rule = *self.layout.rule();
        let target = self.restorable(len);
        for entry in self.entries.iter_mut().filter(|entry| entry.len > target) {
            for side in &mut entry.sides {
                side.cut(&rule, target)?;
            }
            entry.len = target;
        }
        self.len = target;
        Ok(target)
    }

    /// The largest length up to `len` that it can be cut to: what [`truncate`](Sequence::truncate) would leave.
    pub fn restorable(&self, len: usize) -> usize {
        let rule = self.layout.rule();
        let mut target = len.min(self.len);
        loop {
            let before = target;
            for (entry, layout) in self.entries.iter().zip(self.layout.entries()) {
                for side in &entry.sides {
                    if entry.len > target {
                        target = side.restorable(rule, target, layout.shape().window);
                    }
                }
            }
            if target == before {
                return target;
            }
        }
    }

    /// Another sequence with the first `len` tokens, or fewer: as a [`fork`](Sequence::fork) that is
    /// [truncated](Sequence::truncate). At the end of a page it takes no memory.
    ///
    /// # Errors
    /// When the arena has no more memory.
    pub fn prefix(&self, len: usize) -> Result<Sequence, ArenaError> {
        let (rule, len) = (self.layout.rule(), self.restorable(len));
        self.copy(len, |entry| {
            entry.copy(len, |side| if entry.len > len { side.prefix(rule, len) } else { side.fork() })
        })
    }

    /// Another sequence with the same tokens. Full pages and sinks are shared; only tails are copied.
    ///
    /// # Errors
    /// When the arena has no more memory.
    pub fn fork(&self) -> Result<Sequence, ArenaError> {
        self.copy(self.len, |entry| entry.copy(entry.len, SideStore::fork))
    }

    fn copy(
        &self,
        len: usize,
        entry: impl Fn(&Entry) -> Result<Entry, ArenaError>,
    ) -> Result<Sequence, ArenaError> {
        let entries = self.entries.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Sequence { layout: Arc::clone(&self.layout), arena: self.arena.clone(), len, entries })
    }

    /// Pages that other sequences may share.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &Page> {
        self.entries.iter().flat_map(|entry| entry.sides.iter().flat_map(SideStore::shared))
    }

    /// The same tokens under another layout, page by page: from f16 to any spec, and between specs. What an encoded page
    /// has lost stays lost; from f16 the result is what that spec would have kept from the start.
    ///
    /// # Errors
    /// When the layouts differ in shape, memory is full or a number cannot be stored.
    pub fn convert(&self, layout: Arc<CacheLayout>, arena: Arena) -> Result<Sequence, CacheError> {
        crate::convert::convert(self, layout, arena)
    }

    /// What it takes now.
    pub fn footprint(&self) -> Footprint {
        let (mut sum, mut page_bits, mut page_values, mut bits, mut values) =
            (Footprint::default(), 0.0, 0.0, 0.0, 0.0);
        for entry in &self.entries {
            for side in &entry.sides {
                let (encoded, exact) = side.bytes();
                sum.encoded += encoded;
                sum.exact += exact;
                let codec = side.codecs().codec();
                let pages = side.pages().len();
                let paged = (pages * codec.page_tokens() * codec.dim()) as f64;
                let stored = 8.0 * (pages * codec.page_bytes()) as f64;
                let rows = (side.exact_rows(self.layout.rule(), entry.len) * codec.dim()) as f64;
                page_bits += stored;
                sum.stored += pages * codec.page_bytes();
                sum.stored += rows as usize * side.codecs().exact().element().bytes();
                page_values += paged;
                bits += stored + 8.0 * rows * side.codecs().exact().element().bytes() as f64;
                values += paged + rows;
            }
        }
        let ratio = |bits: f64, values: f64| if values > 0.0 { bits / values } else { 0.0 };
        Footprint { bits_per_value: ratio(page_bits, page_values), bits_total: ratio(bits, values), ..sum }
    }

    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context to
    /// measure speed on, without reading one.
    ///
    /// # Errors
    /// When nothing is held, or memory is full.
    pub fn repeat(&mut self, len: usize) -> Result<(), CacheError> {
        /// Tokens at a time: so many exact rows are held beside the pages.
        const CHUNK: usize = 256;
        let period = self.len;
        if period == 0 && len > 0 {
            return Err(CacheError::Nothing);
        }
        let (layout, arena) = (Arc::clone(&self.layout), self.arena.clone());
        while self.len < len {
            let (at, count) = (self.len, CHUNK.min(len - self.len));
            for (index, entry) in self.entries.iter_mut().enumerate() {
                each_side(index, at, &mut entry.sides, true, |_, _, store| {
                    let dim = store.codecs().codec().dim();
                    let mut rows = vec![0.0; count * dim]; // (tokens, dim)
                    let mut reader = Reader::new(store, layout.rule());
                    for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
                        reader.row((at + i) % period, row)?;
                    }
                    store.append(layout.rule(), at, Rows { numbers: &rows, stride: dim, count }, &arena)
                })?;
                entry.len += count;
            }
            self.advance(count);
        }
        Ok(())
    }

    /// Takes out what the sides of an entry hold.
    pub(crate) fn take_sides(&mut self, entry: usize) -> Vec<Contents> {
        self.entries[entry].sides.iter_mut().map(SideStore::take).collect()
    }

    pub(crate) fn sides_mut(&mut self, entry: usize) -> &mut [SideStore] {
        &mut self.entries[entry].sides
    }

    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len;
        for entry in &mut self.entries {
            entry.len = len;
        }
    }
}

/// Runs work on every side of an entry, `(kv head, side, store)`, and names the place of what went wrong first.
pub(crate) fn each_side(
    entry: usize,
    at: usize,
    sides: &mut [SideStore],
    shared: bool,
    work: impl Fn(usize, Side, &mut SideStore) -> Result<(), Fault> + Sync,
) -> Result<(), CacheError> {
    let place = |index: usize| (index / 2, if index.is_multiple_of(2) { Side::Key } else { Side::Value });
    let named = |index: usize, fault: Fault| {
        let (head, side) = place(index);
        match fault {
            Fault::Memory(error) => CacheError::Memory(error),
            Fault::Codec(source) => CacheError::Codec { entry, head, side, source },
            Fault::Number { row, value } => {
                CacheError::Number { entry, head, side, position: at + row, value }
            }
        }
    };
    if !shared {
        return sides.iter_mut().enumerate().try_for_each(|(index, store)| {
            let (head, side) = place(index);
            work(head, side, store).map_err(|fault| named(index, fault))
        });
    }
    let first: Mutex<Option<(usize, Fault)>> = Mutex::new(None);
    kvant_threads::for_each_chunk(sides, 1, |index, stores| {
        let (head, side) = place(index);
        for store in stores {
            if let Err(fault) = work(head, side, store) {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|(other, _)| index < *other) {
                    *first = Some((index, fault));
                }
            }
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((index, fault)) => Err(named(index, fault)),
        None => Ok(()),
    }
}
