//! What a query reads, under every rule: codecs that distort make every mistake large.

use crate::distort::Distort;
use crate::model::{Activations, Noise, Run, at_most, taken};
use crate::oracle;
use kvant_attention::Scoring;
use kvant_cache::{CacheLayout, ExactWindow, KvShape, Mode, SideCodecs, Slots};
use kvant_codec::{Element, Side, Tier};
use proptest::prelude::*;
use std::sync::Arc;

/// A layout of distorting codecs.
pub fn layout(
    rule: ExactWindow,
    a: &Activations,
    window: Option<usize>,
    pages: (usize, usize),
    tier: Tier,
) -> Arc<CacheLayout> {
    let shape = KvShape { kv_heads: a.kv_heads, key_dim: a.key_dim, value_dim: a.value_dim, window };
    let layout = CacheLayout::build(rule, &Slots::uniform(1, shape), |_, _, side| {
        let page = if side == Side::Key { pages.0 } else { pages.1 };
        let codec = Distort::new(side, shape.dim(side), page, tier);
        Ok(Arc::new(SideCodecs::custom(Arc::new(codec), Element::F32, tier)?))
    });
    Arc::new(layout.unwrap())
}

#[derive(Clone, Debug)]
struct Case {
    tokens: usize,
    heads: (usize, usize),
    dims: (usize, usize),
    pages: (usize, usize),
    rule: ExactWindow,
    window: Option<usize>,
    chunks: Vec<usize>,
    soft_cap: Option<f32>,
    logits: bool,
    scale: f32,
    seed: u64,
}

fn check(case: &Case, tier: Tier) -> Result<(), String> {
    let Case { tokens, heads, dims, pages, rule, window, seed, .. } = *case;
    let mut a = Activations::new(tokens, heads.0, heads.1, dims.0, dims.1, seed);
    a.at_sinks = rule.streaming.map(|_| a.queries.iter().rev().copied().collect());
    let layout = layout(rule, &a, window, pages, tier);
    let mut noise = Noise(seed + 1);
    let logits: Vec<f32> = (0..a.heads()).map(|_| 4.0 * noise.unit()).collect();
    let scoring = Scoring {
        soft_cap: case.soft_cap,
        sink_logits: case.logits.then_some(&logits),
        ..Scoring::new(case.scale)
    };
    let chunks = if rule.mode == Mode::Strict { vec![tokens] } else { case.chunks.clone() };
    let out = Run::new(&layout, tier, &a, scoring).read(tokens, &chunks);
    let far = oracle::distance(&out, &oracle::attend(&layout, &a, &scoring));
    if far < 3e-5 { Ok(()) } else { Err(format!("{tier}: {far} off in {case:?}")) }
}

fn rules() -> impl Strategy<Value = ExactWindow> {
    let modes = prop_oneof![3 => Just(Mode::Deployed), 1 => Just(Mode::Strict)];
    (0usize..9, prop_oneof![Just(0usize), 1usize..150], modes, prop::option::weighted(0.3, 1usize..200))
        .prop_map(|(sinks, recent, mode, streaming)| ExactWindow {
            sinks,
            recent: if mode == Mode::Strict { 0 } else { recent },
            mode,
            streaming,
        })
}

fn cases() -> impl Strategy<Value = Case> {
    let page = || prop::sample::select(vec![32usize, 64, 128]);
    let shapes = (1usize..3, 1usize..6, 1usize..24, 1usize..24);
    let sizes = prop::collection::vec(prop_oneof![1usize..8, 1usize..300], 1..4);
    let scorings =
        (prop::option::weighted(0.3, 0.5f32..30.0), any::<bool>(), prop_oneof![Just(1.0f32), -2.0f32..2.0]);
    (
        1usize..700,
        shapes,
        (page(), page()),
        rules(),
        prop::option::weighted(0.4, 1usize..300),
        sizes,
        scorings,
        any::<u64>(),
    )
        .prop_map(
            |(tokens, (kv, group, kd, vd), pages, rule, window, chunks, (soft_cap, logits, scale), seed)| {
                Case {
                    tokens,
                    heads: (kv, group),
                    dims: (kd, vd),
                    pages,
                    rule,
                    window,
                    chunks,
                    soft_cap,
                    logits,
                    scale,
                    seed,
                }
            },
        )
}

proptest! {
    #![proptest_config(at_most(96))]
    #[test]
    fn a_query_reads_what_the_rule_says(case in cases(), turn in 0usize..100) {
        let tiers: Vec<Tier> = Tier::available().collect();
        check(&case, tiers[turn % tiers.len()]).map_err(TestCaseError::fail)?;
    }
}

/// Lengths around every boundary: sinks, pages, segments.
#[test]
fn every_boundary_is_read_right() {
    let lengths = [1, 3, 4, 5, 67, 68, 69, 131, 132, 133, 515, 516, 517, 580, 1029];
    let tier = Tier::available().last().unwrap();
    for (turn, tokens) in lengths.into_iter().enumerate().filter(|(turn, _)| taken(*turn)) {
        for (mode, recent) in [(Mode::Deployed, 0), (Mode::Deployed, 64), (Mode::Strict, 0)] {
            let rule = ExactWindow { mode, recent, ..ExactWindow::default() };
            let case = Case {
                tokens,
                heads: (2, 3),
                dims: (16, 16),
                pages: (64, 64),
                rule,
                window: None,
                chunks: vec![tokens.div_ceil(1 + turn % 3)],
                soft_cap: None,
                logits: false,
                scale: 1.0,
                seed: tokens as u64,
            };
            check(&case, tier).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
