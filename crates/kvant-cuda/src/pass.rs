//! What a pass needs besides activations, set out by the host before the first kernel: ids, rotations, where rows are written, which
//! pages a query reads. All of it is one list of words that is sent once.
//!
//! Every token is a row. Rows attend in slices of [`ATTENDING`] with a [`StepPlan`] of their own, so that the partial sums of a long chunk
//! have a bound.

use crate::cache::{LayoutPages, SlotPages};
use crate::jobs::JobsPlan;
use crate::latent::ByHead;
use crate::layout::UNIT;
use crate::pages::unit_as;
use crate::plan::{Decoding, Item, MAX_PARTIALS, StepPlan, split_latents, split_pages};
use crate::program::Reading;
use crate::units::Units;
use kvant_cache::{ExactWindow, KvSlot, Mode, PageId, Sequence};
use kvant_codec::Side;
use kvant_device::{Span, rotations};
use kvant_model::description::{QueryGain, Rope};
use std::collections::HashMap;
use std::ops::Range;

/// Rows whose logits are made at once: as many as streams that a card serves well, for a step of one slice is one graph.
pub(crate) const SLICE: usize = 64;

/// Rows that attend at once, so that their partial sums have a bound.
const ATTENDING: usize = 128;

/// The same where they attend by tiles of a prompt: as many as have no more partial sums than three times [`ATTENDING`] rows of any length, at most so
/// many, and slices of one size. Each slice ends with processors that wait for the last tile.
const ATTENDING_BY_TILES: usize = 1024;

/// Words that sections of the list start at a multiple of.
const ALIGN: usize = 64;

/// Words for kernels.
#[derive(Default)]
pub(crate) struct PassParams(pub(crate) Vec<u32>);

impl PassParams {
    /// The same memory without a word in it.
    pub(crate) fn emptied(mut self) -> PassParams {
        self.0.clear();
        self
    }

    /// Begins a section and says how many bytes after the beginning it is.
    pub(crate) fn begin(&mut self) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(ALIGN), 0);
        4 * self.0.len() as u64
    }

    /// Adds words and says how many bytes after the beginning they are.
    pub(crate) fn add(&mut self, words: impl IntoIterator<Item = u32>) -> u64 {
        let at = self.begin();
        self.0.extend(words);
        at
    }

    /// Sections that grow a little from step to step leave room, so that those after them stay where they are.
    fn add_with_room(&mut self, words: impl IntoIterator<Item = u32>) -> u64 {
        let at = self.add(words);
        let len = self.0.len() - at as usize / 4;
        self.0.resize(at as usize / 4 + len.next_power_of_two(), 0);
        at
    }

    /// The words as cards read them: a chunk of a prompt has megabytes of them, so they are not copied.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        const { assert!(cfg!(target_endian = "little"), "cards are little-endian") };
        // SAFETY: words are plain memory of four bytes each, and any byte is one.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), 4 * self.0.len()) }
    }
}

/// What the pages of a pass, and the kernels for them, are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds {
    /// Whether neighbouring query tokens may share items.
    pub tiles: bool,
    /// Whether some of them have kernels for tiles of a prompt.
    pub wide_tiles: bool,
    /// How their tables cut positions.
    pub units: Units,
}

/// What slices of rows have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tiling {
    pub window: Option<usize>,
    /// Query tokens that share a tile of columns.
    pub tile: usize,
    /// Those that share a tile of a prompt; 0 where there are no kernels for it.
    pub wide_tile: usize,
    /// Whether they read latents.
    pub latents: bool,
}

/// The plan of one slice of rows under one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlicePlan {
    pub row: usize,
    pub rows: usize,
    pub items_at: u64,
    pub items: usize,
    /// Of these, runs of closed pages: the first ones.
    pub closed: usize,
    /// The same runs for tiles of a prompt; none where queries are too few to fill them.
    pub tiles_at: u64,
    pub tiles: usize,
    pub slots_at: u64,
    pub slots: usize,
}

/// What is written to the pages of a slot, and where its exact pages are listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotPlan {
    pub exact_at: u64,
    pub jobs: JobsPlan,
    /// Tokens of the pages of the jobs, in strict mode.
    pub tokens_at: u64,
}

/// A pass.
#[derive(PartialEq)]
pub(crate) struct PassPlan {
    pub rows: usize,
    pub ids_at: u64,
    /// Ids of the table of inputs of all layers, and positions, of models that have them.
    pub layer_ids_at: u64,
    pub positions_at: u64,
    pub wanted_at: u64,
    /// Row of the exact tables, exact page, token of it, by row.
    pub targets_at: u64,
    /// By rope.
    pub rotations_at: HashMap<usize, u64>,
    pub slices: HashMap<Tiling, Vec<SlicePlan>>,
    /// By slot.
    pub slots: HashMap<usize, SlotPlan>,
    /// By number of heads.
    pub by_head: HashMap<usize, ByHead>,
    /// Multipliers of queries, by row.
    pub gains: Vec<(QueryGain, u64)>,
    pub exact_stride: usize,
    /// The one sequence of a pass of many tokens.
    pub only: Option<OnlySequence>,
    /// Whether every sequence brings one token: then no page that is closed in this pass is read as bytes in it.
    pub is_step: bool,
    /// Whether neighbouring query tokens share items.
    pub tiles: bool,
    /// Whether they may share tiles of a prompt.
    pub wide_tiles: bool,
}

/// The sequence of a pass that has no other, and more than a token of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OnlySequence {
    pub seat: usize,
    /// Units whose both sides its last query reads as bytes.
    pub closed: usize,
    rule: ExactWindow,
    start: usize,
}

impl OnlySequence {
    fn of(rule: &ExactWindow, units: Units, spans: &[Span]) -> Option<OnlySequence> {
        let [span] = spans else { return None };
        let only = OnlySequence {
            seat: span.seat,
            closed: units.both(rule, span.last()),
            rule: *rule,
            start: span.start,
        };
        Some(only).filter(|_| span.tokens > 1)
    }

    /// The first token after the sinks that its first query sees.
    pub(crate) fn first_seen(&self, window: Option<usize>) -> usize {
        self.rule.first_seen(self.start, window).saturating_sub(self.rule.sinks)
    }
}

/// What queries read exactly and as bytes on the card. In strict mode a query reads its own page exactly too, after what its codes stand for
/// has been put there.
pub(crate) fn reading(rule: &ExactWindow) -> ExactWindow {
    match rule.mode {
        Mode::Deployed => *rule,
        Mode::Strict => ExactWindow { mode: Mode::Deployed, recent: 0, ..*rule },
    }
}

/// The units whose keys and values the query at `position` both reads exactly, after the sinks.
fn exact_pages(rule: &ExactWindow, units: Units, position: usize) -> Range<usize> {
    let closed = units.either(rule, position);
    match position.checked_sub(rule.sinks) {
        Some(after) => closed..(after / units.tokens + 1).max(closed),
        None => closed..closed,
    }
}

impl PassPlan {
    /// What positions alone decide.
    pub(crate) fn new(
        words: &mut PassParams,
        rule: &ExactWindow,
        spans: &[Span],
        attentions: impl Iterator<Item = Reading>,
        ropes: &[Rope],
        Kinds { tiles, wide_tiles, units }: Kinds,
    ) -> PassPlan {
        let is_step = spans.iter().all(|span| span.tokens == 1);
        let positions: Vec<usize> = spans.iter().flat_map(Span::positions).collect();
        let stride = positions.iter().map(|position| exact_pages(rule, units, *position).len()).max();
        let target = |(row, position): (usize, &usize)| match position.checked_sub(rule.sinks) {
            None => [row, 0, *position, 0],
            Some(after) => {
                let first = exact_pages(rule, units, *position).start;
                [row, 1 + after / units.tokens - first, after % units.tokens, 0]
            }
        };
        let targets = positions.iter().enumerate().flat_map(target).map(|word| word as u32);
        let targets_at = words.add(targets);
        let of_rows: Vec<usize> =
            spans.iter().flat_map(|span| std::iter::repeat_n(span.seat, span.tokens)).collect();
        let mut plan = PassPlan {
            rows: positions.len(),
            ids_at: 0,
            layer_ids_at: 0,
            positions_at: 0,
            wanted_at: 0,
            targets_at,
            rotations_at: HashMap::new(),
            slices: HashMap::new(),
            slots: HashMap::new(),
            by_head: HashMap::new(),
            gains: Vec::new(),
            exact_stride: units.most() + stride.unwrap_or(0),
            only: OnlySequence::of(rule, units, spans),
            is_step,
            tiles: tiles && !is_step,
            wide_tiles: wide_tiles && tiles && !is_step,
        };
        for of in attentions {
            if let Some(rope) = of.rope {
                plan.rotations_at.entry(rope.0).or_insert_with(|| rope_table(words, &ropes[rope.0], spans));
            }
            if of.by_head {
                plan.by_head.entry(of.heads).or_insert_with(|| ByHead::new(words, positions.len(), of.heads));
            }
            if let Some(gain) = of.gain.filter(|gain| plan.gains_at(*gain).is_none()) {
                let gains = positions.iter().map(|position| (gain.at(*position) as f32).to_bits());
                plan.gains.push((gain, words.add(gains)));
            }
            let key = plan.tiling(&of);
            let slices = || slices(words, rule, units, key, &positions, &of_rows);
            plan.slices.entry(key).or_insert_with(slices);
        }
        plan
    }

    /// What the slices of an attention are found by.
    pub(crate) fn tiling(&self, of: &Reading) -> Tiling {
        let (tile, wide_tile) =
            (if self.tiles { of.tile } else { 1 }, if self.wide_tiles { of.wide_tile } else { 0 });
        Tiling { window: of.window, tile, wide_tile, latents: of.latents }
    }

    /// Where the multipliers of queries lie.
    pub(crate) fn gains_at(&self, gain: QueryGain) -> Option<u64> {
        self.gains.iter().find(|(own, _)| *own == gain).map(|(_, at)| *at)
    }
}

/// Cosine and sine of every row and pair, with the rope's amplitude.
fn rope_table(words: &mut PassParams, rope: &Rope, spans: &[Span]) -> u64 {
    let amplitude = f64::from(rope.amplitude());
    let rotations = rotations(rope, spans.iter().map(|span| (span.positions(), span.capacity)));
    words.add(
        rotations.into_iter().flat_map(|(sin, cos)| [cos, sin].map(|x| ((amplitude * x) as f32).to_bits())),
    )
}

/// The plans of rows at these positions, [`ATTENDING`] to a slice, or more of them by tiles of a prompt.
pub(crate) fn slices(
    words: &mut PassParams,
    rule: &ExactWindow,
    units: Units,
    Tiling { window, tile, wide_tile, latents }: Tiling,
    positions: &[usize],
    seats: &[usize],
) -> Vec<SlicePlan> {
    let decoding = |(position, seat): (&usize, &usize)| Decoding {
        seat: *seat,
        position: *position,
        sinks: rule.sinks,
        unit: units.tokens,
        closed: units.both(rule, *position),
        values: units.either(rule, *position),
        first_seen: rule.first_seen(*position, window),
        keeps_sinks: rule.keeps_sinks(window),
    };
    let queries: Vec<Decoding> = positions.iter().zip(seats).map(decoding).collect();
    let split = if latents { split_latents } else { split_pages };
    let attending = match wide_tile {
        0 => ATTENDING,
        _ => {
            let most = queries.iter().map(|query| query.partials(split)).max().unwrap_or(1);
            let rows = 3 * ATTENDING * MAX_PARTIALS / most;
            let rows = (rows - rows % units.tokens).clamp(ATTENDING, ATTENDING_BY_TILES);
            let slices = queries.len().div_ceil(rows).max(1);
            queries.len().div_ceil(slices).next_multiple_of(units.tokens).min(rows)
        }
    };
    let mut slices = Vec::new();
    for (index, queries) in queries.chunks(attending).enumerate() {
        let plan = StepPlan::split_by(queries, tile, split);
        let closed = plan.items.iter().take_while(|item| item.begin < item.end).count();
        let mut tiles = Vec::new();
        if wide_tile > 0 && closed > 0 {
            let wide = StepPlan::split_by(queries, wide_tile, split);
            // Tiles that are a quarter full on average are worth it.
            let (runs, exact): (Vec<Item>, Vec<Item>) =
                wide.items.iter().partition(|item| item.begin < item.end);
            if 4 * queries.len() >= wide_tile * exact.len() {
                tiles = runs;
                // Those of the same pages next to each other: their bytes stay in L2.
                tiles.sort_by_key(|item| (item.seat, item.begin));
            }
        }
        let tiles_at = words.add_with_room(tiles.iter().flat_map(Item::words));
        let items_at = words.add_with_room(plan.items.iter().flat_map(Item::words));
        let slots = plan.rows.iter().flat_map(|slots| [slots.first as u32, slots.count as u32]);
        slices.push(SlicePlan {
            row: index * attending,
            rows: queries.len(),
            items_at,
            items: plan.items.len(),
            closed,
            tiles_at,
            tiles: tiles.len(),
            slots_at: words.add(slots),
            slots: plan.slots,
        });
    }
    slices
}

/// A sequence's part of a pass in one slot.
pub(crate) struct Part<'a> {
    pub slot: KvSlot,
    pub pages: &'a SlotPages,
    pub rule: &'a ExactWindow,
    pub span: &'a Span,
    pub sequence: &'a Sequence,
}

impl Part<'_> {
    /// Rows (kv_heads, stride) of the table of a slot's exact pages: the sinks' page, then the units that the row's query reads exactly; last those of
    /// which it reads one side exactly and the other as bytes.
    pub(crate) fn exact_table(&self, stride: usize, table: &mut Vec<u32>) -> Result<(), String> {
        let Part { slot, pages, rule, span, sequence } = *self;
        let units = pages.units;
        let first = units.both(rule, span.start);
        let end = exact_pages(rule, units, span.last()).end.max(first);
        let (exact_from, coded_to) = (units.closed(rule, span.start), units.closed(rule, span.last()));
        // (kv_heads, sinks and units first .. end) of keys and values; beside them the pages of codes of the side that has smaller ones.
        let (mut entries, mut coded): (Vec<[u32; 2]>, Vec<u32>) = Default::default();
        for head in 0..pages.kv_heads {
            let at = entries.len();
            entries.resize(at + 1 + end - first, [0; 2]);
            coded.resize(at + 1 + end - first, 0);
            let place = |page: Option<PageId>, number: usize, kind| -> Result<u32, String> {
                let missing = || format!("page {number} of layer {} is not held", pages.layer);
                unit_as(page.ok_or_else(missing)?, kind)
            };
            let side = |side| sequence.side(slot, head, side).ok_or("a slot holds no pages");
            let stores = [side(Side::Key)?, side(Side::Value)?];
            let kinds = [pages.key, pages.value];
            for (index, (store, kinds)) in stores.iter().zip(kinds).enumerate() {
                if let Some(sinks) = store.sinks_id().filter(|_| rule.sinks > 0) {
                    entries[at][index] = place(Some(sinks), 0, kinds.sinks)?;
                }
                let of_page = units.pages[index];
                for unit in first.max(exact_from[index])..end {
                    let within = unit % of_page * units.tokens * pages.dim * pages.exact_bytes[index] / UNIT;
                    let page = place(store.exact_id(unit / of_page), unit, kinds.exact)?;
                    entries[at + 1 + unit - first][index] = page + within as u32;
                }
            }
            let smaller = units.smaller();
            let store = &stores[smaller];
            // No query reads what has left the window.
            let codes = store.dropped().max(first)..coded_to[smaller].min(end);
            for unit in codes.filter(|_| units.most() > 1) {
                let closed = pages.closed(head)[smaller];
                coded[at + 1 + unit - first] = place(store.encoded_id(unit), unit, closed)?;
            }
        }
        let width = 1 + end - first;
        let mut before = None; // what the position before saw, and where its row begins
        for position in span.positions() {
            let seen = exact_pages(rule, units, position);
            let mixed = units.both(rule, position)..seen.start;
            let row = table.len();
            if let Some((_, same)) = before
                .replace(((seen.clone(), mixed.clone()), row))
                .filter(|(view, _)| *view == (seen.clone(), mixed.clone()))
            {
                table.extend_from_within(same..row);
                continue;
            }
            for (entries, coded) in entries.chunks_exact(width).zip(coded.chunks_exact(width)) {
                let at = table.len();
                table.extend(entries[0]);
                table.extend(entries[1 + seen.start - first..1 + seen.end - first].iter().flatten());
                table.resize(at + 2 * stride, 0);
                for unit in mixed.clone() {
                    let (to, from) = (stride - (units.most() - 1) + unit % units.most(), 1 + unit - first);
                    let mut entry = entries[from];
                    entry[units.smaller()] = coded[from];
                    table[at + 2 * to..][..2].copy_from_slice(&entry);
                }
            }
        }
        Ok(())
    }
}

/// The slot of an attention, which the card must keep.
pub(crate) fn slot_pages(pages: &LayoutPages, slot: KvSlot) -> Option<&SlotPages> {
    pages.slots.get(slot.index()).and_then(Option::as_ref)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PAGE_TOKENS;

    #[test]
    fn a_query_reads_its_own_page_and_the_recent_ones_exactly() {
        let rule = ExactWindow::default();
        for (position, pages) in [(0, 0..0), (3, 0..0), (4, 0..1), (67, 0..1), (68, 1..2), (131, 1..2)] {
            assert_eq!(exact_pages(&rule, Units::PAGES, position), pages, "{position}");
        }
        let recent = ExactWindow { recent: 100, ..rule };
        for (position, pages) in [(4, 0..1), (68, 0..2), (167, 0..3), (168, 1..3), (232, 2..4)] {
            assert_eq!(exact_pages(&recent, Units::PAGES, position), pages, "{position}");
        }
    }

    #[test]
    fn rows_are_written_to_the_page_that_their_query_reads_exactly() {
        let rule = ExactWindow { recent: 70, ..ExactWindow::default() };
        let span = Span { tokens: 300, capacity: 400, seat: 3, ..Span::default() };
        let mut words = PassParams::default();
        let plan = PassPlan::new(
            &mut words,
            &rule,
            &[span],
            std::iter::empty(),
            &[],
            Kinds { tiles: true, wide_tiles: true, units: Units::PAGES },
        );
        let at = plan.targets_at as usize / 4;
        for position in 0..300 {
            let [row, page, token, _] = words.0[at + 4 * position..][..4] else { unreachable!("four words") };
            assert_eq!(row as usize, position);
            if position < rule.sinks {
                assert_eq!((page, token as usize), (0, position));
            } else {
                let pages = exact_pages(&rule, Units::PAGES, position);
                let own = pages.start + page as usize - 1;
                assert!(pages.contains(&own) && (page as usize) < plan.exact_stride);
                assert_eq!(rule.sinks + own * PAGE_TOKENS + token as usize, position);
            }
        }
        assert!(!plan.is_step);
    }

    #[test]
    fn sections_do_not_overlap_and_keep_their_places() {
        let mut words = PassParams::default();
        let (a, b, c) = (words.add([1, 2, 3]), words.add_with_room(0..130), words.add([9]));
        assert_eq!((a, b, c), (0, 256, 256 + 4 * 256));
        assert_eq!(words.0[(c / 4) as usize], 9);
    }
}
