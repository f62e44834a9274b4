//! What a step touches: every page of keys once for all query heads of its group, pages of values at most once, pages of
//! latents once for scores and once for sums, and no page is ever decoded.

use crate::latent::Latents;
use crate::model::{Activations, Run};
use kvant_attention::Scoring;
use kvant_cache::{CacheLayout, ExactWindow, KvShape, LatentShape, Policy, SideCodecs, Slots};
use kvant_codec::{Accumulator, CodecError, Element, PageCodec, Query, Side, Tier};
use kvant_threads::Pool;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes and pages that went through a codec.
#[derive(Default)]
struct Tally {
    encoded: AtomicUsize,
    decoded: AtomicUsize,
    scored: AtomicUsize,
    summed: AtomicUsize,
    prepared: AtomicUsize,
}

impl Tally {
    /// Bytes encoded, decoded, scored and summed up, and queries prepared.
    fn counts(&self) -> [usize; 5] {
        [&self.encoded, &self.decoded, &self.scored, &self.summed, &self.prepared]
            .map(|count| count.load(Ordering::Relaxed))
    }
}

/// A codec that counts its calls.
struct Counted {
    inner: Box<dyn PageCodec>,
    tally: Arc<Tally>,
}

impl PageCodec for Counted {
    as_inner!();
    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        self.tally.encoded.fetch_add(page.len(), Ordering::Relaxed);
        self.inner.encode(rows, page)
    }
    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        self.tally.decoded.fetch_add(page.len(), Ordering::Relaxed);
        self.inner.decode(page, rows)
    }
    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        self.tally.prepared.fetch_add(1, Ordering::Relaxed);
        self.inner.prepare(queries, query)
    }
    fn scores_ahead(
        &self,
        q: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        self.tally.scored.fetch_add(page.len(), Ordering::Relaxed);
        self.inner.scores_ahead(q, page, next, scores)
    }
    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        self.tally.summed.fetch_add(page.len(), Ordering::Relaxed);
        self.inner.accumulate_ahead(weights, page, next, sums)
    }
}

#[test]
fn a_step_reads_every_page_once_for_its_group_and_decodes_none() {
    Pool::new(2).install(read_and_step);
}

fn read_and_step() {
    let tier = Tier::available().last().unwrap();
    let (kv_heads, dim, pages) = (2, 64, 12);
    let tokens = 4 + 64 * pages + 5;
    for (spec, group) in [("int4", 1), ("int4", 4), ("int8", 3), ("k8v4", 8)] {
        let policy: Policy = spec.parse().unwrap();
        let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
        let shape = KvShape { kv_heads, key_dim: dim, value_dim: dim, window: None };
        let layout =
            CacheLayout::build(ExactWindow::default(), &Slots::uniform(1, shape), |_, head, side| {
                let inner =
                    policy.spec(0, head, side).build_with(side, dim, &Default::default(), tier).unwrap();
                let tally = Arc::clone(&tallies[usize::from(side == Side::Value)]);
                Ok(Arc::new(SideCodecs::custom(Arc::new(Counted { inner, tally }), Element::F16, tier)?))
            });
        let layout = Arc::new(layout.unwrap());
        let a = Activations::new(tokens, kv_heads, group, dim, dim, 5);
        let mut run = Run::new(&layout, tier, &a, Scoring::new(0.05));
        run.read(tokens - 1, &[200]);
        let sizes = [Side::Key, Side::Value].map(|side| {
            kv_heads * pages * layout.slots()[0].heads()[0].side(side).unwrap().codec().page_bytes()
        });
        let before = tallies.each_ref().map(|tally| tally.counts());
        assert_eq!(before[0][0], sizes[0], "{spec}: every page of keys was encoded once");
        assert_eq!(before[1][0], sizes[1], "{spec}: every page of values was encoded once");

        run.chunk(1);
        let [keys, values] = [0, 1].map(|side| {
            let after = tallies[side].counts();
            std::array::from_fn::<usize, 5, _>(|i| after[i] - before[side][i])
        });
        let [_, _, _, _, prepared] = keys;
        assert_eq!(keys[..4], [0, 0, sizes[0], 0], "{spec}, group {group}: keys");
        assert_eq!(values[..4], [0, 0, 0, sizes[1]], "{spec}, group {group}: values");
        assert!(
            prepared <= kv_heads * kvant_threads::threads() * 4,
            "{spec}: {prepared} preparations of a query"
        );
        assert_eq!(before[0][1] + before[1][1], 0, "{spec}: prefill decodes no page either");
    }
}

/// A latent is stored once: its bytes are what scores and sums read, for all heads of an MLA layer at once.
#[test]
fn a_step_over_latents_scores_and_sums_up_the_same_bytes_and_decodes_none() {
    let tier = Tier::available().last().unwrap();
    for (spec, latent_dim, rope_dim, group, pages) in
        [("int4", 512, 64, 16, 3), ("int8", 64, 32, 20, 9), ("k8v4", 48, 16, 128, 2), ("int4", 64, 0, 1, 9)]
    {
        let tokens = 4 + 64 * pages + 5;
        let policy: Policy = spec.parse().unwrap();
        let shape = LatentShape { kv_heads: 1, latent_dim, rope_dim, window: None };
        let latents = Latents::new(tokens, shape, group, 5);
        let counts = |end: usize| {
            let tallies = [Arc::new(Tally::default()), Arc::new(Tally::default())];
            let layout = CacheLayout::build(ExactWindow::default(), &latents.slots(), |_, head, side| {
                let spec = policy.spec(0, head, side);
                let inner =
                    spec.build_with(side, shape.stored().dim(side), &Default::default(), tier).unwrap();
                let tally = Arc::clone(&tallies[usize::from(side == Side::Value)]);
                Ok(Arc::new(SideCodecs::custom(Arc::new(Counted { inner, tally }), Element::F16, tier)?))
            });
            let layout = Arc::new(layout.unwrap());
            latents.run_to(end, &layout, tier, &Scoring::new(0.05), &[tokens - 1]);
            let bytes = [Side::Key, Side::Value].map(|side| {
                let codecs = layout.slots()[0].heads()[0].side(side);
                pages * codecs.map_or(0, |codecs| codecs.codec().page_bytes())
            });
            (tallies.map(|tally| tally.counts()), bytes)
        };
        let ((before, bytes), (after, _)) = (counts(tokens - 1), counts(tokens));
        let [keys, values] =
            [0, 1].map(|side| std::array::from_fn::<usize, 4, _>(|i| after[side][i] - before[side][i]));
        assert_eq!(keys, [0, 0, bytes[0], 0], "{spec}, {shape:?}: rotated parts");
        assert_eq!(values, [0, 0, bytes[1], bytes[1]], "{spec}, {shape:?}: latents");
        assert_eq!([after[0][0], after[1][0]], bytes, "{spec}: every page was encoded once");
        assert_eq!(after[0][1] + after[1][1], 0, "{spec}: prefill decodes no page either");
    }
}
