//! What is held, and which goes first.

use crate::entry::Name;
use std::collections::{HashMap, HashSet};

/// An entry, by the name of its first key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The names of its blocks, in order.
    pub names: Vec<Name>,
    pub bytes: u64,
    /// When it was last wanted, in nanoseconds since 1970.
    pub used: u64,
    /// The file does not say so yet.
    pub is_stale: bool,
    /// It was looked at, and is of no use: it counts, and goes when it is the oldest.
    pub is_useless: bool,
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name of its entry.
    pub entry: Name,
    /// Its place there.
    pub place: usize,
}

/// All entries.
#[derive(Default)]
pub struct Index {
    entries: HashMap<Name, Known>,
    blocks: HashMap<Name, Found>,
    bytes: u64,
    clock: u64,
}

impl Index {
    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Later than ever before, and at least `now`.
    pub fn tick(&mut self, now: u64) -> u64 {
        self.clock = now.max(self.clock + 1);
        self.clock
    }

    /// Where a block lies.
    pub fn find(&self, name: &Name) -> Option<Found> {
        self.blocks.get(name).copied()
    }

    /// Whether an entry is known by this name, of use or not.
    pub fn has(&self, entry: &Name) -> bool {
        self.entries.contains_key(entry)
    }

    /// Adds an entry, or replaces it.
    pub fn insert(&mut self, entry: Name, known: Known) {
        self.remove(&entry);
        self.clock = self.clock.max(known.used);
        self.bytes += known.bytes;
        if !known.is_useless {
            for (place, name) in known.names.iter().enumerate() {
                self.blocks.insert(*name, Found { entry, place });
            }
        }
        self.entries.insert(entry, known);
    }

    /// Forgets an entry; its names if it was there.
    pub fn remove(&mut self, entry: &Name) -> Option<Known> {
        let known = self.entries.remove(entry)?;
        self.bytes -= known.bytes;
        self.blocks.retain_not(&known.names, entry);
        Some(known)
    }

    /// Counts as a use.
    pub fn touch(&mut self, entry: &Name, now: u64) {
        if let Some(known) = self.entries.get_mut(entry) {
            known.is_stale |= known.used < now;
            known.used = known.used.max(now);
        }
    }

    /// Forgets entries that are not among these.
    pub fn retain(&mut self, there: &HashSet<Name>) {
        let gone: Vec<Name> = self.entries.keys().filter(|entry| !there.contains(*entry)).copied().collect();
        for entry in gone {
            self.remove(&entry);
        }
    }

    /// Which entries must go for `bytes` more to stay within `limit`: the least recently used first.
    pub fn victims(&self, bytes: u64, limit: u64) -> Vec<Name> {
        let mut excess = (self.bytes + bytes).saturating_sub(limit);
        if excess == 0 {
            return Vec::new();
        }
        let mut old: Vec<_> =
            self.entries.iter().map(|(entry, known)| (known.used, *entry, known.bytes)).collect();
        old.sort_unstable();
        let mut victims = Vec::new();
        for (_, entry, freed) in old {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(freed);
            victims.push(entry);
        }
        victims
    }

    /// Files that do not say when they were used last, and when that was.
    pub fn take_stale(&mut self) -> Vec<(Name, u64)> {
        let stale = |(entry, known): (&Name, &mut Known)| {
            std::mem::take(&mut known.is_stale).then_some((*entry, known.used))
        };
        self.entries.iter_mut().filter_map(stale).collect()
    }
}

/// Forgetting the blocks of one entry.
trait RetainNot {
    fn retain_not(&mut self, names: &[Name], entry: &Name);
}

impl RetainNot for HashMap<Name, Found> {
    fn retain_not(&mut self, names: &[Name], entry: &Name) {
        for name in names {
            // A later entry may hold the block by now.
            if self.get(name).is_some_and(|found| found.entry == *entry) {
                self.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(names: &[u8], bytes: u64, used: u64) -> Known {
        let names = names.iter().map(|name| [*name; 32]).collect();
        Known { names, bytes, used, is_stale: false, is_useless: false }
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let mut index = Index::default();
        for (name, used) in [(1, 30), (2, 10), (3, 20)] {
            index.insert([name; 32], known(&[name], 10, used));
        }
        assert_eq!((index.len(), index.bytes()), (3, 30));
        assert_eq!(index.victims(0, 30), Vec::<Name>::new());
        assert_eq!(index.victims(1, 30), vec![[2; 32]]);
        index.touch(&[2; 32], 40);
        assert_eq!(index.victims(15, 30), vec![[3; 32], [1; 32]]);
        assert_eq!((index.take_stale(), index.take_stale()), (vec![([2; 32], 40)], vec![]));
        assert_eq!((index.tick(5), index.tick(90)), (31, 90));
    }

    #[test]
    fn a_block_that_two_entries_hold_is_found_in_the_later_one() {
        let mut index = Index::default();
        index.insert([1; 32], known(&[1, 2], 10, 1));
        index.insert([2; 32], known(&[2, 3], 10, 2));
        assert_eq!(index.find(&[2; 32]), Some(Found { entry: [2; 32], place: 0 }));
        index.remove(&[1; 32]);
        assert_eq!((index.find(&[1; 32]), index.find(&[2; 32]).is_some()), (None, true));
        index.insert([4; 32], Known { is_useless: true, ..known(&[4], 10, 3) });
        assert_eq!((index.find(&[4; 32]), index.bytes()), (None, 20));
    }
}
