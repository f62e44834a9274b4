//! Page tables: the host's copy of what kernels read, and which part of it has to be sent again.

use std::ops::Range;

/// Where the halves of a page lie, in units of the page memory: (keys, values).
pub type PageEntry = [u32; 2];

/// A table `(rows, kv_heads, stride)` of one slot. It grows in rows and pages; growing moves entries, so the stride is part of what a
/// launch is given.
#[derive(Clone, Debug)]
pub struct PageTable {
    kv_heads: usize,
    rows: usize,
    stride: usize,
    entries: Vec<PageEntry>,
    /// Entries that changed since they were last sent.
    changed: Range<usize>,
}

impl PageTable {
    /// A table without rows.
    pub fn new(kv_heads: usize) -> PageTable {
        PageTable { kv_heads, rows: 0, stride: 0, entries: Vec::new(), changed: 0..0 }
    }

    /// Pages that a row has room for.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// All entries, as the kernels read them.
    pub fn entries(&self) -> &[PageEntry] {
        &self.entries
    }

    /// Says where a page of a row's kv head lies.
    ///
    /// # Panics
    /// When there is no such kv head.
    pub fn set(&mut self, row: usize, head: usize, page: usize, entry: PageEntry) {
        assert!(head < self.kv_heads, "kv head {head} of {}", self.kv_heads);
        self.reserve(row + 1, page + 1);
        let at = (row * self.kv_heads + head) * self.stride + page;
        if self.entries[at] != entry {
            self.entries[at] = entry;
            self.changed = match self.changed.is_empty() {
                true => at..at + 1,
                false => self.changed.start.min(at)..self.changed.end.max(at + 1),
            };
        }
    }

    /// Entries to send since the last call, from the first that changed to the last. All of them after the table has grown.
    pub fn take_changed(&mut self) -> Range<usize> {
        std::mem::take(&mut self.changed)
    }

    fn reserve(&mut self, rows: usize, pages: usize) {
        if rows <= self.rows && pages <= self.stride {
            return;
        }
        let stride = if pages > self.stride { pages.next_power_of_two() } else { self.stride };
        // Powers of two, so that the table stays where it is for most sequences that come.
        let rows = if rows > self.rows { rows.next_power_of_two() } else { self.rows };
        let mut entries = vec![[0; 2]; rows * self.kv_heads * stride];
        if self.stride > 0 {
            for (new, old) in entries.chunks_exact_mut(stride).zip(self.entries.chunks_exact(self.stride)) {
                new[..self.stride].copy_from_slice(old);
            }
        }
        self.changed = 0..entries.len();
        (self.rows, self.stride, self.entries) = (rows, stride, entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn a_device_that_gets_the_changes_has_the_table(
            steps in prop::collection::vec((0usize..5, 0usize..3, 0usize..40, any::<u32>(), any::<bool>()), 1..120)
        ) {
            let mut table = PageTable::new(3);
            let (mut device, mut truth) = (Vec::new(), HashMap::new());
            for (row, head, page, unit, send) in steps {
                let entry = [unit, !unit];
                table.set(row, head, page, entry);
                truth.insert((row, head, page), entry);
                if send {
                    device.resize(table.entries().len(), [0; 2]);
                    let changed = table.take_changed();
                    device[changed.clone()].copy_from_slice(&table.entries()[changed]);
                    prop_assert_eq!(&device[..], table.entries());
                    prop_assert!(table.take_changed().is_empty());
                }
            }
            for ((row, head, page), entry) in truth {
                prop_assert_eq!(table.entries()[(row * 3 + head) * table.stride() + page], entry);
            }
        }
    }
}
