//! What lies in the folder, in memory: made from the files when it is opened, and kept up to date.

use crate::snapshot::{Digest, Numerics, Quality};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

/// A file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// What comes before it; none for a file that cannot be used.
    pub part: Option<Known>,
    pub bytes: u64,
    /// When it was last on the way to something wanted, in nanoseconds since 1970.
    pub used: u64,
    /// The file does not say so yet.
    pub is_stale: bool,
}

/// What a file that can be used holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Known {
    pub before: Digest,
    /// Tokens up to its end.
    pub end: usize,
    pub quality: Quality,
    /// How its numbers were computed, if it says so.
    pub numerics: Option<Numerics>,
}

#[derive(Default)]
pub(super) struct Index {
    entries: HashMap<Digest, Entry>,
    bytes: u64,
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When anything was last used.
    pub(super) fn last_used(&self) -> u64 {
        self.entries.values().map(|entry| entry.used).max().unwrap_or(0)
    }

    /// What is known of all files that can be used.
    pub(super) fn parts(&self) -> impl Iterator<Item = Known> {
        self.entries.values().filter_map(|entry| entry.part)
    }

    /// Whether a file was there when it was last looked for, of use or not.
    pub(super) fn has(&self, name: &Digest) -> bool {
        self.entries.contains_key(name)
    }

    /// Forgets files that are not among these.
    pub(super) fn retain(&mut self, names: &HashSet<Digest>) {
        self.entries.retain(|name, _| names.contains(name));
        self.bytes = self.entries.values().map(|entry| entry.bytes).sum();
    }

    /// What is known of a file that can be used.
    pub(super) fn part(&self, name: &Digest) -> Option<Known> {
        self.entries.get(name)?.part
    }

    pub(super) fn insert(&mut self, name: Digest, entry: Entry) {
        self.bytes += entry.bytes;
        if let Some(old) = self.entries.insert(name, entry) {
            self.bytes -= old.bytes;
        }
    }

    pub(super) fn remove(&mut self, name: &Digest) {
        self.bytes -= self.entries.remove(name).map_or(0, |entry| entry.bytes);
    }

    /// Does not use this file any more. It stays where it is until it is replaced, or the oldest.
    pub(super) fn distrust(&mut self, name: &Digest) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.part = None;
        }
    }

    pub(super) fn touch(&mut self, name: &Digest, now: u64) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.is_stale |= entry.used < now;
            entry.used = entry.used.max(now);
        }
    }

    /// Counts the use of a prefix as one of everything before it: files are written from the first on, and without the
    /// first the others are of no use.
    pub(super) fn settle(&mut self) {
        let mut parts: Vec<(usize, Digest, Digest, u64)> = self
            .entries
            .iter()
            .filter_map(|(name, entry)| entry.part.map(|part| (part.end, *name, part.before, entry.used)))
            .collect();
        parts.sort_unstable_by_key(|(end, ..)| Reverse(*end));
        for (_, name, before, _) in parts {
            let used = self.entries.get(&name).map_or(0, |entry| entry.used);
            self.touch(&before, used);
        }
    }

    /// Which files must go for `bytes` more to stay within `limit`: the least recently used, of one use the longest prefix
    /// first. None if that is not to be had without those used at `now` or later.
    pub(super) fn victims(&self, bytes: u64, limit: u64, now: u64) -> Option<Vec<Digest>> {
        let mut excess = (self.bytes + bytes).saturating_sub(limit);
        if excess == 0 {
            return Some(Vec::new());
        }
        let mut old: Vec<(u64, Reverse<usize>, &Digest, u64)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.used < now)
            .map(|(name, entry)| {
                (entry.used, Reverse(entry.part.map_or(0, |part| part.end)), name, entry.bytes)
            })
            .collect();
        old.sort_unstable();
        let mut victims = Vec::new();
        for (.., name, freed) in old {
            victims.push(*name);
            excess = excess.saturating_sub(freed);
            if excess == 0 {
                return Some(victims);
            }
        }
        None
    }

    /// Files that do not say when they were used last, and when that was.
    pub(super) fn take_stale(&mut self) -> Vec<(Digest, u64)> {
        let stale = |(name, entry): (&Digest, &mut Entry)| {
            std::mem::take(&mut entry.is_stale).then_some((*name, entry.used))
        };
        self.entries.iter_mut().filter_map(stale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(entries: &[(u8, u8, usize, u64)]) -> Index {
        let mut index = Index::default();
        for &(name, before, end, used) in entries {
            let part = Some(Known { before: [before; 32], end, quality: Quality::BEST, numerics: None });
            index.insert([name; 32], Entry { part, bytes: 10, used, is_stale: false });
        }
        index
    }

    #[test]
    fn the_least_recently_used_goes_first_and_beginnings_last() {
        // 1 → 2 → 3, written in that order, and 1 → 4, older.
        let mut index = index(&[(1, 0, 1, 10), (2, 1, 2, 20), (3, 2, 3, 30), (4, 1, 2, 15)]);
        index.settle();
        let victims = |bytes: u64, now: u64| {
            let victims = index.victims(bytes, 40, now)?;
            Some(victims.into_iter().map(|name| name[0]).collect::<Vec<_>>())
        };
        assert_eq!((index.bytes(), victims(0, 99)), (40, Some(vec![])));
        assert_eq!(victims(40, 99), Some(vec![4, 3, 2, 1]));
        assert_eq!((victims(11, 99), victims(10, 30)), (Some(vec![4, 3]), Some(vec![4])));
        assert_eq!((victims(11, 30), victims(41, 99)), (None, None));
    }

    #[test]
    fn what_is_replaced_counts_once_and_what_is_distrusted_still_takes_room() {
        let mut index = index(&[(1, 0, 1, 10)]);
        index.insert([1; 32], Entry { part: None, bytes: 4, used: 11, is_stale: false });
        assert_eq!((index.len(), index.bytes()), (1, 4));
        index.touch(&[1; 32], 12);
        assert_eq!((index.take_stale(), index.take_stale()), (vec![([1; 32], 12)], vec![]));
        index.distrust(&[1; 32]);
        assert_eq!((index.part(&[1; 32]), index.bytes()), (None, 4));
        index.remove(&[1; 32]);
        assert_eq!((index.len(), index.bytes()), (0, 0));
    }
}
