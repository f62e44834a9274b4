//! Long contexts that are made up, to measure speed on.

use super::{Contents, Sequence, each_side};
use crate::error::CacheError;
use crate::reader::Reader;
use crate::side::Rows;
use std::sync::Arc;

impl Sequence {
    /// Repeats what is held, from the beginning, until it is `len` tokens, each at its own address: a long context to
    /// measure speed on, without reading one. Recurrent state stays what it is.
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
        let (layout, memory) = (Arc::clone(&self.layout), self.memory.clone());
        while self.len < len {
            let (at, count) = (self.len, CHUNK.min(len - self.len));
            for (slot, slot_layout) in self.slots.iter_mut().zip(layout.slots()) {
                match slot {
                    Contents::Pages(paged) => {
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
                                &memory,
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
}
