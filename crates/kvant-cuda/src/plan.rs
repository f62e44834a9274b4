//! The work of attention in one pass: which CTAs read which pages for which queries.
//!
//! A [`StepPlan`] is made by the host once per pass and window, and serves every layer of it. It has [`Item`]s for runs of closed pages
//! and for exact rows, each with what its queries see of it. Neighbouring tokens of a sequence that see the same pages share items, as
//! many as a kernel has columns for, so that a page is read once for all of them.
//!
//! **Invariant:** how the pages of a query are cut depends on its own position, window and cache rule, never on the other queries of the
//! pass or on the card. So its output has the same bits in any batch, in any chunk and on any grid.

#[cfg(test)]
use crate::layout::PAGE_TOKENS;

/// Runs of closed pages that a sequence is cut into at most.
pub const MAX_SPLITS: usize = 32;

/// Partials of a query at most: those runs, a page of exact keys and coded values, and the exact rows. `MAX_PARTS` of the kernels.
pub const MAX_PARTIALS: usize = MAX_SPLITS + 2;

/// Runs of a sequence of latents, whose pages a CTA takes one at a time: `LATENT_PARTS` of the kernels without the exact rows.
pub const MAX_LATENT_SPLITS: usize = 128;

/// Warps of a CTA, which share the pages of a split.
const WARPS: usize = 4;

/// One run of closed pages, or exact rows, and the queries that read them, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// Row of the page table. Below zero: the item is the one page of a row whose keys are exact and whose values are codes, and this is
    /// −1 − row of the table of exact pages.
    pub seat: i32,
    /// First closed page; equal to `end` for the exact rows.
    pub begin: i32,
    /// The page after the last.
    pub end: i32,
    /// Which partial it writes for its first query.
    pub slot: i32,
    /// What the first query sees of it; nothing is hidden where a begin is not positive. Closed pages: how many tokens of the first page
    /// are hidden, and zeros. Exact rows: begin and end among the sinks; begin and end among the rows of the exact pages, counted from
    /// the first of these pages.
    pub seen: [i32; 4],
    /// The first query's row.
    pub row: i32,
    /// Queries. The end among the rows of the exact pages grows by one from query to query.
    pub tokens: i32,
    /// By how much hidden tokens grow from query to query: 1 where a window slides, else 0.
    pub slide: i32,
    /// Partials of a query: from one to the next one's.
    pub stride: i32,
}

impl Item {
    /// The words that the kernels read.
    pub fn words(&self) -> [u32; 12] {
        let Item { seat, begin, end, slot, seen: [a, b, c, d], row, tokens, slide, stride } = *self;
        [seat, begin, end, slot, a, b, c, d, row, tokens, slide, stride].map(|word| word as u32)
    }
}

/// The partials of one query, as the kernels read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// The first.
    pub first: i32,
    /// How many; the last is the exact rows'.
    pub count: i32,
}

/// A query of a pass, by positions alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// Row of the page table that its sequence has.
    pub seat: usize,
    /// Its position.
    pub position: usize,
    /// First tokens that stay exact; pages start after them.
    pub sinks: usize,
    /// Tokens of a page of the tables: of the smaller of keys' and values' pages.
    pub unit: usize,
    /// Pages of so many tokens whose keys and values the query reads as bytes, from the first on (`ExactWindow::encoded_for`).
    pub closed: usize,
    /// Pages of which it reads keys or values as bytes: `closed`, or some more where one of both has larger pages. Exact pages begin here.
    pub values: usize,
    /// The first position it sees (`ExactWindow::first_seen`).
    pub first_seen: usize,
    /// Whether it sees the sinks all the same (`ExactWindow::keeps_sinks`).
    pub keeps_sinks: bool,
}

/// Pages of a split, of a sequence that sees so many closed pages: a multiple of the warps of a CTA. Short splits cost merges, long
/// ones leave a card idle; these were the best of those tried on an H200 from 4k to 128k tokens, alone and in batches.
pub fn split_pages(pages: usize) -> usize {
    let most = pages.div_ceil(WARPS * MAX_SPLITS);
    (2 * WARPS * most).min(8 * WARPS).max(WARPS * most).max(2 * WARPS)
}

/// Pages of a split of latents: one kv head has few CTAs otherwise, and a page keeps one busy for long.
pub fn split_latents(pages: usize) -> usize {
    pages.div_ceil(MAX_LATENT_SPLITS).max(2)
}

impl Decoding {
    /// The first token after the sinks that it sees.
    fn first(&self) -> usize {
        self.first_seen.saturating_sub(self.sinks)
    }

    /// The first page that it sees of those whose values it reads as bytes.
    fn begin(&self) -> usize {
        (self.first() / self.unit).min(self.values)
    }

    /// Its partials: one for each split of the closed pages, one for pages of exact keys and coded values or the other way, one for the exact rows.
    pub fn partials(&self, pages_of: fn(usize) -> usize) -> usize {
        let pages = self.closed.saturating_sub(self.begin());
        1 + pages.div_ceil(pages_of(pages)) + usize::from(self.has_mixed())
    }

    /// Whether it reads a page whose keys are exact and whose values are bytes, or the other way.
    fn has_mixed(&self) -> bool {
        self.begin().max(self.closed) < self.values
    }

    /// What both queries must have in common to share items, seats and positions aside.
    fn view(&self) -> (usize, usize, usize, usize, [usize; 2]) {
        (self.sinks, self.closed, self.values, self.begin(), self.seen_sinks())
    }

    /// The sinks that it sees.
    fn seen_sinks(&self) -> [usize; 2] {
        let end = self.sinks.min(self.position + 1);
        [if self.keeps_sinks { 0 } else { self.first_seen.min(end) }, end]
    }

    /// By how much what is hidden grows from this query to the one `later` after it, where both can share items.
    fn slide(&self, other: &Decoding, later: usize) -> Option<usize> {
        let same =
            (self.seat, self.position + later, self.view()) == (other.seat, other.position, other.view());
        match other.first().checked_sub(self.first()) {
            Some(0) if same => Some(0),
            Some(grown) if same && grown == later => Some(1),
            _ => None,
        }
    }
}

/// The items of a pass, and where their partials lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// Closed pages of all queries, then exact rows of all queries.
    pub items: Vec<Item>,
    /// One per query.
    pub rows: Vec<Slots>,
    /// Partials in all.
    pub slots: usize,
}

impl StepPlan {
    /// Sets out the work of these queries, at most `tile` of them to an item.
    pub fn new(queries: &[Decoding], tile: usize) -> StepPlan {
        StepPlan::split_by(queries, tile, split_pages)
    }

    /// The same with so many pages to a split of so many.
    pub fn split_by(queries: &[Decoding], tile: usize, pages_of: fn(usize) -> usize) -> StepPlan {
        let mut plan = StepPlan::default();
        let mut exact = Vec::with_capacity(queries.len());
        let mut row = 0;
        while let [query, rest @ ..] = &queries[row..] {
            let slide = rest.first().filter(|_| tile > 1).and_then(|next| query.slide(next, 1));
            let alike = |(later, next): &(usize, &Decoding)| query.slide(next, 1 + later) == slide;
            let others = rest.iter().enumerate().take(tile.saturating_sub(1)).take_while(alike).count();
            let tokens = 1 + if slide.is_some() { others } else { 0 };
            let (first, begin, closed) = (query.first() as i32, query.begin(), query.closed);
            let pages = closed.saturating_sub(begin);
            let split = pages_of(pages);
            let stride = query.partials(pages_of);
            let item = |begin: usize, end: usize, slot: usize, seen: [i32; 4]| Item {
                seat: query.seat as i32,
                begin: begin as i32,
                end: end as i32,
                slot: slot as i32,
                seen,
                row: row as i32,
                tokens: tokens as i32,
                slide: slide.unwrap_or(0) as i32,
                stride: stride as i32,
            };
            for (part, page) in (begin..closed).step_by(split).enumerate() {
                let hidden = first - (page * query.unit) as i32;
                plan.items.push(item(page, (page + split).min(closed), plan.slots + part, [hidden, 0, 0, 0]));
            }
            if query.has_mixed() {
                let start = begin.max(closed);
                let hidden = first - (start * query.unit) as i32;
                let own = item(start, query.values, plan.slots + stride - 2, [hidden, 0, 0, 0]);
                plan.items.push(Item { seat: -1 - row as i32, ..own });
            }
            let [sink_begin, sink_end] = query.seen_sinks().map(|n| n as i32);
            let tail = query.values * query.unit;
            let end = (query.position + 1).saturating_sub(query.sinks).saturating_sub(tail);
            let seen = [sink_begin, sink_end, first - tail as i32, end as i32];
            exact.push(item(0, 0, plan.slots + stride - 1, seen));
            for later in 0..tokens {
                let first = (plan.slots + later * stride) as i32;
                plan.rows.push(Slots { first, count: stride as i32 });
            }
            plan.slots += tokens * stride;
            row += tokens;
        }
        plan.items.append(&mut exact);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn splits_are_as_many_as_reduces_have_room_for() {
        for pages in 1..20_000_usize {
            assert!(pages.div_ceil(split_pages(pages)) <= MAX_SPLITS, "{pages}");
            assert!(pages.div_ceil(split_latents(pages)) <= MAX_LATENT_SPLITS, "{pages}");
        }
    }

    /// First position and tokens of a chunk, sinks, recent tokens, window; whether it keeps sinks, and pages of 64 tokens to one of the keys.
    type Chunked = (usize, usize, usize, usize, Option<usize>, (bool, usize));

    /// Chunks of some sequences, a token to a query.
    fn queries() -> impl Strategy<Value = Vec<Decoding>> {
        let sequence = (
            0usize..200_000,
            1usize..100,
            0usize..=32,
            0usize..300,
            prop::option::of(1usize..9000),
            (any::<bool>(), 1usize..=2),
        );
        prop::collection::vec(sequence, 1..4).prop_map(|sequences| {
            let chunk = |(seat, own): (usize, Chunked)| {
                let (start, tokens, sinks, recent, window, (keeps_sinks, halves)) = own;
                let pages = move |position: usize| position.saturating_sub(sinks + recent) / PAGE_TOKENS;
                (start..start + tokens).map(move |position: usize| Decoding {
                    seat,
                    position,
                    sinks,
                    unit: PAGE_TOKENS,
                    closed: pages(position) / halves * halves,
                    values: pages(position),
                    first_seen: window.map_or(0, |window| (position + 1).saturating_sub(window)),
                    keeps_sinks,
                })
            };
            sequences.into_iter().enumerate().flat_map(chunk).collect()
        })
    }

    /// The items of a row, and how many queries after their first it is.
    fn items_of(plan: &StepPlan, row: usize) -> impl Iterator<Item = (&super::Item, i32)> {
        let later = move |item: &&super::Item| (item.row..item.row + item.tokens).contains(&(row as i32));
        plan.items.iter().filter(later).map(move |item| (item, row as i32 - item.row))
    }

    /// Positions that the items of a row make a query read, by the rules of the kernels.
    fn read(plan: &StepPlan, row: usize, query: &Decoding) -> Vec<usize> {
        let (exact, later) =
            items_of(plan, row).find(|(item, _)| item.begin == item.end).expect("exact rows");
        let mut seen: Vec<usize> = (exact.seen[0]..exact.seen[1]).map(|i| i as usize).collect();
        for (item, later) in items_of(plan, row).filter(|(item, _)| item.begin < item.end) {
            let tokens = item.begin as usize * PAGE_TOKENS..item.end as usize * PAGE_TOKENS;
            let hidden = (item.seen[0] + item.slide * later).max(0) as usize;
            seen.extend(tokens.skip(hidden).map(|token| query.sinks + token));
        }
        let tail = query.sinks + query.values * PAGE_TOKENS;
        let begin = (exact.seen[2] + exact.slide * later).max(0);
        seen.extend((begin..exact.seen[3] + later).map(|i| tail + i as usize));
        seen
    }

    proptest! {
        #[test]
        fn every_position_in_view_is_read_once(queries in queries(), tile in 1usize..17) {
            let plan = StepPlan::new(&queries, tile);
            for (row, query) in queries.iter().enumerate() {
                let Decoding { position, sinks, first_seen, keeps_sinks, .. } = *query;
                let sees = |p: &usize| *p >= first_seen || (keeps_sinks && *p < sinks);
                let want: Vec<usize> = (0..=position).filter(sees).collect();
                prop_assert_eq!(read(&plan, row, query), want);
            }
        }

        #[test]
        fn every_item_has_its_own_partials_and_some_token(queries in queries(), tile in 1usize..17) {
            let plan = StepPlan::new(&queries, tile);
            let own = |item: &super::Item| (0..item.tokens).map(|i| item.slot + i * item.stride).collect::<Vec<_>>();
            let mut slots: Vec<i32> = plan.items.iter().flat_map(own).collect();
            slots.sort_unstable();
            prop_assert_eq!(slots, (0..plan.slots as i32).collect::<Vec<_>>());
            for (row, slots) in plan.rows.iter().enumerate() {
                prop_assert!(slots.count as usize <= MAX_SPLITS + 2);
                for (i, (item, later)) in items_of(&plan, row).enumerate() {
                    prop_assert!(item.tokens as usize <= tile);
                    prop_assert_eq!(item.slot + later * item.stride, slots.first + i as i32);
                    let is_mixed = item.begin as usize >= queries[row].closed && item.begin < item.end;
                    let seat = if is_mixed { -1 - item.row } else { queries[row].seat as i32 };
                    prop_assert_eq!(item.seat, seat);
                    // The kernels count on a token in view in every page of an item.
                    let hidden = item.seen[0] + item.slide * later;
                    prop_assert!(item.begin == item.end || hidden < PAGE_TOKENS as i32);
                }
            }
        }

        #[test]
        fn a_query_is_cut_the_same_in_any_batch_and_chunk(queries in queries(), tile in 1usize..17) {
            let plan = StepPlan::new(&queries, tile);
            for (row, query) in queries.iter().enumerate() {
                let alone = StepPlan::new(std::slice::from_ref(query), 1);
                let shape = |plan: &StepPlan, row: usize| {
                    let first = plan.rows[row].first;
                    let own = items_of(plan, row);
                    own.map(|(item, later)| (item.begin, item.end, item.slot + later * item.stride - first)).collect::<Vec<_>>()
                };
                prop_assert_eq!(shape(&plan, row), shape(&alone, 0));
            }
        }
    }

    #[test]
    fn tokens_of_a_page_share_items() {
        let query = |position| Decoding {
            seat: 3,
            position,
            sinks: 4,
            unit: PAGE_TOKENS,
            closed: (position - 4) / 64,
            values: (position - 4) / 64,
            first_seen: 0,
            keeps_sinks: false,
        };
        let queries: Vec<Decoding> = (1000..1064).map(query).collect();
        let plan = StepPlan::new(&queries, 4);
        // 28 tokens are left of the page of the first, and the pages before it are cut into two runs.
        assert_eq!(plan.items.len(), (28 / 4 + 36 / 4) * 3);
        assert!(plan.items.iter().all(|item| item.tokens == 4 && item.slide == 0));
    }
}
