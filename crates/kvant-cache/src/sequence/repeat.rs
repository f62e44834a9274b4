//! Long contexts that are made up, to measure speed on.

use super::{Contents, Sequence, each_side};
use crate::error::CacheError;
use crate::reader::Reader;
use crate::side::{Noted, PageWork, Rows};
use crate::store::{PageId, PageStore, Store};
use std::sync::Arc;

/// Tokens at a time in host memory: so many exact rows are held beside the pages.
const HOST_CHUNK: usize = 256;

/// The same on a device, whose rows are not read.
const DEVICE_CHUNK: usize = 1024;

impl Sequence {
    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context to
    /// measure speed on, without reading one. Recurrent state stays what it is.
    ///
    /// On a device whole pages are copies of those that are held, in turns, and exact rows after them are zeros.
    ///
    /// # Errors
    /// When nothing is held, or memory is full.
    pub fn repeat(&mut self, len: usize) -> Result<(), CacheError> {
        if self.len == 0 && len > 0 {
            return Err(CacheError::Nothing);
        }
        match self.memory.clone() {
            Store::Host(_) | Store::Split(_) => self.repeat_rows(len),
            Store::Device(store) => self.repeat_pages(len, &*store),
        }
    }

    fn repeat_rows(&mut self, len: usize) -> Result<(), CacheError> {
        let period = self.len;
        let (layout, memory) = (Arc::clone(&self.layout), self.memory.clone());
        while self.len < len {
            let (at, count) = (self.len, HOST_CHUNK.min(len - self.len));
            for (slot, slot_layout) in self.slots.iter_mut().zip(layout.slots()) {
                match slot {
                    Contents::Pages(paged) => {
                        let memory = memory.of_layer(slot_layout.layer());
                        each_side(slot_layout, at, &mut paged.sides, true, |_, store| {
                            let dim = store.codecs().codec().dim();
                            let mut rows = vec![0.0; count * dim]; // (tokens, dim)
                            let mut reader = Reader::new(store, layout.exact_window());
                            for (i, row) in rows.chunks_exact_mut(dim).enumerate() {
                                reader.row((at + i) % period, row)?;
                            }
                            store.append(
                                layout.exact_window(),
                                at,
                                count,
                                &mut Rows { numbers: &rows, stride: dim, count },
                                memory,
                            )
                        })?;
                        paged.len += count;
                    }
                    Contents::View => {}
                    Contents::Recurrent(state) => state.skip_to(at + count)?,
                }
            }
            self.advance(count)?;
        }
        Ok(())
    }

    fn repeat_pages(&mut self, len: usize, store: &dyn PageStore) -> Result<(), CacheError> {
        let (layout, memory) = (Arc::clone(&self.layout), self.memory.clone());
        let sinks = layout.exact_window().sinks;
        // Pages of every side that there are now, and which of them the next new one is a copy of.
        let mut sources: Vec<(Vec<PageId>, usize)> = Vec::new();
        for slot in &self.slots {
            let Contents::Pages(paged) = slot else { continue };
            let source = |side: &crate::SideStore| {
                // Where exact pages are what is kept, the one that is open stays and has its turn.
                let codecs = side.codecs();
                let is_open = !self.len.saturating_sub(sinks).is_multiple_of(codecs.page_tokens());
                let pages = (0..).map_while(|page| side.encoded_id(page)).collect();
                (pages, usize::from(codecs.is_exact() && is_open))
            };
            sources.extend(paged.sides.iter().map(source));
        }
        while self.len < len {
            let (at, count) = (self.len, DEVICE_CHUNK.min(len - self.len));
            let (mut copies, mut own) = (Vec::new(), sources.iter_mut());
            for (slot, slot_layout) in self.slots.iter_mut().zip(layout.slots()) {
                match slot {
                    Contents::Pages(paged) => {
                        let per_head = slot_layout.sides_per_head();
                        for (index, side) in paged.sides.iter_mut().enumerate() {
                            let (is_exact, codec) = (side.codecs().is_exact(), side.codecs().codec());
                            let (bytes, place) = (codec.page_bytes(), (index / per_head, codec.side()));
                            let Some((pages, next)) = own.next() else { continue };
                            let mut note = |work| {
                                // Exact pages are what is kept, or are forgotten once they are encoded.
                                let to = match work {
                                    PageWork::Encode { page, .. } if !is_exact => page,
                                    PageWork::Exact { page, first: 0, .. } if is_exact => page,
                                    PageWork::Encode { .. }
                                    | PageWork::Exact { .. }
                                    | PageWork::Sinks { .. } => return,
                                };
                                if let Some(from) = pages.get(*next % pages.len().max(1)) {
                                    copies.push((*from, to, bytes));
                                    *next += 1;
                                }
                            };
                            let mut noted = Noted { sinks: sinks.saturating_sub(at), note: &mut note };
                            side.append(layout.exact_window(), at, count, &mut noted, &memory)
                                .map_err(|fault| fault.at(slot_layout.layer(), place, at))?;
                        }
                        paged.len += count;
                    }
                    Contents::View => {}
                    Contents::Recurrent(state) => state.skip_to(at + count)?,
                }
            }
            // After all pages are taken: a store clears those that nothing is copied to at once.
            copies.iter().for_each(|(from, to, bytes)| store.copy(*from, *to, *bytes));
            self.advance(count)?;
        }
        Ok(())
    }
}
