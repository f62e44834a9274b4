//! The work of one decode step: which CTAs read which pages.
//!
//! A [`StepPlan`] is made by the host once per step and window, and serves every layer of it. It has an [`Item`] for every run of
//! closed pages and one for the exact rows of a sequence, and a [`View`] that says what its query sees.
//!
//! **Invariant:** how a sequence is cut depends on its own position, window and cache rule, never on the other sequences of the step
//! or on the card. So its output has the same bits in any batch and on any grid.

use crate::layout::PAGE_TOKENS;

/// Runs of closed pages that a sequence is cut into at most; with the exact rows that is `MAX_PARTS` of the kernels.
pub const MAX_SPLITS: usize = 32;

/// Sequences shorter than this many pages per split are cut into splits of four: one page for every warp.
const WARPS: usize = 4;

/// One run of pages, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Row of the page tables and of the queries.
    pub row: i32,
    /// First closed page; equal to `end` for the exact rows.
    pub begin: i32,
    /// The page after the last.
    pub end: i32,
    /// Which partial it writes.
    pub slot: i32,
}

/// What the query of one sequence sees, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The first token after the sinks that is seen.
    pub first: i32,
    /// Rows of the sinks that are seen.
    pub sink_begin: i32,
    /// Their end.
    pub sink_end: i32,
    /// Rows of the exact pages that are seen, counted from the first of these pages.
    pub tail_begin: i32,
    /// Their end.
    pub tail_end: i32,
    /// The sequence's first partial.
    pub first_slot: i32,
    /// How many it has; the last is the exact rows'.
    pub slots: i32,
    /// For alignment.
    pub unused: i32,
}

/// A sequence of a step, by positions alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// Position of its query.
    pub position: usize,
    /// First tokens that stay exact; pages start after them.
    pub sinks: usize,
    /// Pages that the query reads as bytes, from the first on (`Visibility::encoded_for`). Exact pages begin here.
    pub closed: usize,
    /// The first position it sees (`Visibility::first_seen`).
    pub first_seen: usize,
    /// Whether it sees the sinks all the same (`Visibility::keeps_sinks`).
    pub keeps_sinks: bool,
}

/// Pages of a split, of a sequence that sees so many closed pages: a multiple of the warps of a CTA.
pub fn split_pages(pages: usize) -> usize {
    WARPS * pages.div_ceil(WARPS * MAX_SPLITS).max(1)
}

/// The items and views of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Closed pages of all sequences, then exact rows of all sequences.
    pub items: Vec<Item>,
    /// One per sequence.
    pub views: Vec<View>,
    /// Partials in all.
    pub slots: usize,
}

impl StepPlan {
    /// Sets out the work of these sequences; row i of the tables is sequence i's.
    pub fn new(sequences: &[Decoding]) -> StepPlan {
        let mut plan = StepPlan::default();
        let mut exact = Vec::with_capacity(sequences.len());
        for (row, sequence) in sequences.iter().enumerate() {
            let Decoding { position, sinks, closed, first_seen, keeps_sinks } = *sequence;
            let first = first_seen.saturating_sub(sinks);
            let begin = (first / PAGE_TOKENS).min(closed);
            let split = split_pages(closed - begin);
            let (tail, end) = (closed * PAGE_TOKENS, (position + 1).saturating_sub(sinks));
            let first_slot = plan.slots;
            for page in (begin..closed).step_by(split) {
                let end = (page + split).min(closed);
                plan.items.push(Item {
                    row: row as i32,
                    begin: page as i32,
                    end: end as i32,
                    slot: plan.slots as i32,
                });
                plan.slots += 1;
            }
            exact.push(Item { row: row as i32, begin: 0, end: 0, slot: plan.slots as i32 });
            plan.slots += 1;
            let sink_end = sinks.min(position + 1);
            plan.views.push(View {
                first: first as i32,
                sink_begin: if keeps_sinks { 0 } else { first_seen.min(sink_end) as i32 },
                sink_end: sink_end as i32,
                tail_begin: first.saturating_sub(tail) as i32,
                tail_end: end.saturating_sub(tail) as i32,
                first_slot: first_slot as i32,
                slots: (plan.slots - first_slot) as i32,
                unused: 0,
            });
        }
        plan.items.append(&mut exact);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sequence() -> impl Strategy<Value = Decoding> {
        (0usize..200_000, 0usize..=32, 0usize..300, prop::option::of(1usize..9000), any::<bool>()).prop_map(
            |(position, sinks, recent, window, keeps_sinks)| Decoding {
                position,
                sinks,
                closed: position.saturating_sub(sinks + recent) / PAGE_TOKENS,
                first_seen: window.map_or(0, |window| (position + 1).saturating_sub(window)),
                keeps_sinks,
            },
        )
    }

    /// Positions that the items of a row make a query read, by the rules of the kernels.
    fn read(plan: &StepPlan, row: usize, sequence: &Decoding) -> Vec<usize> {
        let view = plan.views[row];
        let mut seen: Vec<usize> = (view.sink_begin..view.sink_end).map(|i| i as usize).collect();
        for item in plan.items.iter().filter(|item| item.row as usize == row && item.begin < item.end) {
            let tokens = item.begin as usize * PAGE_TOKENS..item.end as usize * PAGE_TOKENS;
            seen.extend(
                tokens.filter(|token| *token >= view.first as usize).map(|token| sequence.sinks + token),
            );
        }
        let tail = sequence.sinks + sequence.closed * PAGE_TOKENS;
        seen.extend((view.tail_begin..view.tail_end).map(|i| tail + i as usize));
        seen
    }

    proptest! {
        #[test]
        fn every_position_in_view_is_read_once(sequences in prop::collection::vec(sequence(), 1..6)) {
            let plan = StepPlan::new(&sequences);
            for (row, sequence) in sequences.iter().enumerate() {
                let Decoding { position, sinks, first_seen, keeps_sinks, .. } = *sequence;
                let sees = |p: &usize| *p >= first_seen || (keeps_sinks && *p < sinks);
                let want: Vec<usize> = (0..=position).filter(sees).collect();
                prop_assert_eq!(read(&plan, row, sequence), want);
            }
        }

        #[test]
        fn every_item_has_its_own_partial_and_some_token(sequences in prop::collection::vec(sequence(), 1..6)) {
            let plan = StepPlan::new(&sequences);
            let mut slots: Vec<i32> = plan.items.iter().map(|item| item.slot).collect();
            slots.sort_unstable();
            prop_assert_eq!(slots, (0..plan.slots as i32).collect::<Vec<_>>());
            for (row, view) in plan.views.iter().enumerate() {
                prop_assert!(view.slots as usize <= MAX_SPLITS + 1);
                let own = plan.items.iter().filter(|item| item.row as usize == row);
                for (i, item) in own.enumerate() {
                    prop_assert_eq!(item.slot, view.first_slot + i as i32);
                    // The kernels count on a token in view in every page of an item.
                    prop_assert!(item.begin == item.end || view.first < (item.begin + 1) * PAGE_TOKENS as i32);
                }
            }
        }

        #[test]
        fn a_sequence_is_cut_the_same_in_any_batch(sequences in prop::collection::vec(sequence(), 2..6)) {
            let plan = StepPlan::new(&sequences);
            for (row, sequence) in sequences.iter().enumerate() {
                let alone = StepPlan::new(std::slice::from_ref(sequence));
                let shape = |plan: &StepPlan, row: usize| {
                    let first = plan.views[row].first_slot;
                    let own = plan.items.iter().filter(|item| item.row as usize == row);
                    own.map(|item| (item.begin, item.end, item.slot - first)).collect::<Vec<_>>()
                };
                prop_assert_eq!(shape(&plan, row), shape(&alone, 0));
            }
        }
    }
}
