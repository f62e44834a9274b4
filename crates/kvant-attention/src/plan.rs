//! One call of [`crate::Attention::attend`]: what was asked, checked, and how it is cut into work.
//!
//! Every sequence's tokens are cut into blocks that read the same pages in the same form. A task is one kv head of a block,
//! and, where a block sees far more than the others, a run of its segments: so threads share the work of all sequences.

use kvant_cache::{
    AttendError, ExactWindow, KvShape, KvSlot, Queries, Scoring, Sequence, SlotKind, SlotLayout, StateError,
    StateErrorKind,
};
use std::ops::Range;

/// Positions whose softmax is taken in one go: a multiple of every page size. Segments start at multiples of this after
/// the sinks, whoever asks.
pub(crate) const SEGMENT: usize = 512;

/// Query heads that share one reading of a page, about: enough to make its unpacking cheap and to keep a matrix unit busy
/// once it is awake, few enough that the scores of a segment stay in the second-level cache.
const BLOCK_HEADS: usize = 96;

/// Tasks per thread that are aimed at: enough to even out, few enough that preparing queries is done seldom.
const TASKS_PER_THREAD: usize = 3;

/// The sequences of a pass, by order.
pub trait Sequences: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// One of them.
    fn sequence(&self, index: usize) -> &Sequence;
}

impl Sequences for Sequence {
    fn count(&self) -> usize {
        1
    }

    fn sequence(&self, _: usize) -> &Sequence {
        self
    }
}

impl Sequences for [&mut Sequence] {
    fn count(&self) -> usize {
        self.len()
    }

    fn sequence(&self, index: usize) -> &Sequence {
        self[index]
    }
}

impl Sequences for [&Sequence] {
    fn count(&self) -> usize {
        self.len()
    }

    fn sequence(&self, index: usize) -> &Sequence {
        self[index]
    }
}

/// Sequences by their order.
pub(crate) type Lookup<'a> = dyn Fn(usize) -> &'a Sequence + Sync + 'a;

/// How attention reads a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub kv_heads: usize,
    /// Channels of a query.
    pub query_dim: usize,
    /// Channels of a query that meet keys, or the rotated part of latents; the others meet the latents themselves.
    pub key_dim: usize,
    pub value_dim: usize,
    pub window: Option<usize>,
}

/// A checked call.
pub(crate) struct Call<'a> {
    pub sequence: &'a Lookup<'a>,
    pub slot: KvSlot,
    pub shape: Shape,
    /// Query heads in all, and per kv head.
    pub heads: usize,
    pub group: usize,
    /// (rows, heads, query_dim).
    pub queries: Queries<'a>,
    pub scoring: &'a Scoring<'a>,
}

/// The part that one sequence has in a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// Which sequence, by order.
    pub sequence: usize,
    /// Position of its first query.
    pub start: usize,
    pub tokens: usize,
    /// Row of its first query.
    pub row: usize,
}

/// Tokens of one sequence that read the same pages in the same form.
#[derive(Clone, Debug)]
pub(crate) struct PlannedBlock {
    pub part: Part,
    /// Tokens of the part.
    pub tokens: Range<usize>,
    /// The segments they see.
    pub segments: Range<usize>,
    /// Runs of segments that each kv head is cut into.
    runs: usize,
    /// Numbers of its first task, of its first merge if it has several runs, and of its first partial.
    first_task: usize,
    first_merge: usize,
    first_partial: usize,
}

/// A piece of work: one kv head of a block, and which of its segments, counted from the block's first.
pub(crate) struct Task<'p> {
    pub block: &'p PlannedBlock,
    pub head: usize,
    pub segments: Range<usize>,
}

impl Task<'_> {
    /// Whether it has all segments of its block, and so its output.
    pub(crate) fn is_whole(&self) -> bool {
        self.block.runs == 1
    }

    /// The number of the partial of a segment, counted from the block's first.
    pub(crate) fn partial(&self, segment: usize) -> usize {
        self.block.first_partial + self.head * self.block.segments.len() + segment
    }
}

/// How a call is cut into work. It keeps its lists, so that planning allocates nothing once they have grown.
#[derive(Default)]
pub(crate) struct Plan {
    parts: Vec<Part>,
    blocks: Vec<PlannedBlock>,
    kv_heads: usize,
    /// Pieces of work, those that are merged afterwards, and segments whose sums are kept for it.
    pub tasks: usize,
    pub merges: usize,
    pub partials: usize,
}

impl Plan {
    /// Checks the sequences and sets out the work.
    pub(crate) fn check<'a>(
        &mut self,
        sequence: &'a Lookup<'a>,
        count: usize,
        slot: KvSlot,
        queries: Queries<'a>,
        scoring: &'a Scoring<'a>,
        out: &[f32],
    ) -> Result<Call<'a>, StateError> {
        self.parts.clear();
        let (mut shape, mut rows) = (None, 0);
        for index in 0..count {
            let own = sequence(index);
            let layer = own.layout().slots().get(slot.index()).map_or(0, SlotLayout::layer);
            let store = own.store().of_layer(layer);
            if !store.is_host() {
                let store = store.name().to_owned();
                return Err(StateError::new(index, AttendError::NotHost { store }));
            }
            let own_shape = Shape::of(own, slot).map_err(|kind| StateError::new(index, kind))?;
            if shape.is_some_and(|shape| shape != own_shape) {
                let what =
                    "the sequences of a pass are of different models: their slots have different shapes";
                return Err(StateError::new(index, StateErrorKind::Pass { what }));
            }
            shape = Some(own_shape);
            let (held, start) = (own.slot_len(slot), own.len());
            let tokens = held - start.min(held);
            self.parts.push(Part { sequence: index, start, tokens, row: rows });
            rows += tokens;
        }
        let (Some(shape), true) = (shape, rows > 0) else {
            let layer = (count > 0).then(|| sequence(0).layout().slots()[slot.index()].layer());
            return Err(StateError::new(0, AttendError::NoPass { layer: layer.unwrap_or(slot.index()) }));
        };
        let call = Call::new(sequence, slot, shape, rows, queries, scoring, out);
        call.map_err(|error| StateError::new(0, error))
    }

    /// Cuts the call into blocks and tasks.
    pub(crate) fn cut(&mut self, call: &Call<'_>) {
        let Plan { parts, blocks, .. } = self;
        blocks.clear();
        for part in parts.iter() {
            call.blocks(part, blocks);
        }
        let kv_heads = call.shape.kv_heads;
        let threads = kvant_threads::threads();
        let all: usize = blocks.iter().map(|block| block.segments.len() * kv_heads).sum();
        // Segments in a run. Where segments are cut into runs changes no bit: they are merged one by one in any case.
        let run = if threads > 1 { all.div_ceil(TASKS_PER_THREAD * threads).max(1) } else { usize::MAX };
        (self.kv_heads, self.tasks, self.merges, self.partials) = (kv_heads, 0, 0, 0);
        for block in &mut self.blocks {
            block.runs = block.segments.len().div_ceil(run).max(1);
            (block.first_task, block.first_merge, block.first_partial) =
                (self.tasks, self.merges, self.partials);
            self.tasks += kv_heads * block.runs;
            if block.runs > 1 {
                self.merges += kv_heads;
                self.partials += kv_heads * block.segments.len();
            }
        }
    }

    pub(crate) fn task(&self, number: usize) -> Task<'_> {
        let block = &self.blocks[self.blocks.partition_point(|block| block.first_task <= number) - 1];
        let (head, run) =
            ((number - block.first_task) / block.runs, (number - block.first_task) % block.runs);
        let (segments, length) = (block.segments.len(), block.segments.len().div_ceil(block.runs));
        Task { block, head, segments: (run * length).min(segments)..((run + 1) * length).min(segments) }
    }

    /// The task that puts together the runs of a block.
    pub(crate) fn merge(&self, number: usize) -> Task<'_> {
        let block = &self.blocks[self.blocks.partition_point(|block| block.first_merge <= number) - 1];
        Task { block, head: number - block.first_merge, segments: 0..block.segments.len() }
    }
}

impl Shape {
    fn of(sequence: &Sequence, slot: KvSlot) -> Result<Shape, StateErrorKind> {
        let layout = sequence.layout();
        let missing = |found| StateErrorKind::Slot { slot: slot.index(), found, wanted: "keys and values" };
        let Some(own) = layout.slots().get(slot.index()) else { return Err(missing("nothing")) };
        let (KvShape { kv_heads, key_dim, value_dim, window }, latent_dim) =
            match layout.held(slot).map(|held| *held.kind()) {
                Some(SlotKind::KeysValues(shape)) => (shape, 0),
                Some(SlotKind::Latent(shape)) => (shape.stored(), shape.latent_dim),
                Some(SlotKind::View(_) | SlotKind::Recurrent(_)) | None => {
                    return Err(missing(own.kind().name()));
                }
            };
        Ok(Shape { kv_heads, query_dim: key_dim + latent_dim, key_dim, value_dim, window })
    }
}

impl<'a> Call<'a> {
    fn new(
        sequence: &'a Lookup<'a>,
        slot: KvSlot,
        shape: Shape,
        rows: usize,
        queries: Queries<'a>,
        scoring: &'a Scoring<'a>,
        out: &[f32],
    ) -> Result<Call<'a>, AttendError> {
        let width = rows * shape.query_dim;
        let (got, heads) = (queries.own.len(), queries.own.len().checked_div(width).unwrap_or(0));
        if heads * width != got {
            return Err(AttendError::Size { what: "queries", got, want: heads.max(1) * width });
        }
        if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
            return Err(AttendError::Heads { heads, kv_heads: shape.kv_heads });
        }
        let size =
            |what, got, want| if got == want { Ok(()) } else { Err(AttendError::Size { what, got, want }) };
        size("output", out.len(), rows * heads * shape.value_dim)?;
        if let Some(logits) = scoring.sink_logits {
            size("sink logits", logits.len(), heads)?;
        }
        if let Some(at_sinks) = queries.at_sinks {
            size("queries at the sinks", at_sinks.len(), queries.own.len())?;
        }
        match scoring.soft_cap {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                return Err(AttendError::Number { what: "the soft cap", value, want: "positive and finite" });
            }
            _ => {}
        }
        let group = heads / shape.kv_heads;
        Ok(Call { sequence, slot, shape, heads, group, queries, scoring })
    }

    /// Cuts the tokens of a sequence into blocks that read the same pages in the same form.
    fn blocks(&self, part: &Part, blocks: &mut Vec<PlannedBlock>) {
        let layout = (self.sequence)(part.sequence).layout();
        let rule = layout.exact_window();
        let heads = layout.held(self.slot).map_or(&[][..], |held| held.heads()).iter();
        let pages = heads.flat_map(|head| head.sides().map(|(_, codecs)| codecs.page_tokens()));
        let smallest = pages.min().unwrap_or(SEGMENT);
        let most = (BLOCK_HEADS / self.group).max(1);
        let mut token = 0;
        while token < part.tokens {
            let change = rule.next_change(part.start + token, smallest) - part.start;
            let end = (token + most).min(change).min(part.tokens);
            blocks.push(PlannedBlock {
                part: *part,
                tokens: token..end,
                segments: self.segments(rule, part.start + token..part.start + end),
                runs: 1,
                first_task: 0,
                first_merge: 0,
                first_partial: 0,
            });
            token = end;
        }
    }

    /// The segments that queries at these positions see.
    fn segments(&self, rule: &ExactWindow, positions: Range<usize>) -> Range<usize> {
        let end = positions.end.saturating_sub(rule.sinks).div_ceil(SEGMENT);
        let seen = rule.first_seen(positions.start, self.shape.window);
        (seen.saturating_sub(rule.sinks) / SEGMENT).min(end)..end
    }
}
