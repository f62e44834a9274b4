//! One kv head and one block of query tokens: which pages they read.

use crate::plan::{Call, Part, SEGMENT, Task};
use kvant_cache::{AttendError, ExactWindow, SideStore, SparseV};
use kvant_codec::Side;
use std::ops::Range;

/// Queries of one kv head that read the same pages in the same form.
pub(crate) struct Block<'a> {
    pub call: &'a Call<'a>,
    pub part: Part,
    pub rule: &'a ExactWindow,
    sparse_v: Option<SparseV>,
    /// The kv head, and the layer it belongs to.
    pub head: usize,
    pub layer: usize,
    /// Tokens of the part.
    pub tokens: Range<usize>,
    /// None for latents without a rotated part.
    key: Option<&'a SideStore>,
    pub value: &'a SideStore,
    /// Pages of values before this are read as bytes.
    pub encoded_values: usize,
}

/// A side that scores read: keys; or the rotated part of latents, and the latents.
#[derive(Clone)]
pub(crate) struct Scored<'a> {
    pub store: &'a SideStore,
    /// Channels of a query that meet it.
    pub channels: Range<usize>,
    /// Pages before this are read as bytes.
    pub encoded: usize,
    pub name: &'static str,
}

/// The pages of one segment, the same stretch of positions on both sides. Positions count from the end of the sinks.
#[derive(Clone, Debug)]
pub(crate) struct SegmentPages {
    pub positions: Range<usize>,
    pub key_pages: Range<usize>,
    pub value_pages: Range<usize>,
}

impl<'a> Block<'a> {
    pub(crate) fn new(call: &'a Call<'a>, task: &Task<'_>) -> Result<Block<'a>, AttendError> {
        let (part, tokens, head) = (task.block.part, task.block.tokens.clone(), task.head);
        let sequence = (call.sequence)(part.sequence);
        let layout = sequence.layout();
        let (rule, sparse_v) = (layout.exact_window(), layout.sparse_v());
        let layer = layout.slots()[call.slot.index()].layer();
        let side = |side| sequence.side(call.slot, head, side);
        let (key, Some(value)) = (side(Side::Key), side(Side::Value)) else {
            return Err(AttendError::Heads { heads: call.heads, kv_heads: call.shape.kv_heads });
        };
        let encoded_values = rule.encoded_for(part.start + tokens.start, value.codecs().page_tokens());
        Ok(Block { call, part, rule, sparse_v, head, layer, tokens, key, value, encoded_values })
    }

    /// What scores read, in the order in which it is summed up.
    pub(crate) fn scored(&self) -> impl Iterator<Item = Scored<'a>> + use<'a> {
        let shape = &self.call.shape;
        let first = self.part.start + self.tokens.start;
        let rule = self.rule;
        let scored = move |store: &'a SideStore, channels: Range<usize>, name| {
            let encoded = rule.encoded_for(first, store.codecs().page_tokens());
            (!channels.is_empty()).then_some(Scored { store, channels, encoded, name })
        };
        let latents = scored(self.value, shape.key_dim..shape.query_dim, "latents");
        let name = if latents.is_some() { "rotated parts" } else { "keys" };
        let keys = self.key.and_then(|key| scored(key, 0..shape.key_dim, name));
        keys.into_iter().chain(latents)
    }

    /// Tokens of the pages that scores come in.
    pub(crate) fn key_tokens(&self) -> usize {
        self.key.unwrap_or(self.value).codecs().page_tokens()
    }

    /// The encoded page of keys that is read after the values of a stretch.
    pub(crate) fn next_keys(&self, stretch: &SegmentPages) -> &'a [u8] {
        self.key.and_then(|key| key.encoded(stretch.key_pages.end)).unwrap_or_default()
    }

    /// Query heads: tokens times group.
    pub(crate) fn heads(&self) -> usize {
        self.tokens.len() * self.call.group
    }

    /// The rows of its tokens among all of the call.
    pub(crate) fn rows(&self) -> Range<usize> {
        self.part.row + self.tokens.start..self.part.row + self.tokens.end
    }

    /// The queries as they meet the sinks, where that is another rotation.
    pub(crate) fn queries_at_sinks(&self) -> Option<&'a [f32]> {
        self.call.queries.at_sinks.filter(|_| self.rule.streaming.is_some())
    }

    /// The position of a query head's token.
    fn position(&self, head: usize) -> usize {
        self.part.start + self.tokens.start + head / self.call.group
    }

    /// The positions after the sinks that a query head sees, counted from there.
    pub(crate) fn seen(&self, head: usize) -> Range<usize> {
        let (position, rule) = (self.position(head), self.rule);
        let first = rule.first_seen(position, self.call.shape.window);
        let end = (position + 1).saturating_sub(rule.sinks);
        first.saturating_sub(rule.sinks).min(end)..end
    }

    /// The sinks that a query head sees.
    pub(crate) fn seen_sinks(&self, head: usize) -> Range<usize> {
        let (position, rule, window) = (self.position(head), self.rule, self.call.shape.window);
        let end = rule.sinks.min(position + 1);
        if rule.keeps_sinks(window) { 0..end } else { rule.first_seen(position, window).min(end)..end }
    }

    /// Whether any query of the block sees a sink.
    pub(crate) fn sees_sinks(&self) -> bool {
        // The first query's window reaches back furthest.
        !self.seen_sinks(0).is_empty()
    }

    /// What the block reads of a segment: whole pages of both sides.
    pub(crate) fn segment_pages(&self, segment: usize) -> SegmentPages {
        let (key_tokens, value_tokens) = (self.key_tokens(), self.value.codecs().page_tokens());
        let larger = key_tokens.max(value_tokens);
        let (first, last) = (self.seen(0).start, self.seen(self.heads() - 1).end);
        let start = (first / larger * larger).max(segment * SEGMENT);
        let end = last.next_multiple_of(larger).min((segment + 1) * SEGMENT).max(start);
        SegmentPages {
            positions: start..end,
            key_pages: start / key_tokens..end / key_tokens,
            value_pages: start / value_tokens..end / value_tokens,
        }
    }

    /// The pages of a side that some query of the block sees.
    pub(crate) fn needed(&self, page_tokens: usize) -> Range<usize> {
        let (first, last) = (self.seen(0).start, self.seen(self.heads() - 1).end);
        first / page_tokens..last.div_ceil(page_tokens)
    }

    /// 2 to this is the weight, relative to the largest, below which a page's values are left out.
    pub(crate) fn floor(&self) -> f32 {
        // A page has at most 128 tokens: their weights sum up to less than 2⁻²⁴.
        const EXACT: f32 = -31.0;
        self.sparse_v.map_or(EXACT, |threshold| threshold.get().log2().clamp(EXACT, 0.0))
    }
}
