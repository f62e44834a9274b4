//! What a thread keeps between tasks, and the loop over pages that uses it.

use crate::aligned::Aligned;
use crate::block::{Block, Stretch};
use crate::call::SEGMENT;
use crate::error::AttendError;
use crate::kernel::{Kernels, Soften};
use crate::partial::Partial;
use kvant_codec::{PageCodec, Query};
use std::cell::Cell;
use std::ops::Range;

/// Buffers of one thread. None is larger than a segment of scores for a block of queries.
#[derive(Default)]
pub(crate) struct Scratch {
    pub pages: Pages,
    /// What has been summed up so far, and the segment in hand.
    pub running: Partial,
    pub segment: Partial,
    pub factors: Aligned,
    /// (heads, value_dim).
    finished: Vec<f32>,
}

/// Prepared queries and a segment of scores.
#[derive(Default)]
pub(crate) struct Pages {
    /// (heads, key_dim).
    rows: Vec<f32>,
    encoded_query: Query,
    exact_query: Query,
    sink_query: Query,
    /// (pages, heads, tokens of a page).
    scores: Aligned,
    weights: Aligned,
    tops: Vec<f32>,
    alive: Vec<bool>,
    /// (heads): largest scores of the sinks.
    references: Vec<f32>,
}

thread_local!(static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) });

impl Scratch {
    /// This thread's; give it back with [`Scratch::keep`].
    pub(crate) fn take() -> Box<Scratch> {
        SCRATCH.take().unwrap_or_default()
    }

    pub(crate) fn keep(self: Box<Scratch>) {
        SCRATCH.set(Some(self));
    }

    /// Begins a block: queries prepared, and the sinks, where it sees any, in the running sums.
    pub(crate) fn begin(&mut self, block: &Block<'_>, kernels: &Kernels) -> Result<(), AttendError> {
        self.pages.prepare(block)?;
        self.running.reset(block.heads(), block.call.shape.value_dim);
        self.pages.sinks(block, kernels, &mut self.running)
    }

    /// Takes one segment into the running sums.
    pub(crate) fn take_in(
        &mut self,
        block: &Block<'_>,
        segment: usize,
        kernels: &Kernels,
    ) -> Result<(), AttendError> {
        self.segment.reset(block.heads(), block.call.shape.value_dim);
        self.pages.segment(block, segment, kernels, &mut self.segment)?;
        self.running.join(&self.segment, &mut self.factors, kernels);
        Ok(())
    }

    /// Divides the running sums by their mass, into (tokens, group, value_dim).
    pub(crate) fn finish(&mut self, block: &Block<'_>, out: &mut [f32]) -> Result<(), AttendError> {
        let (call, heads) = (block.call, block.heads());
        let dim = call.shape.value_dim;
        self.finished.clear();
        self.finished.resize(heads * dim, 0.0);
        if self.running.has_encoded {
            block.value.codecs().codec().finish(&self.running.encoded, &mut self.finished)?;
        }
        for (head, (out, encoded)) in
            out.chunks_exact_mut(dim).zip(self.finished.chunks_exact(dim)).enumerate()
        {
            let (mut mass, mut shrink) = (self.running.mass(head), 1.0);
            if let Some(logits) = call.scoring.sink_logits {
                let logit = logits[block.head * call.group + head % call.group] * std::f32::consts::LOG2_E;
                let top = self.running.maxima()[head];
                let larger = top.max(logit);
                shrink = (top - larger).exp2();
                mass = mass * shrink + (logit - larger).exp2();
            }
            let factor = shrink / mass;
            for ((x, encoded), exact) in out.iter_mut().zip(encoded).zip(self.running.exact.sums(head)) {
                // Adding zero makes a negative zero positive: which of the two it was could depend on the chunks.
                *x = (encoded + exact) * factor + 0.0;
            }
        }
        Ok(())
    }
}

impl Pages {
    fn prepare(&mut self, block: &Block<'_>) -> Result<(), AttendError> {
        let call = block.call;
        self.gather(block, call.queries);
        let codecs = block.key.codecs();
        codecs.exact().prepare(&self.rows, &mut self.exact_query)?;
        if !codecs.is_exact() && block.encoded_keys > 0 {
            codecs.codec().prepare(&self.rows, &mut self.encoded_query)?;
        }
        if let Some(queries) = call.scoring.sink_queries {
            self.gather(block, queries);
            codecs.sinks().prepare(&self.rows, &mut self.sink_query)?;
        }
        Ok(())
    }

    /// The block's queries side by side, scaled, so that scores need no scaling; in units of log₂ unless a soft cap
    /// has to see them first.
    fn gather(&mut self, block: &Block<'_>, queries: &[f32]) {
        let call = block.call;
        let unit = if call.scoring.soft_cap.is_some() { 1.0 } else { std::f32::consts::LOG2_E };
        let factor = call.scoring.scale * unit;
        let width = call.group * call.shape.key_dim;
        self.rows.clear();
        for token in block.tokens.clone() {
            let at = token * call.heads * call.shape.key_dim + block.head * width;
            self.rows.extend(queries[at..at + width].iter().map(|q| q * factor));
        }
    }

    /// The sinks' part; its maxima are what every segment of the block starts from.
    fn sinks(&mut self, block: &Block<'_>, kernels: &Kernels, into: &mut Partial) -> Result<(), AttendError> {
        let heads = block.heads();
        if let (true, Some(keys), Some(values)) = (block.sees_sinks(), block.key.sinks(), block.value.sinks())
        {
            let codec = block.key.codecs().sinks();
            let tokens = codec.page_tokens();
            let query =
                if block.call.scoring.sink_queries.is_some() { &self.sink_query } else { &self.exact_query };
            let scores = self.scores.at_least(heads * tokens);
            codec.scores(query, keys, scores)?;
            for (head, scores) in scores.chunks_exact_mut(tokens).enumerate() {
                mask(scores, block.seen_sinks(head));
            }
            self.tops.clear();
            self.tops.resize(1, 0.0);
            self.alive.clear();
            self.alive.resize(1, false);
            let work = Soften {
                heads,
                scores,
                key_tokens: tokens,
                weights: None,
                value_tokens: tokens,
                soft_cap: block.call.scoring.soft_cap,
                floor: f32::NEG_INFINITY,
                maxima: into.maxima(),
                tops: &mut self.tops,
                alive: &mut self.alive,
            };
            // SAFETY: the table belongs to this CPU; there is one page of scores for every head.
            unsafe { (kernels.soften)(work) };
            block.value.codecs().sinks().accumulate(
                &self.scores[..heads * tokens],
                values,
                &mut into.exact,
            )?;
            into.has_exact = true;
        }
        self.references.clear();
        self.references.extend_from_slice(into.maxima());
        Ok(())
    }

    /// One segment: scores of its pages, weights, sums.
    pub(crate) fn segment(
        &mut self,
        block: &Block<'_>,
        segment: usize,
        kernels: &Kernels,
        into: &mut Partial,
    ) -> Result<(), AttendError> {
        let stretch = block.stretch(segment);
        self.score(block, &stretch)?;
        self.soften(block, &stretch, kernels, into);
        self.accumulate(block, &stretch, into)
    }

    fn score(&mut self, block: &Block<'_>, stretch: &Stretch) -> Result<(), AttendError> {
        let codecs = block.key.codecs();
        let (heads, tokens) = (block.heads(), codecs.page_tokens());
        let needed = block.needed(tokens);
        let scores = self.scores.at_least(heads * SEGMENT);
        let encoded_query = if codecs.is_exact() { &self.exact_query } else { &self.encoded_query };
        for (page, scores) in stretch.key_pages.clone().zip(scores.chunks_exact_mut(heads * tokens)) {
            if !needed.contains(&page) {
                scores.fill(f32::NEG_INFINITY);
            } else if page < block.encoded_keys {
                let bytes = held(block.key.encoded(page), page, "keys")?;
                let next = if page + 1 < block.encoded_keys.min(stretch.key_pages.end) {
                    block.key.encoded(page + 1)
                } else {
                    block.value.encoded(stretch.value_pages.start)
                };
                codecs.codec().scores_ahead(encoded_query, bytes, next.unwrap_or_default(), scores)?;
            } else {
                let rows = held(block.key.exact(page), page, "keys")?;
                codecs.exact().scores(&self.exact_query, rows, scores)?;
            }
        }
        for head in 0..heads {
            let seen = block.seen(head);
            if seen.start <= stretch.positions.start && stretch.positions.end <= seen.end {
                continue;
            }
            for (i, page) in stretch.key_pages.clone().enumerate() {
                let start = page * tokens;
                let inside =
                    seen.start.saturating_sub(start).min(tokens)..seen.end.saturating_sub(start).min(tokens);
                mask(&mut scores[(i * heads + head) * tokens..][..tokens], inside);
            }
        }
        Ok(())
    }

    fn soften(&mut self, block: &Block<'_>, stretch: &Stretch, kernels: &Kernels, into: &mut Partial) {
        let heads = block.heads();
        let (key_tokens, value_tokens) =
            (block.key.codecs().page_tokens(), block.value.codecs().page_tokens());
        self.tops.clear();
        self.tops.resize(stretch.key_pages.len(), 0.0);
        self.alive.clear();
        self.alive.resize(stretch.value_pages.len(), false);
        let size = heads * stretch.positions.len();
        let apart = key_tokens != value_tokens;
        into.maxima().copy_from_slice(&self.references);
        let work = Soften {
            heads,
            scores: &mut self.scores[..size],
            key_tokens,
            weights: apart.then(|| self.weights.at_least(size)),
            value_tokens,
            soft_cap: block.call.scoring.soft_cap,
            floor: block.call.floor(),
            maxima: into.maxima(),
            tops: &mut self.tops,
            alive: &mut self.alive,
        };
        // SAFETY: the table belongs to this CPU; scores and weights hold all positions of the stretch for every head.
        unsafe { (kernels.soften)(work) };
    }

    fn accumulate(
        &mut self,
        block: &Block<'_>,
        stretch: &Stretch,
        into: &mut Partial,
    ) -> Result<(), AttendError> {
        let codecs = block.value.codecs();
        let (heads, tokens) = (block.heads(), codecs.page_tokens());
        let apart = block.key.codecs().page_tokens() != tokens;
        let weights = if apart { &self.weights } else { &self.scores };
        let needed = block.needed(tokens);
        for (i, page) in stretch.value_pages.clone().enumerate() {
            if !self.alive[i] || !needed.contains(&page) {
                continue;
            }
            let weights = &weights[i * heads * tokens..(i + 1) * heads * tokens];
            if page < block.encoded_values {
                let bytes = held(block.value.encoded(page), page, "values")?;
                let next = if page + 1 < block.encoded_values.min(stretch.value_pages.end) {
                    block.value.encoded(page + 1)
                } else {
                    block.key.encoded(stretch.key_pages.end)
                };
                codecs.codec().accumulate_ahead(
                    weights,
                    bytes,
                    next.unwrap_or_default(),
                    &mut into.encoded,
                )?;
                into.has_encoded = true;
            } else {
                let rows = held(block.value.exact(page), page, "values")?;
                codecs.exact().accumulate(weights, rows, &mut into.exact)?;
                into.has_exact = true;
            }
        }
        Ok(())
    }
}

fn held<'p>(page: Option<&'p [u8]>, number: usize, side: &'static str) -> Result<&'p [u8], AttendError> {
    page.ok_or(AttendError::Missing { page: number, side })
}

/// Takes everything outside `seen` out of the softmax.
fn mask(scores: &mut [f32], seen: Range<usize>) {
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end.max(seen.start)..].fill(f32::NEG_INFINITY);
}
