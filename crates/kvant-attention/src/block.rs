//! One kv head and one block of query tokens: which pages they read.

use crate::call::{Call, SEGMENT};
use crate::error::AttendError;
use kvant_cache::SideStore;
use kvant_codec::Side;
use std::ops::Range;

/// Queries of one kv head that read the same pages in the same form.
pub(crate) struct Block<'a> {
    pub call: &'a Call<'a>,
    /// The kv head.
    pub head: usize,
    /// Tokens of the chunk.
    pub tokens: Range<usize>,
    pub key: &'a SideStore,
    pub value: &'a SideStore,
    /// Pages before this are read as bytes, by side.
    pub encoded_keys: usize,
    pub encoded_values: usize,
}

/// The pages of one segment, the same stretch of positions on both sides. Positions count from the end of the sinks.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub positions: Range<usize>,
    pub key_pages: Range<usize>,
    pub value_pages: Range<usize>,
}

impl<'a> Block<'a> {
    pub(crate) fn new(
        call: &'a Call<'a>,
        head: usize,
        tokens: Range<usize>,
    ) -> Result<Block<'a>, AttendError> {
        let side = |side| call.sequence.side(call.entry, head, side);
        let (Some(key), Some(value)) = (side(Side::Key), side(Side::Value)) else {
            return Err(AttendError::Heads { heads: call.heads, kv_heads: call.shape.kv_heads });
        };
        let encoded = |store: &SideStore| {
            call.rule.encoded_for(call.start + tokens.start, store.codecs().page_tokens())
        };
        let (encoded_keys, encoded_values) = (encoded(key), encoded(value));
        Ok(Block { call, head, tokens, key, value, encoded_keys, encoded_values })
    }

    /// Query heads: tokens times group.
    pub(crate) fn heads(&self) -> usize {
        self.tokens.len() * self.call.group
    }

    /// The position of a query head's token.
    fn position(&self, head: usize) -> usize {
        self.call.start + self.tokens.start + head / self.call.group
    }

    /// The positions after the sinks that a query head sees, counted from there.
    pub(crate) fn seen(&self, head: usize) -> Range<usize> {
        let (position, rule) = (self.position(head), &self.call.rule);
        let first = rule.first_seen(position, self.call.shape.window);
        let end = (position + 1).saturating_sub(rule.sinks);
        first.saturating_sub(rule.sinks).min(end)..end
    }

    /// The sinks that a query head sees.
    pub(crate) fn seen_sinks(&self, head: usize) -> Range<usize> {
        let (position, rule, window) = (self.position(head), &self.call.rule, self.call.shape.window);
        let end = rule.sinks.min(position + 1);
        if rule.keeps_sinks(window) { 0..end } else { rule.first_seen(position, window).min(end)..end }
    }

    /// Whether any query of the block sees a sink.
    pub(crate) fn sees_sinks(&self) -> bool {
        // The first query's window reaches back furthest.
        !self.seen_sinks(0).is_empty()
    }

    /// What the block reads of a segment: whole pages of both sides.
    pub(crate) fn stretch(&self, segment: usize) -> Stretch {
        let (key_tokens, value_tokens) = (self.key.codecs().page_tokens(), self.value.codecs().page_tokens());
        let larger = key_tokens.max(value_tokens);
        let (first, last) = (self.seen(0).start, self.seen(self.heads() - 1).end);
        let start = (first / larger * larger).max(segment * SEGMENT);
        let end = last.next_multiple_of(larger).min((segment + 1) * SEGMENT).max(start);
        Stretch {
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
}
