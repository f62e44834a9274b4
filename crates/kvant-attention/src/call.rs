//! One call of [`crate::Attention::attend`]: what was asked, checked, and how it is cut into work.

use crate::error::AttendError;
use kvant_cache::{EntryShape, Sequence, Visibility};
use std::ops::Range;

/// Positions whose softmax is taken in one go: a multiple of every page size. Segments start at multiples of this after
/// the sinks, whoever asks.
pub(crate) const SEGMENT: usize = 512;

/// Query heads that share one reading of a page, about: enough to make its unpacking cheap and to keep a matrix unit busy
/// once it is awake, few enough that the scores of a segment stay in the second-level cache.
const BLOCK_HEADS: usize = 96;

/// How scores become weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scoring<'a> {
    /// Multiplies q·k.
    pub scale: f32,
    /// Scaled scores s become cap · tanh(s / cap).
    pub soft_cap: Option<f32>,
    /// One logit per query head that takes part in the softmax and has no value.
    pub sink_logits: Option<&'a [f32]>,
    /// The queries as they meet the sinks of a streaming window, (tokens, heads, key_dim); the same queries if none.
    pub sink_queries: Option<&'a [f32]>,
    /// Leaves out the values of pages in which no token has this share of the largest weight. Without it, only pages
    /// are left out whose share of the sum is below 2⁻²⁴.
    pub sparse_v: Option<f32>,
}

impl Scoring<'_> {
    /// Plain softmax attention.
    pub fn new(scale: f32) -> Scoring<'static> {
        Scoring { scale, soft_cap: None, sink_logits: None, sink_queries: None, sparse_v: None }
    }
}

/// A checked call.
pub(crate) struct Call<'a> {
    pub sequence: &'a Sequence,
    pub entry: usize,
    pub shape: EntryShape,
    pub rule: Visibility,
    /// Position of the first query.
    pub start: usize,
    pub tokens: usize,
    /// Query heads in all, and per kv head.
    pub heads: usize,
    pub group: usize,
    /// (tokens, heads, key_dim).
    pub queries: &'a [f32],
    pub scoring: &'a Scoring<'a>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(
        sequence: &'a Sequence,
        entry: usize,
        queries: &'a [f32],
        scoring: &'a Scoring<'a>,
        out: &[f32],
    ) -> Result<Call<'a>, AttendError> {
        let entries = sequence.layout().entries();
        let Some(layout) = entries.get(entry) else {
            return Err(AttendError::Entry { entry, count: entries.len() });
        };
        let shape = *layout.shape();
        let held = sequence.entry_len(entry);
        // Tokens of this pass, all of which attend.
        let tokens = held - sequence.len().min(held);
        let width = tokens * shape.key_dim;
        let heads = queries.len().checked_div(width).unwrap_or(0);
        if tokens == 0 {
            return Err(AttendError::Ahead { queries: queries.len() / shape.key_dim.max(1), held: 0 });
        }
        if heads * width != queries.len() {
            return Err(AttendError::Size {
                what: "queries",
                got: queries.len(),
                want: heads.max(1) * width,
            });
        }
        if heads == 0 || !heads.is_multiple_of(shape.kv_heads) {
            return Err(AttendError::Heads { heads, kv_heads: shape.kv_heads });
        }
        let size =
            |what, got, want| if got == want { Ok(()) } else { Err(AttendError::Size { what, got, want }) };
        size("output", out.len(), tokens * heads * shape.value_dim)?;
        if let Some(logits) = scoring.sink_logits {
            size("sink logits", logits.len(), heads)?;
        }
        if let Some(sink_queries) = scoring.sink_queries {
            size("sink queries", sink_queries.len(), queries.len())?;
        }
        let positive = |what, value: Option<f32>| match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err(AttendError::Number { what, value, want: "positive and finite" })
            }
            _ => Ok(()),
        };
        positive("the soft cap", scoring.soft_cap)?;
        positive("the threshold of sparse values", scoring.sparse_v)?;
        let rule = *sequence.layout().rule();
        let (start, group) = (held - tokens, heads / shape.kv_heads);
        Ok(Call { sequence, entry, shape, rule, start, tokens, heads, group, queries, scoring })
    }

    /// Cuts the chunk into blocks of tokens that read the same pages in the same form.
    pub(crate) fn blocks(&self, blocks: &mut Vec<Range<usize>>) {
        let pages = self.sequence.layout().entries()[self.entry].heads().iter();
        let smallest =
            pages.map(|head| head.key.page_tokens().min(head.value.page_tokens())).min().unwrap_or(SEGMENT);
        let most = (BLOCK_HEADS / self.group).max(1);
        blocks.clear();
        let mut token = 0;
        while token < self.tokens {
            let position = self.start + token;
            let change = self.rule.next_change(position, smallest) - self.start;
            let end = (token + most).min(change).min(self.tokens);
            blocks.push(token..end);
            token = end;
        }
    }

    /// The segments that a block of tokens sees.
    pub(crate) fn segments(&self, block: &Range<usize>) -> Range<usize> {
        let sinks = self.rule.sinks;
        let end = (self.start + block.end).saturating_sub(sinks).div_ceil(SEGMENT);
        let seen = self.rule.first_seen(self.start + block.start, self.shape.window);
        (seen.saturating_sub(sinks) / SEGMENT).min(end)..end
    }

    /// 2 to this is the weight, relative to the largest, below which a page's values are left out.
    pub(crate) fn floor(&self) -> f32 {
        // A page has at most 128 tokens: their weights sum up to less than 2⁻²⁴.
        const EXACT: f32 = -31.0;
        self.scoring.sparse_v.map_or(EXACT, |threshold| threshold.log2().clamp(EXACT, 0.0))
    }
}
