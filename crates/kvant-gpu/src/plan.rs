//! What the kernels of a pass read besides numbers: token ids, rotations, tables of pages, and how attention is cut into work.
//!
//! All of it is one list of words that is written once per pass, behind the tables that stay (`tables.rs`); kernels get offsets into it.
//!
//! **How attention is cut.** Tokens of a sequence that read the same pages in the same form are a *block*; what they see is cut into
//! *splits*: the sinks, then runs of [`SPLIT`] positions (longer in long contexts) that start at multiples of their length after the sinks, cut once
//! more where pages stop being coded. A workgroup has one split of one kv head of a block. So which splits a query has depends on its
//! position and the model alone, and the splits of a query are put together in their order.

use crate::layout::SlotKernels;
use crate::tables::Tables;
use kvant_cache::{ExactWindow, PageId, PageWork, Sequence};
use kvant_codec::Side;
use kvant_device::{Span, rotations};
use kvant_model::description::{QueryGain, Rope};
use std::ops::Range;

/// Positions of the shortest split, and splits of all kv heads together that a long context has before they grow.
const SPLIT: usize = 128;
const SPLITS: usize = 512;

/// Splits of a kv head before they grow.
fn most_splits(kv_heads: usize) -> usize {
    (SPLITS / kv_heads).max(1)
}

/// Positions of a split of the query at `position`: a power of two that its position and the model decide.
pub(crate) fn split(position: usize, kv_heads: usize) -> usize {
    (position / most_splits(kv_heads)).next_power_of_two().max(SPLIT)
}

/// The first position after this one whose splits are longer.
fn next_split(position: usize, kv_heads: usize) -> usize {
    (split(position, kv_heads) + 1) * most_splits(kv_heads)
}

/// The same where teams of threads attend: a page for each of a workgroup's four teams at least, and as many workgroups as a large card
/// holds at once. With a window it is what a query sees that counts.
const TEAM_SPLIT: usize = 256;
const TEAM_SPLITS: usize = 384;

/// Positions of a split of a query that sees so many.
pub(crate) fn team_split(seen: usize, kv_heads: usize) -> usize {
    TEAM_SPLIT * seen.div_ceil(TEAM_SPLIT * (TEAM_SPLITS / kv_heads).max(1)).max(1)
}

/// Words that partial sums of one round of attention may take.
const ROUND_WORDS: usize = 1 << 24;

/// Words for kernels, from a place on.
pub(crate) struct PassParams {
    pub first: usize,
    pub list: Vec<u32>,
}

impl PassParams {
    /// Where the next word will be.
    pub(crate) fn end(&self) -> usize {
        self.first + self.list.len()
    }

    /// Adds words and says where.
    pub(crate) fn add(&mut self, words: impl IntoIterator<Item = u32>) -> usize {
        let at = self.end();
        self.list.extend(words);
        at
    }

    /// What every row of queries is multiplied by.
    pub(crate) fn gains(&mut self, gain: &QueryGain, spans: &[Span]) -> usize {
        let positions = spans.iter().flat_map(Span::positions);
        self.add(positions.map(|position| (gain.at(position) as f32).to_bits()))
    }

    /// Sines and cosines of every row and pair; `at_sinks` those of queries that meet the sinks of a streaming window.
    pub(crate) fn rotations(&mut self, rope: &Rope, spans: &[Span], at_sinks: bool) -> usize {
        let sequence = |span: &Span| {
            let (span, streaming) = (*span, span.streaming.filter(|_| at_sinks));
            let position = move |position| streaming.map_or(position, |own| own.at_sinks(position));
            (span.positions().map(position), span.capacity)
        };
        let rotations = rotations(rope, spans.iter().map(sequence));
        self.add(
            rotations.into_iter().flat_map(|(sin, cos)| [(sin as f32).to_bits(), (cos as f32).to_bits()]),
        )
    }
}

/// Slots whose attention is cut in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Class {
    key_tokens: usize,
    value_tokens: usize,
    window: Option<usize>,
    /// Whether coded pages are in tables that stay.
    is_kept: bool,
    kv_heads: usize,
    pub group: usize,
    pub columns: usize,
    by_teams: bool,
}

/// Tasks whose partial sums are there at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub tasks_at: usize,
    pub tasks: usize,
    /// Where the rows' records are, which row is the first, and how many.
    pub rows_at: usize,
    pub row: usize,
    pub rows: usize,
}

/// A run of positions that one workgroup has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    start: usize,
    end: usize,
    key_form: u32,
    value_form: u32,
}

const CODED: u32 = 0;
const EXACT: u32 = 1;
const SINKS: u32 = 2;

/// Words of a row's record: first task, splits, tiles of columns, token of the block.
const ROW_WORDS: usize = 4;

impl Class {
    pub(crate) fn new(slot: &SlotKernels, rule: &ExactWindow, heads: usize, most_tokens: usize) -> Class {
        let group = heads / slot.kv_heads;
        let columns = slot.class_columns(group, most_tokens);
        Class {
            key_tokens: slot.key.tokens(),
            value_tokens: slot.value.tokens(),
            window: slot.window,
            is_kept: rule.window(slot.window).is_none(),
            kv_heads: slot.kv_heads,
            group,
            columns,
            by_teams: slot.attends_by_teams(columns),
        }
    }

    /// Pages of a side that a sequence's queries read: as bytes, and exactly.
    fn pages(&self, rule: &ExactWindow, span: &Span, side: Side) -> [Range<usize>; 2] {
        let tokens = match side {
            Side::Key => self.key_tokens,
            Side::Value => self.value_tokens,
        };
        let last = span.last();
        let end = (last + 1).saturating_sub(rule.sinks).div_ceil(tokens);
        let first = self.first(rule, span.start) / tokens;
        let coded = rule.encoded_for(last, tokens).min(end);
        let exact = rule.encoded_for(span.start, tokens).min(end);
        [first.min(coded)..coded, exact.max(first)..end]
    }

    /// The first position after the sinks that the query at `position` may read, from the sinks on, at the start of a page.
    fn first(&self, rule: &ExactWindow, position: usize) -> usize {
        let page = self.key_tokens.max(self.value_tokens);
        rule.first_seen(position, self.window).saturating_sub(rule.sinks) / page * page
    }

    /// Pages of keys and of values that a sequence's queries read as bytes, all from the first on.
    pub(crate) fn coded(&self, rule: &ExactWindow, span: &Span) -> [usize; 2] {
        [Side::Key, Side::Value].map(|side| self.pages(rule, span, side)[0].end)
    }

    /// The same as a pass lists them: none where they are in tables that stay.
    fn listed(&self, rule: &ExactWindow, span: &Span, side: Side) -> [Range<usize>; 2] {
        let [coded, exact] = self.pages(rule, span, side);
        [if self.is_kept { 0..0 } else { coded }, exact]
    }

    /// Entries of one sequence and kv head in the table of a pass: sinks and pages of keys, then of values.
    fn entries(&self, rule: &ExactWindow, span: &Span) -> usize {
        [Side::Key, Side::Value]
            .iter()
            .map(|side| 1 + self.listed(rule, span, *side).map(|r| r.len()).iter().sum::<usize>())
            .sum()
    }

    /// A sequence's part of the table of a slot's pages.
    pub(crate) fn table(
        &self,
        words: &mut PassParams,
        slot: kvant_cache::KvSlot,
        sequence: &Sequence,
        span: &Span,
    ) -> Result<(), String> {
        let rule = sequence.layout().exact_window();
        for head in 0..self.kv_heads {
            for side in [Side::Key, Side::Value] {
                let store = sequence.side(slot, head, side).ok_or("a slot holds no pages")?;
                let number = |id: Option<PageId>| id.map(|page| page.0 as u32);
                words.add([number(store.sinks_id()).unwrap_or(0)]);
                let [coded, exact] = self.listed(rule, span, side);
                for page in coded {
                    // The half of a larger page of the other side that has left the window is read under weights of zero.
                    let id = number(store.encoded_id(page.max(store.dropped())));
                    words.add([id.ok_or_else(|| format!("page {page} of layer data is not held as bytes"))?]);
                }
                for page in exact {
                    let id = number(store.exact_id(page));
                    words.add([id.ok_or_else(|| format!("page {page} is not held exactly"))?]);
                }
            }
        }
        Ok(())
    }

    /// Offsets of a sequence's entries for one kv head: by side and form, of page 0. `kept` is where its lists are in tables that stay.
    fn offsets(&self, rule: &ExactWindow, span: &Span, base: usize, kept: [usize; 2]) -> [[u32; 3]; 2] {
        let mut at = base;
        [(Side::Key, kept[0]), (Side::Value, kept[1])].map(|(side, kept)| {
            let [coded, exact] = self.listed(rule, span, side);
            let sinks = at;
            let first = at + 1;
            at = first + coded.len() + exact.len();
            let of_page_zero =
                |first: usize, range: &Range<usize>| (first as u32).wrapping_sub(range.start as u32);
            let coded_at = if self.is_kept { kept as u32 } else { of_page_zero(first, &coded) };
            [coded_at, of_page_zero(first + coded.len(), &exact), sinks as u32]
        })
    }

    /// Positions of a split of the query at `position`, and the first position after it whose splits are longer.
    fn split(&self, rule: &ExactWindow, position: usize) -> (usize, usize) {
        if !self.by_teams {
            return (split(position, self.kv_heads), next_split(position, self.kv_heads));
        }
        let most = rule.window(self.window).unwrap_or(usize::MAX);
        let length = team_split(position.min(most), self.kv_heads);
        let last = length * (TEAM_SPLITS / self.kv_heads).max(1);
        (length, if last < most { last + 1 } else { usize::MAX })
    }

    fn splits(&self, rule: &ExactWindow, positions: Range<usize>) -> Vec<Split> {
        let mut splits = Vec::new();
        let seen = rule.first_seen(positions.start, self.window);
        if rule.sinks > 0 && (seen < rule.sinks || rule.keeps_sinks(self.window)) {
            let end = rule.sinks.min(positions.end);
            splits.push(Split { start: 0, end, key_form: SINKS, value_form: SINKS });
        }
        let end = positions.end.saturating_sub(rule.sinks);
        let coded = |tokens: usize| rule.encoded_for(positions.start, tokens) * tokens;
        let (keys, values) = (coded(self.key_tokens), coded(self.value_tokens));
        let (mut start, length) = (self.first(rule, positions.start), self.split(rule, positions.start).0);
        while start < end {
            let next = (start / length + 1) * length;
            let stop =
                [next, keys, values, end].into_iter().filter(|stop| *stop > start).min().unwrap_or(end);
            let form = |coded: usize| if start < coded { CODED } else { EXACT };
            splits.push(Split {
                start: start + rule.sinks,
                end: stop + rule.sinks,
                key_form: form(keys),
                value_form: form(values),
            });
            start = stop;
        }
        splits
    }

    /// Cuts the attention of all sequences into tasks, in rounds.
    pub(crate) fn rounds(
        &self,
        words: &mut PassParams,
        rule: &ExactWindow,
        spans: &[Span],
        value_dim: usize,
        tables: &Tables,
    ) -> Vec<Round> {
        let smallest = self.key_tokens.min(self.value_tokens);
        let most = (self.columns / self.group).max(1);
        let per_task = self.columns * (value_dim + 2);
        let (mut rounds, mut tasks, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        let (mut count, mut first_row, mut base) = (0, 0, 0);
        let mut close =
            |tasks: &mut Vec<u32>, rows: &mut Vec<u32>, count: &mut usize, first_row: &mut usize| {
                let (row, number) = (*first_row, rows.len() / ROW_WORDS);
                if number > 0 {
                    let (tasks_at, rows_at) = (words.add(tasks.drain(..)), words.add(rows.drain(..)));
                    rounds.push(Round { tasks_at, tasks: *count, rows_at, row, rows: number });
                }
                *first_row += number;
                *count = 0;
            };
        for span in spans {
            let mut token = 0;
            while token < span.tokens {
                let position = span.start + token;
                let change = rule.next_change(position, smallest) - span.start;
                let longer = self.split(rule, position).1 - span.start;
                let end = (token + most).min(change).min(longer).min(span.tokens);
                let block = end - token;
                let splits = self.splits(rule, position..span.start + end);
                let tiles = (block * self.group).div_ceil(self.columns);
                let wanted = self.kv_heads * tiles * splits.len();
                if count > 0 && (count + wanted) * per_task > ROUND_WORDS {
                    close(&mut tasks, &mut rows, &mut count, &mut first_row);
                }
                for own in 0..block {
                    rows.extend([count as u32, splits.len() as u32, tiles as u32, own as u32]);
                }
                for head in 0..self.kv_heads {
                    let list = |side: usize| tables.seat_at(span.seat) + (2 * head + side) * tables.pages();
                    let base = base + head * self.entries(rule, span);
                    let offsets = self.offsets(rule, span, base, [list(0), list(1)]);
                    for tile in 0..tiles {
                        for split in &splits {
                            tasks.extend([
                                (span.row + token) as u32,
                                block as u32,
                                head as u32,
                                (tile * self.columns) as u32,
                                position as u32,
                                split.start as u32,
                                split.end as u32,
                                split.key_form,
                                split.value_form,
                                offsets[0][split.key_form as usize],
                                offsets[1][split.value_form as usize],
                            ]);
                        }
                    }
                }
                count += wanted;
                token = end;
            }
            base += self.kv_heads * self.entries(rule, span);
        }
        close(&mut tasks, &mut rows, &mut count, &mut first_row);
        rounds
    }
}

/// What a slot's pages get in a pass, as records for kernels: by side.
#[derive(Default)]
pub(crate) struct Writes {
    /// page, whether it is not the sinks', first token, row, rows, kv head.
    pub rows: [Vec<u32>; 2],
    /// exact page, tokens, coded page, kv head, mark.
    pub encodes: [Vec<u32>; 2],
    /// What the status becomes where a number cannot be stored.
    pub mark: u32,
}

impl Writes {
    /// Words of a record of rows, and of one of pages.
    pub(crate) const ROWS: usize = 6;
    pub(crate) const ENCODES: usize = 5;

    pub(crate) fn note(&mut self, row: usize, head: usize, side: Side, work: &PageWork) {
        let index = usize::from(side == Side::Value);
        let mut write = |page: PageId, kind: u32, first: usize, rows: &Range<usize>| {
            let (at, count) = ((row + rows.start) as u32, rows.len() as u32);
            self.rows[index].extend([page.0 as u32, kind, first as u32, at, count, head as u32]);
        };
        match work {
            PageWork::Sinks { page, first, rows } => write(*page, 0, *first, rows),
            PageWork::Exact { page, first, rows } => write(*page, 1, *first, rows),
            PageWork::Encode { exact, tokens, page } => {
                let (exact, page, tokens) = (exact.0 as u32, page.0 as u32, *tokens as u32);
                self.encodes[index].extend([exact, tokens, page, head as u32, self.mark]);
            }
        }
    }
}
