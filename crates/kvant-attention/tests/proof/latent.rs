//! Latents: one stored vector that scores and sums both read, and a rotated part that only scores read; against the
//! definition in f64, which knows them as keys and values.

use crate::distort::Distort;
use crate::model::{Activations, at_most, bits, taken};
use crate::oracle;
use kvant_attention::{Attention, Queries, Scoring};
use kvant_cache::{
    Arena, CacheLayout, ExactWindow, KvShape, LatentShape, LayoutError, Policy, Sequence, SideCodecs, Slots,
};
use kvant_codec::{Accumulator, CodecError, Element, PageCodec, Query, Side, Tier};
use kvant_threads::Pool;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// Made-up latents, and the same as keys and values: a key is the rotated part and the latent.
pub struct Latents {
    pub shape: LatentShape,
    group: usize,
    whole: Activations,
    /// (tokens, kv heads, rope_dim).
    rotated: Vec<f32>,
}

impl Latents {
    pub fn new(tokens: usize, shape: LatentShape, group: usize, seed: u64) -> Latents {
        let LatentShape { kv_heads, latent_dim, rope_dim, .. } = shape;
        let mut whole = Activations::new(tokens, kv_heads, group, rope_dim + latent_dim, latent_dim, seed);
        let heads = whole.keys.chunks_exact_mut(rope_dim + latent_dim);
        for (key, value) in heads.zip(whole.values.chunks_exact(latent_dim)) {
            key[rope_dim..].copy_from_slice(value);
        }
        let rotated = whole.keys.chunks_exact(rope_dim + latent_dim);
        let rotated = rotated.flat_map(|key| key[..rope_dim].to_vec()).collect();
        Latents { shape, group, whole, rotated }
    }

    pub fn slots(&self) -> Slots {
        let mut slots = Slots::new();
        slots.latent(0, self.shape);
        slots
    }

    fn run(
        &self,
        layout: &Arc<CacheLayout>,
        tier: Tier,
        scoring: &Scoring<'_>,
        chunks: &[usize],
    ) -> Vec<f32> {
        self.run_to(self.whole.tokens, layout, tier, scoring, chunks)
    }

    /// What the first tokens attend to, (tokens, heads, latent_dim), read in chunks of these sizes over and over.
    pub fn run_to(
        &self,
        end: usize,
        layout: &Arc<CacheLayout>,
        tier: Tier,
        scoring: &Scoring<'_>,
        chunks: &[usize],
    ) -> Vec<f32> {
        let (mut sequence, mut attention) =
            (Sequence::new(Arc::clone(layout), Arena::new()), Attention::with_tier(tier));
        let LatentShape { kv_heads, latent_dim, rope_dim, .. } = self.shape;
        let (slot, heads) = (layout.slot_list().kv(0).unwrap(), kv_heads * self.group);
        let mut all = Vec::new();
        for size in chunks.iter().cycle() {
            let (start, tokens) = (sequence.len(), (*size).min(end - sequence.len()));
            if tokens == 0 {
                break;
            }
            let part =
                |numbers: &[f32], width: usize| numbers[start * width..(start + tokens) * width].to_vec();
            sequence.reserve(tokens).unwrap();
            let latents = part(&self.whole.values, kv_heads * latent_dim);
            sequence.append(slot, &part(&self.rotated, kv_heads * rope_dim), &latents).unwrap();
            let own = part(&self.whole.queries, heads * (rope_dim + latent_dim));
            let at_sinks = self.whole.at_sinks.as_ref().map(|all| part(all, heads * (rope_dim + latent_dim)));
            let queries = Queries { own: &own, at_sinks: at_sinks.as_deref() };
            let mut out = vec![f32::NAN; tokens * heads * latent_dim];
            attention.attend(&sequence, slot, queries, scoring, &mut out).unwrap();
            sequence.advance(tokens).unwrap();
            all.extend(out);
        }
        all
    }

    /// What the definition says of the rows as they are read.
    fn expected(&self, layout: &CacheLayout, scoring: &Scoring<'_>) -> Vec<f64> {
        oracle::attend_latents(layout, &self.whole, self.shape, scoring)
    }
}

fn distorting(rule: ExactWindow, latents: &Latents, page: usize, tier: Tier) -> Arc<CacheLayout> {
    let shape = latents.shape.stored();
    let layout = CacheLayout::build(rule, &latents.slots(), |_, _, side| {
        let codec = Distort::new(side, shape.dim(side), page, tier);
        Ok(Arc::new(SideCodecs::custom(Arc::new(codec), Element::F32, tier)?))
    });
    Arc::new(layout.unwrap())
}

proptest! {
    #![proptest_config(at_most(48))]

    /// What a query reads of each part, under any rule.
    #[test]
    fn a_query_reads_both_parts_as_the_rule_says(
        tokens in 1usize..500,
        (kv_heads, group) in (1usize..3, 1usize..5),
        (latent_dim, rope_dim) in (1usize..24, 0usize..9),
        page in prop::sample::select(vec![32usize, 64, 128]),
        (sinks, recent) in (0usize..9, prop_oneof![Just(0usize), 1usize..150]),
        streaming in prop::option::weighted(0.3, 1usize..200),
        window in prop::option::weighted(0.4, 1usize..300),
        chunks in prop::collection::vec(1usize..200, 1..4),
        soft_cap in prop::option::weighted(0.3, 0.5f32..30.0),
        seed in any::<u64>(),
    ) {
        let shape = LatentShape { kv_heads, latent_dim, rope_dim, window };
        let mut latents = Latents::new(tokens, shape, group, seed);
        latents.whole.at_sinks = streaming.map(|_| latents.whole.queries.iter().rev().copied().collect());
        let rule = ExactWindow { sinks, recent, streaming, ..ExactWindow::default() };
        let tiers: Vec<Tier> = Tier::available().collect();
        let tier = tiers[seed as usize % tiers.len()];
        let layout = distorting(rule, &latents, page, tier);
        let logits: Vec<f32> = (0..kv_heads * group).map(|i| i as f32 - 2.0).collect();
        let scoring = Scoring { soft_cap, sink_logits: (seed % 2 == 0).then_some(&logits), ..Scoring::new(0.8) };
        let out = latents.run(&layout, tier, &scoring, &chunks);
        let far = oracle::distance(&out, &latents.expected(&layout, &scoring));
        prop_assert!(far < 5e-5, "{far} off");
    }
}

const POLICIES: [(&str, f64); 6] = [
    ("f32", 1e-5),
    ("f16", 1e-5),
    ("int8", 2e-3),
    ("int4", 6e-2),
    ("k=f16,v=rot4g32;recent=70", 6e-2),
    ("k=ch8:p128,v=tq3:p128;sinks=0", 6e-2),
];

fn layout(policy: &str, latents: &Latents, tier: Tier) -> Arc<CacheLayout> {
    let policy: Policy = policy.parse().unwrap();
    Arc::new(CacheLayout::with_tier(&policy, &latents.slots(), tier).unwrap())
}

/// Shapes of MLA (one head, a small rotated part) and of Gemma 4's global layers (a quarter is rotated).
#[test]
fn real_codecs_attend_as_their_decoded_pages_do_and_nothing_changes_a_bit() {
    // The last but one is long enough that decoding shares segments between threads, the last has the heads of DeepSeek V3.
    let shapes = [
        (1, 512, 64, 8, 140),
        (2, 64, 16, 4, 210),
        (1, 96, 0, 3, 210),
        (2, 40, 2, 1, 210),
        (1, 48, 16, 16, 131),
        (1, 64, 32, 20, 132),
        (1, 8, 4, 1, 1200),
        (1, 64, 64, 128, 72),
    ];
    for (turn, (kv_heads, latent_dim, rope_dim, group, tokens)) in shapes.into_iter().enumerate() {
        for (policy, bound) in POLICIES.into_iter().filter(|_| taken(turn)) {
            let window = (turn == 1).then_some(90);
            let shape = LatentShape { kv_heads, latent_dim, rope_dim, window };
            let latents = Latents::new(tokens, shape, group, turn as u64 + 3);
            let scoring = Scoring::new(0.7);
            let tier = Tier::available().last().unwrap();
            let layout = layout(policy, &latents, tier);
            let whole = latents.run(&layout, tier, &scoring, &[tokens]);
            let far = oracle::row_distance(&whole, &latents.expected(&layout, &scoring), latent_dim);
            assert!(far < bound, "{policy}, {shape:?}: {far}");
            // One token, all but the last of a page, and the other way round.
            for (threads, chunks) in [
                (1, vec![tokens - 70, 1, 64]),
                (2, vec![tokens]),
                (3, vec![tokens - 1, 1]),
                (2, vec![1, 66, 1, 63]),
            ] {
                let cut = Pool::new(threads).install(|| latents.run(&layout, tier, &scoring, &chunks));
                assert_eq!(bits(&cut), bits(&whole), "{policy}, {shape:?}, {threads} threads, {chunks:?}");
            }
        }
    }
}

/// Every byte of both parts counts: it changes what the last token gets.
#[test]
fn a_flipped_byte_of_a_page_changes_the_answer() {
    let shape = LatentShape { kv_heads: 1, latent_dim: 16, rope_dim: 8, window: None };
    let latents = Latents::new(150, shape, 1, 4);
    let policy: Policy = "int4".parse().unwrap();
    let tier = Tier::available().last().unwrap();
    let answer = |wrong: Option<(Side, usize)>| {
        let layout = CacheLayout::build(ExactWindow::default(), &latents.slots(), |_, _, side| {
            let dim = shape.stored().dim(side);
            let codec = policy.base.side(side).build_with(side, dim, &Default::default(), tier).unwrap();
            let codec: Arc<dyn PageCodec> = match wrong {
                Some((other, byte)) if other == side => Arc::new(Distort::bit(codec, byte)),
                _ => Arc::from(codec),
            };
            Ok(Arc::new(SideCodecs::custom(codec, Element::F16, tier)?))
        });
        let out = latents.run(&Arc::new(layout.unwrap()), tier, &Scoring::new(1.0), &[150]);
        bits(&out[149 * 16..])
    };
    let right = answer(None);
    for side in [Side::Key, Side::Value] {
        let bytes = policy.base.side(side).build(side, shape.stored().dim(side)).unwrap().page_bytes();
        let tried: Vec<usize> = (0..bytes).step_by(if taken(1) { 1 } else { 29 }).collect();
        let changed = tried.iter().filter(|byte| answer(Some((side, **byte))) != right).count();
        assert!(changed * 10 >= tried.len() * 9, "{side:?}: {changed} of {} bytes matter", tried.len());
    }
}

/// What the verbs of a codec gave.
#[derive(Default)]
struct Given {
    scores: Mutex<Vec<u32>>,
    sums: Mutex<Vec<u32>>,
}

/// A codec around another that writes down scores and sums.
struct Witness {
    inner: Distort,
    given: Arc<Given>,
}

impl PageCodec for Witness {
    as_inner!();
    fn encode(&self, rows: &[f32], page: &mut [u8]) -> Result<(), CodecError> {
        self.inner.encode(rows, page)
    }
    fn decode(&self, page: &[u8], rows: &mut [f32]) -> Result<(), CodecError> {
        self.inner.decode(page, rows)
    }
    fn prepare(&self, queries: &[f32], query: &mut Query) -> Result<(), CodecError> {
        self.inner.prepare(queries, query)
    }
    fn scores_ahead(
        &self,
        q: &Query,
        page: &[u8],
        next: &[u8],
        scores: &mut [f32],
    ) -> Result<(), CodecError> {
        self.inner.scores_ahead(q, page, next, scores)?;
        self.given.scores.lock().unwrap().extend(bits(scores));
        Ok(())
    }
    fn accumulate_ahead(
        &self,
        weights: &[f32],
        page: &[u8],
        next: &[u8],
        sums: &mut Accumulator,
    ) -> Result<(), CodecError> {
        // Weights that do not depend on the scores: what changes is the page.
        self.inner.accumulate_ahead(&vec![0.25; weights.len()], page, next, sums)?;
        (0..sums.heads()).for_each(|head| self.given.sums.lock().unwrap().extend(bits(sums.sums(head))));
        Ok(())
    }
}

/// Scores and sums read the same bytes: one that is stored wrongly is seen in both.
#[test]
fn a_wrong_byte_of_a_latent_is_seen_by_scores_and_by_sums() {
    let shape = LatentShape { kv_heads: 1, latent_dim: 64, rope_dim: 16, window: None };
    let latents = Latents::new(69, shape, 2, 4);
    let tier = Tier::available().last().unwrap();
    for policy in ["int4", "int8"] {
        let policy: Policy = policy.parse().unwrap();
        let run = |byte: Option<usize>| {
            let given = Arc::new(Given::default());
            let layout = CacheLayout::build(ExactWindow::default(), &latents.slots(), |_, _, side| {
                let dim = shape.stored().dim(side);
                let codec = policy.base.side(side).build_with(side, dim, &Default::default(), tier).unwrap();
                let codec: Arc<dyn PageCodec> = if side == Side::Value {
                    let inner = Distort::high_bit(codec, byte);
                    Arc::new(Witness { inner, given: Arc::clone(&given) })
                } else {
                    Arc::from(codec)
                };
                Ok(Arc::new(SideCodecs::custom(codec, Element::F16, tier)?))
            });
            let layout = Arc::new(layout.unwrap());
            latents.run(&layout, tier, &Scoring::new(1.0), &[69]);
            let (scores, sums) = (given.scores.lock().unwrap().clone(), given.sums.lock().unwrap().clone());
            assert!(!scores.is_empty() && !sums.is_empty(), "one page is read as bytes");
            (scores, sums)
        };
        let right = run(None);
        let bytes = policy.base.value.build(Side::Value, 64).unwrap().page_bytes();
        // The highest bits of codes and of scales, and their lower bytes.
        for byte in (1..bytes).step_by(if taken(1) { 37 } else { 499 }) {
            let wrong = run(Some(byte));
            assert!(wrong.0 != right.0 && wrong.1 != right.1, "{policy}, byte {byte} of {bytes}");
        }
    }
}

#[test]
fn what_runs_is_said_and_pages_of_different_sizes_are_refused() {
    let shape = LatentShape { kv_heads: 1, latent_dim: 64, rope_dim: 16, window: None };
    let latents = Latents::new(1, shape, 1, 1);
    let tier = Tier::available().last().unwrap();
    let kernels = layout("int4", &latents, tier).slots()[0].kernels().unwrap();
    let value = "int4".parse::<Policy>().unwrap().base.value;
    let codec = value.build_with(Side::Value, 64, &Default::default(), tier).unwrap();
    assert_eq!(kernels.kernels, [codec.kernels().scores, codec.kernels().accumulate]);
    for policy in ["int4", "int8", "k8v4", "f16", "tq3", "kivi4:p32"] {
        for tier in Tier::available() {
            let kernels = layout(policy, &latents, tier).slots()[0].kernels().unwrap();
            assert_eq!(kernels.kernels, [tier.name(); 2], "{policy}: nothing is decoded");
        }
    }
    assert_eq!(layout("polar4", &latents, tier).slots()[0].kernels().unwrap().kernels, ["decode"; 2]);
    let policy: Policy = "k=ch4:p128,v=rot4g32:p32".parse().unwrap();
    let error = CacheLayout::with_tier(&policy, &latents.slots(), tier).err().unwrap();
    assert_eq!(error, LayoutError::LatentPages { layer: 0, key: 128, value: 32 });
    // SRFT needs an even number of channels; the rotated part stays in f16 then, and that is said.
    let odd = Latents::new(1, LatentShape { rope_dim: 3, ..shape }, 1, 1);
    let said = |latents: &Latents| layout("srft8", latents, tier).slots()[0].kernels().unwrap();
    assert_eq!((said(&odd).keeps_rotated, said(&odd).bits[0]), (true, 16.0));
    assert!(!said(&latents).keeps_rotated && said(&latents).bits[0] < 12.0);
    let keys = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: 3, value_dim: 8, window: None });
    assert!(
        CacheLayout::with_tier(&"srft8".parse().unwrap(), &keys, tier).is_err(),
        "keys are never replaced"
    );
    // A slot for keys and values has both.
    let none = Slots::uniform(1, KvShape { kv_heads: 1, key_dim: 0, value_dim: 8, window: None });
    assert!(CacheLayout::with_tier(&"f16".parse().unwrap(), &none, tier).is_err());
}
