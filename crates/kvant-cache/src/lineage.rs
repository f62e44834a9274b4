//! Which sequence this is, and how far it has gone back: what a device asks that keeps tables of a sequence's pages.
//!
//! A sequence that only grows holds the pages it held, and some more. One that goes back gives up those from some position on, and
//! whoever knows its pages has to learn the later ones anew, not all of them: after three tokens of 131,072 that is one page of 2,048.

use std::sync::atomic::{AtomicU64, Ordering};

/// Cuts that are told apart; older ones count as the lowest of them.
const CUTS: usize = 32;

/// The history of a sequence's length.
#[derive(Debug)]
pub(crate) struct Lineage {
    id: u64,
    /// Cuts so far.
    count: u64,
    /// Number of a cut and the tokens it left, both rising: a cut makes those that left more before it irrelevant.
    cuts: Vec<(u64, usize)>,
}

impl Lineage {
    /// One that no sequence has had.
    pub(crate) fn new() -> Lineage {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Lineage { id: NEXT.fetch_add(1, Ordering::Relaxed), count: 0, cuts: Vec::new() }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Notes that `len` tokens were left.
    pub(crate) fn cut(&mut self, len: usize) {
        self.count += 1;
        while self.cuts.pop_if(|(_, left)| *left >= len).is_some() {}
        self.cuts.push((self.count, len));
        if self.cuts.len() > CUTS {
            // The second oldest takes the oldest one's length, which is lower.
            let (_, lowest) = self.cuts.remove(0);
            self.cuts[0].1 = lowest;
        }
    }

    pub(crate) fn cuts(&self) -> u64 {
        self.count
    }

    /// The tokens that every cut after number `cut` left; `None` where there was none.
    pub(crate) fn kept_since(&self, cut: u64) -> Option<usize> {
        let later = self.cuts.partition_point(|(number, _)| *number <= cut);
        self.cuts.get(later).map(|(_, left)| *left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_kept_is_never_more_than_any_cut_left(lens in prop::collection::vec(0usize..40, 0..120)) {
            let mut lineage = Lineage::new();
            for (done, len) in lens.iter().enumerate() {
                prop_assert_eq!(lineage.cuts(), done as u64);
                lineage.cut(*len);
                for since in 0..=done {
                    let least = lens[since..=done].iter().min().copied();
                    let kept = lineage.kept_since(since as u64);
                    prop_assert!(kept <= least, "since {}: {:?} of {:?}", since, kept, least);
                    // Exact for those that followed closely.
                    prop_assert!(kept == least || done - since >= CUTS);
                }
                prop_assert_eq!(lineage.kept_since(done as u64 + 1), None);
            }
        }
    }
}
