//! The work of one decode step: which CTAs read which pages.
//!
//! A [`StepPlan`] is made by the host once per step and window, and serves every layer of it. It has an [`Item`] for every run of
//! closed pages and one for the exact rows of a sequence, each with what the sequence's query sees of it.
//!
//! **Invariant:** how a sequence is cut depends on its own position, window and cache rule, never on the other sequences of the step
//! or on the card. So its output has the same bits in any batch and on any grid.

use crate::layout::PAGE_TOKENS;

/// Runs of closed pages that a sequence is cut into at most; with the exact rows that is `MAX_PARTS` of the kernels.
pub const MAX_SPLITS: usize = 32;

/// Warps of a CTA, which share the pages of a split.
const WARPS: usize = 4;

/// One run of closed pages of a sequence, or its exact rows, as the kernels read it.
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
    /// What is seen of it. Closed pages: how many tokens of the first page are hidden, and zeros. Exact rows: begin and end among
    /// the sinks; begin and end among the rows of the exact pages, counted from the first of these pages.
    pub seen: [i32; 4],
}

/// The partials of one sequence, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The first.
    pub first: i32,
    /// How many; the last is the exact rows'.
    pub count: i32,
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

/// Pages of a split, of a sequence that sees so many closed pages: a multiple of the warps of a CTA. Short splits cost merges, long
/// ones leave a card idle; these were the best of those tried on an H200 from 4k to 128k tokens, alone and in batches.
pub fn split_pages(pages: usize) -> usize {
    let most = pages.div_ceil(WARPS * MAX_SPLITS);
    (2 * WARPS * most).min(8 * WARPS).max(WARPS * most).max(2 * WARPS)
}

/// The items of a step, and where their partials lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Closed pages of all sequences, then exact rows of all sequences.
    pub items: Vec<Item>,
    /// One per sequence.
    pub rows: Vec<Slots>,
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
            let item = |begin: usize, end: usize, slot: usize, seen: [usize; 4]| Item {
                row: row as i32,
                begin: begin as i32,
                end: end as i32,
                slot: slot as i32,
                seen: seen.map(|n| n as i32),
            };
            for page in (begin..closed).step_by(split) {
                let hidden = first.saturating_sub(page * PAGE_TOKENS);
                plan.items.push(item(page, (page + split).min(closed), plan.slots, [hidden, 0, 0, 0]));
                plan.slots += 1;
            }
            let sink_end = sinks.min(position + 1);
            let sink_begin = if keeps_sinks { 0 } else { first_seen.min(sink_end) };
            let seen = [sink_begin, sink_end, first.saturating_sub(tail), end.saturating_sub(tail)];
            exact.push(item(0, 0, plan.slots, seen));
            plan.slots += 1;
            plan.rows.push(Slots { first: first_slot as i32, count: (plan.slots - first_slot) as i32 });
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
        let own = || plan.items.iter().filter(move |item| item.row as usize == row);
        let exact = own().find(|item| item.begin == item.end).expect("every sequence has exact rows").seen;
        let mut seen: Vec<usize> = (exact[0]..exact[1]).map(|i| i as usize).collect();
        for item in own().filter(|item| item.begin < item.end) {
            let tokens = item.begin as usize * PAGE_TOKENS..item.end as usize * PAGE_TOKENS;
            seen.extend(tokens.skip(item.seen[0] as usize).map(|token| sequence.sinks + token));
        }
        let tail = sequence.sinks + sequence.closed * PAGE_TOKENS;
        seen.extend((exact[2]..exact[3]).map(|i| tail + i as usize));
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
            for (row, slots) in plan.rows.iter().enumerate() {
                prop_assert!(slots.count as usize <= MAX_SPLITS + 1);
                let own = plan.items.iter().filter(|item| item.row as usize == row);
                for (i, item) in own.enumerate() {
                    prop_assert_eq!(item.slot, slots.first + i as i32);
                    // The kernels count on a token in view in every page of an item.
                    prop_assert!(item.begin == item.end || item.seen[0] < PAGE_TOKENS as i32);
                }
            }
        }

        #[test]
        fn a_sequence_is_cut_the_same_in_any_batch(sequences in prop::collection::vec(sequence(), 2..6)) {
            let plan = StepPlan::new(&sequences);
            for (row, sequence) in sequences.iter().enumerate() {
                let alone = StepPlan::new(std::slice::from_ref(sequence));
                let shape = |plan: &StepPlan, row: usize| {
                    let first = plan.rows[row].first;
                    let own = plan.items.iter().filter(|item| item.row as usize == row);
                    own.map(|item| (item.begin, item.end, item.slot - first)).collect::<Vec<_>>()
                };
                prop_assert_eq!(shape(&plan, row), shape(&alone, 0));
            }
        }
    }
}
