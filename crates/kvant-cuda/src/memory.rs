//! Which half page lies where in the page memory: the host's book, without a byte of the memory itself.
//!
//! The memory is one range of addresses, cut into *granules* of 2 MiB, the least that a driver maps. A granule belongs to one size of
//! half pages at a time, so that a free place fits whoever needs one; a granule without live pages can change its size. Granules are
//! used from the lowest on, so the driver maps the first `mapped()` bytes.

use crate::layout::UNIT;
use std::collections::BTreeMap;

/// Units in a granule.
const GRANULE: u32 = (2 << 20) / UNIT as u32;

/// The page memory of a card.
#[derive(Clone, Debug)]
pub struct PageMemory {
    /// Granules that may ever be used.
    cap: u32,
    granules: Vec<Granule>,
    /// Granules with a free place, by size in units.
    open: BTreeMap<u32, Vec<u32>>,
    /// Bytes of live pages.
    live: usize,
}

/// What a granule holds.
#[derive(Clone, Debug)]
struct Granule {
    /// Of its pages, in units.
    size: u32,
    /// Free places, highest first.
    free: Vec<u32>,
}

impl Granule {
    /// Pages that it holds: one where it is a part of a page of several granules.
    fn places(size: u32) -> u32 {
        (GRANULE / size).max(1)
    }

    fn new(size: u32) -> Granule {
        Granule { size, free: (0..Granule::places(size)).rev().collect() }
    }

    fn is_unused(&self) -> bool {
        self.free.len() == Granule::places(self.size) as usize
    }
}

impl PageMemory {
    /// A memory of at most `cap` bytes, rounded down to granules, and to what 32 bits can name.
    pub fn new(cap: usize) -> PageMemory {
        let most = u32::MAX / GRANULE;
        let cap = u32::try_from(cap / UNIT / GRANULE as usize).unwrap_or(most).min(most);
        PageMemory { cap, granules: Vec::new(), open: BTreeMap::new(), live: 0 }
    }

    /// Bytes of live pages.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes from the memory's start that have to be mapped.
    pub fn mapped(&self) -> usize {
        self.granules.len() * GRANULE as usize * UNIT
    }

    /// A place for a half page of so many bytes, as a number of units from the memory's start; `None` when the memory is full, or
    /// the page is empty. Pages that do not fit into a granule take several side by side.
    pub fn take(&mut self, bytes: usize) -> Option<u32> {
        let size = size_of_page(bytes)?;
        if size > GRANULE {
            return self.take_several(size, bytes);
        }
        let granule = match self.open.get(&size).and_then(|open| open.last()) {
            Some(granule) => *granule,
            None => self.granule(size)?,
        };
        let own = &mut self.granules[granule as usize];
        let place = own.free.pop()?;
        if own.free.is_empty() {
            self.open.get_mut(&size)?.pop();
        }
        self.live += bytes;
        Some(granule * GRANULE + place * size)
    }

    /// A page of several granules side by side: new ones at the end, or some that others have left.
    fn take_several(&mut self, size: u32, bytes: usize) -> Option<u32> {
        let (count, most) = (size.div_ceil(GRANULE) as usize, self.cap as usize);
        let mut run = 0;
        let left = self.granules.iter().position(|granule| {
            run = if granule.is_unused() { run + 1 } else { 0 };
            run == count
        });
        let first = match left {
            Some(last) => last + 1 - count,
            None if self.granules.len() + count <= most => self.granules.len(),
            None => return None,
        };
        for index in first..first + count {
            let own = Granule { size, free: Vec::new() };
            match self.granules.get_mut(index) {
                Some(granule) => {
                    let old = std::mem::replace(granule, own);
                    if let Some(open) = self.open.get_mut(&old.size) {
                        open.retain(|granule| *granule as usize != index);
                    }
                }
                None => self.granules.push(own),
            }
        }
        self.live += bytes;
        Some(first as u32 * GRANULE)
    }

    /// A granule of that size without a page: a new one, or one that another size has left.
    fn granule(&mut self, size: u32) -> Option<u32> {
        let count = self.granules.len() as u32;
        let granule = if count < self.cap {
            self.granules.push(Granule::new(size));
            count
        } else {
            let unused = self.granules.iter().position(Granule::is_unused)? as u32;
            let old = std::mem::replace(&mut self.granules[unused as usize], Granule::new(size));
            self.open.get_mut(&old.size)?.retain(|granule| *granule != unused);
            unused
        };
        self.open.entry(size).or_default().push(granule);
        Some(granule)
    }

    /// Gives a place back that was taken for as many bytes.
    ///
    /// # Panics
    /// When no such page is live: the book would be wrong from then on.
    pub fn give_back(&mut self, unit: u32, bytes: usize) {
        let (granule, size) = (unit / GRANULE, size_of_page(bytes));
        if let Some(size) = size.filter(|size| *size > GRANULE) {
            let all = granule as usize..(granule + size.div_ceil(GRANULE)) as usize;
            let is_live = |own: &Granule| own.size == size && own.free.is_empty();
            let known = self.granules.get(all.clone()).is_some_and(|own| own.iter().all(is_live));
            assert!(known && unit.is_multiple_of(GRANULE), "no page of {bytes} bytes is live at unit {unit}");
            // Each becomes a granule of the largest size that is one page, for whoever needs one.
            for index in all {
                self.granules[index] = Granule::new(GRANULE);
                self.open.entry(GRANULE).or_default().push(index as u32);
            }
            self.live -= bytes;
            return;
        }
        let own = &mut self.granules[granule as usize];
        let place = (unit % GRANULE) / own.size;
        let known = Some(own.size) == size && (unit % GRANULE).is_multiple_of(own.size);
        assert!(known && !own.free.contains(&place), "no page of {bytes} bytes is live at unit {unit}");
        if own.free.is_empty() {
            self.open.entry(own.size).or_default().push(granule);
        }
        own.free.push(place);
        self.live -= bytes;
    }
}

fn size_of_page(bytes: usize) -> Option<u32> {
    let size = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
    (size > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZES: [usize; 4] = [2304, 4608, 8192, 16384];

    proptest! {
        /// Steps: which size is taken, or which live page is given back.
        #[test]
        fn live_pages_never_overlap_and_stay_in_what_is_mapped(steps in prop::collection::vec((any::<bool>(), 0usize..5, any::<prop::sample::Index>()), 1..400)) {
            let mut memory = PageMemory::new(3 << 21);
            let mut live: Vec<(u32, usize)> = Vec::new();
            for (take, size, which) in steps {
                if take || live.is_empty() {
                    // Few to a granule, so that the memory fills, and one that takes two.
                    let bytes = SIZES.get(size).map_or(3 << 20, |bytes| bytes * 16);
                    if let Some(unit) = memory.take(bytes) {
                        let (begin, end) = (unit as usize * UNIT, unit as usize * UNIT + bytes);
                        let apart = |(other, len): &(u32, usize)| end <= *other as usize * UNIT || *other as usize * UNIT + len <= begin;
                        prop_assert!(live.iter().all(apart));
                        prop_assert!(end <= memory.mapped() && memory.mapped() <= 3 << 21);
                        live.push((unit, bytes));
                    }
                } else {
                    let (unit, bytes) = live.swap_remove(which.index(live.len()));
                    memory.give_back(unit, bytes);
                }
                prop_assert_eq!(memory.live(), live.iter().map(|(_, bytes)| bytes).sum::<usize>());
            }
            // What is given back can be had again, in any size.
            for (unit, bytes) in live.drain(..) {
                memory.give_back(unit, bytes);
            }
            for bytes in SIZES {
                let all: Vec<u32> = std::iter::from_fn(|| memory.take(bytes)).collect();
                prop_assert_eq!(all.len(), 3 * ((2 << 20) / bytes));
                all.into_iter().for_each(|unit| memory.give_back(unit, bytes));
            }
        }
    }

    #[test]
    fn odd_sizes_and_a_full_memory_are_refused() {
        let mut memory = PageMemory::new(2 << 20);
        assert_eq!((memory.take(0), memory.take(4 << 20)), (None, None));
        assert_eq!(memory.take(2 << 20), Some(0));
        assert_eq!(memory.take(64), None);
    }

    #[test]
    #[should_panic(expected = "no page of 4608 bytes is live")]
    fn giving_back_twice_is_a_fault() {
        let mut memory = PageMemory::new(2 << 20);
        let unit = memory.take(4608).unwrap();
        memory.give_back(unit, 4608);
        memory.give_back(unit, 4608);
    }
}
