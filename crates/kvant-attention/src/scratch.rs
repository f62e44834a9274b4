//! What a thread keeps between tasks, and the loop over pages that uses it.

use crate::aligned::Aligned;
use crate::block::{Block, Scored, SegmentPages};
use crate::kernel::{Kernels, SoftmaxWeights};
use crate::partial::Partial;
use crate::plan::SEGMENT;
use kvant_cache::{AttendError, SideCodecs};
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
    /// (heads, channels).
    rows: Vec<f32>,
    /// Queries for each side that scores read.
    queries: [Prepared; 2],
    /// (pages, heads, tokens of a page).
    scores: Aligned,
    /// (heads, tokens of a page): what the second side adds to a page of scores.
    added: Aligned,
    weights: Aligned,
    tops: Vec<f32>,
    alive: Vec<bool>,
    /// (heads): largest scores of the sinks.
    references: Vec<f32>,
}

/// Queries as the codecs of one side want them.
#[derive(Default)]
struct Prepared {
    encoded: Query,
    exact: Query,
    sinks: Query,
}

impl Prepared {
    fn encoded(&self, codecs: &SideCodecs) -> &Query {
        if codecs.is_exact() { &self.exact } else { &self.encoded }
    }
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

    /// Merges one segment into the running sums.
    pub(crate) fn process_segment(
        &mut self,
        block: &Block<'_>,
        segment: usize,
        kernels: &Kernels,
    ) -> Result<(), AttendError> {
        self.segment.reset(block.heads(), block.call.shape.value_dim);
        self.pages.segment(block, segment, kernels, &mut self.segment)?;
        self.running.merge(&self.segment, &mut self.factors, kernels);
        Ok(())
    }

    /// Divides the running sums by their denominator, into the row that `out` gives for each query head of the block.
    pub(crate) fn finish<'o>(
        &mut self,
        block: &Block<'_>,
        out: impl Fn(usize) -> &'o mut [f32],
    ) -> Result<(), AttendError> {
        let (call, heads) = (block.call, block.heads());
        let dim = call.shape.value_dim;
        self.finished.clear();
        self.finished.resize(heads * dim, 0.0);
        if self.running.has_encoded {
            block.value.codecs().codec().finish(&self.running.encoded, &mut self.finished)?;
        }
        for (head, encoded) in self.finished.chunks_exact(dim).enumerate() {
            let (mut denominator, mut shrink) = (self.running.denominator(head), 1.0);
            if let Some(logits) = call.scoring.sink_logits {
                let logit = logits[block.head * call.group + head % call.group] * std::f32::consts::LOG2_E;
                let top = self.running.maxima()[head];
                let larger = top.max(logit);
                shrink = (top - larger).exp2();
                denominator = denominator * shrink + (logit - larger).exp2();
            }
            let factor = shrink / denominator;
            for ((x, encoded), exact) in out(head).iter_mut().zip(encoded).zip(self.running.exact.sums(head))
            {
                // Adding zero makes a negative zero positive: which of the two it was could depend on the chunks.
                *x = (encoded + exact) * factor + 0.0;
            }
        }
        Ok(())
    }
}

impl Pages {
    fn prepare(&mut self, block: &Block<'_>) -> Result<(), AttendError> {
        for (index, Scored { store, channels, encoded, .. }) in block.scored().enumerate() {
            let codecs = store.codecs();
            self.gather(block, block.call.queries.own, channels.clone());
            codecs.exact().prepare(&self.rows, &mut self.queries[index].exact)?;
            if !codecs.is_exact() && encoded > 0 {
                codecs.codec().prepare(&self.rows, &mut self.queries[index].encoded)?;
            }
            if let Some(queries) = block.queries_at_sinks() {
                self.gather(block, queries, channels);
                codecs.sinks().prepare(&self.rows, &mut self.queries[index].sinks)?;
            }
        }
        Ok(())
    }

    /// The block's queries side by side, scaled, so that scores need no scaling; in units of log₂ unless a soft cap
    /// has to see them first.
    fn gather(&mut self, block: &Block<'_>, queries: &[f32], channels: Range<usize>) {
        let call = block.call;
        let unit = if call.scoring.soft_cap.is_some() { 1.0 } else { std::f32::consts::LOG2_E };
        let factor = call.scoring.scale * unit;
        let dim = call.shape.query_dim;
        self.rows.clear();
        for row in block.rows() {
            let at = (row * call.heads + block.head * call.group) * dim;
            for query in queries[at..at + call.group * dim].chunks_exact(dim) {
                self.rows.extend(query[channels.clone()].iter().map(|q| q * factor));
            }
        }
    }

    /// The sinks' part; its maxima are what every segment of the block starts from.
    fn sinks(&mut self, block: &Block<'_>, kernels: &Kernels, into: &mut Partial) -> Result<(), AttendError> {
        let heads = block.heads();
        if let (true, Some(values)) = (block.sees_sinks(), block.value.sinks()) {
            let tokens = block.value.codecs().sinks().page_tokens();
            let size = heads * tokens;
            for (index, Scored { store, name, .. }) in block.scored().enumerate() {
                let Prepared { sinks, exact, .. } = &self.queries[index];
                let query = if block.queries_at_sinks().is_some() { sinks } else { exact };
                let page = held(block, store.sinks(), 0, name)?;
                let scores = if index == 0 { &mut self.scores } else { &mut self.added };
                store.codecs().sinks().scores(query, page, scores.at_least(size))?;
                if index > 0 {
                    add(&mut self.scores[..size], &self.added[..size]);
                }
            }
            let scores = &mut self.scores[..size];
            for (head, scores) in scores.chunks_exact_mut(tokens).enumerate() {
                mask(scores, block.seen_sinks(head));
            }
            self.tops.clear();
            self.tops.resize(1, 0.0);
            self.alive.clear();
            self.alive.resize(1, false);
            let work = SoftmaxWeights {
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
            unsafe { (kernels.softmax_weights)(work) };
            block.value.codecs().sinks().accumulate(&self.scores[..size], values, &mut into.exact)?;
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
        let stretch = block.segment_pages(segment);
        self.score(block, &stretch)?;
        self.softmax_weights(block, &stretch, kernels, into);
        self.accumulate(block, &stretch, into)
    }

    fn score(&mut self, block: &Block<'_>, stretch: &SegmentPages) -> Result<(), AttendError> {
        let (heads, tokens) = (block.heads(), block.key_tokens());
        let needed = block.needed(tokens);
        let size = heads * tokens;
        let scores = self.scores.at_least(heads * SEGMENT);
        for (index, Scored { store, encoded, name, .. }) in block.scored().enumerate() {
            let (codecs, query) = (store.codecs(), &self.queries[index]);
            for (page, scores) in stretch.key_pages.clone().zip(scores.chunks_exact_mut(size)) {
                let added = if index == 0 { None } else { Some(self.added.at_least(size)) };
                if !needed.contains(&page) {
                    scores.fill(f32::NEG_INFINITY);
                    continue;
                }
                let (sums, into) = match added {
                    None => (None, scores),
                    Some(added) => (Some(scores), added),
                };
                if page < encoded {
                    let bytes = held(block, store.encoded(page), page, name)?;
                    let next = if page + 1 < encoded.min(stretch.key_pages.end) {
                        store.encoded(page + 1)
                    } else {
                        block.value.encoded(stretch.value_pages.start)
                    };
                    let query = query.encoded(codecs);
                    codecs.codec().scores_ahead(query, bytes, next.unwrap_or_default(), into)?;
                } else {
                    codecs.exact().scores(&query.exact, held(block, store.exact(page), page, name)?, into)?;
                }
                if let Some(sums) = sums {
                    add(sums, into);
                }
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

    fn softmax_weights(
        &mut self,
        block: &Block<'_>,
        stretch: &SegmentPages,
        kernels: &Kernels,
        into: &mut Partial,
    ) {
        let heads = block.heads();
        let (key_tokens, value_tokens) = (block.key_tokens(), block.value.codecs().page_tokens());
        self.tops.clear();
        self.tops.resize(stretch.key_pages.len(), 0.0);
        self.alive.clear();
        self.alive.resize(stretch.value_pages.len(), false);
        let size = heads * stretch.positions.len();
        let apart = key_tokens != value_tokens;
        into.maxima().copy_from_slice(&self.references);
        let work = SoftmaxWeights {
            heads,
            scores: &mut self.scores[..size],
            key_tokens,
            weights: apart.then(|| self.weights.at_least(size)),
            value_tokens,
            soft_cap: block.call.scoring.soft_cap,
            floor: block.floor(),
            maxima: into.maxima(),
            tops: &mut self.tops,
            alive: &mut self.alive,
        };
        // SAFETY: the table belongs to this CPU; scores and weights hold all positions of the stretch for every head.
        unsafe { (kernels.softmax_weights)(work) };
    }

    fn accumulate(
        &mut self,
        block: &Block<'_>,
        stretch: &SegmentPages,
        into: &mut Partial,
    ) -> Result<(), AttendError> {
        let codecs = block.value.codecs();
        let (heads, tokens) = (block.heads(), codecs.page_tokens());
        let apart = block.key_tokens() != tokens;
        let weights = if apart { &self.weights } else { &self.scores };
        let needed = block.needed(tokens);
        for (i, page) in stretch.value_pages.clone().enumerate() {
            if !self.alive[i] || !needed.contains(&page) {
                continue;
            }
            let weights = &weights[i * heads * tokens..(i + 1) * heads * tokens];
            if page < block.encoded_values {
                let bytes = held(block, block.value.encoded(page), page, "values")?;
                let next = if page + 1 < block.encoded_values.min(stretch.value_pages.end) {
                    block.value.encoded(page + 1).unwrap_or_default()
                } else {
                    block.next_keys(stretch)
                };
                codecs.codec().accumulate_ahead(weights, bytes, next, &mut into.encoded)?;
                into.has_encoded = true;
            } else {
                let rows = held(block, block.value.exact(page), page, "values")?;
                codecs.exact().accumulate(weights, rows, &mut into.exact)?;
                into.has_exact = true;
            }
        }
        Ok(())
    }
}

/// A page that a block needs.
fn held<'p>(
    block: &Block<'_>,
    page: Option<&'p [u8]>,
    number: usize,
    side: &'static str,
) -> Result<&'p [u8], AttendError> {
    let missing = || AttendError::Missing { page: number, side, head: block.head, layer: block.layer };
    page.ok_or_else(missing)
}

fn add(sums: &mut [f32], others: &[f32]) {
    sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
}

/// Takes everything outside `seen` out of the softmax.
fn mask(scores: &mut [f32], seen: Range<usize>) {
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end.max(seen.start)..].fill(f32::NEG_INFINITY);
}
