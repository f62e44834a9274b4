//! Forks, rollbacks and conversions: as if it had never been otherwise.

use crate::codecs::{POLICIES, layout};
use crate::distort::Distort;
use crate::model::{Activations, Run, at_most, bits, first_slot, taken};
use crate::visible;
use kvant_attention::Scoring;
use kvant_cache::{Arena, CacheLayout, ExactWindow, KvShape, SideCodecs, Slots};
use kvant_codec::{Element, KvSpec, PageCodec, Side, Tier};
use proptest::prelude::*;
use std::sync::Arc;

const SCORING: Scoring<'static> = Scoring { scale: 0.9, soft_cap: None, sink_logits: None };

fn tier() -> Tier {
    Tier::available().last().unwrap()
}

/// Policies whose rows stay exact for a while, beside those of all.
const RECENT: [(&str, f64); 3] =
    [("int4;recent=100", 0.0), ("k=ch4:p128,v=rot4g32:p32;recent=40", 0.0), ("f16;recent=70;sinks=9", 0.0)];

fn policies() -> Vec<(&'static str, f64)> {
    POLICIES.into_iter().chain(RECENT).collect()
}

proptest! {
    #![proptest_config(at_most(48))]

    /// Going back anywhere, reading again from where it says, and going on: the bits of a fresh run.
    #[test]
    fn a_rolled_back_sequence_equals_a_fresh_one(
        policy in prop::sample::select(policies()),
        window in prop::option::weighted(0.4, 1usize..200),
        (tokens, first, cut) in (2usize..500)
            .prop_flat_map(|n| (Just(n), 1..n))
            .prop_flat_map(|(n, first)| (Just(n), Just(first), prop_oneof![0..=first, first.saturating_sub(32)..=first])),
        size in 1usize..200,
        seed in any::<u64>(),
    ) {
        let a = Activations::new(tokens, 2, 2, 16, 16, seed);
        let layout = layout(policy.0, &a, window, tier());
        let fresh = Run::new(&layout, tier(), &a, SCORING).read(tokens, &[tokens]);
        let mut run = Run::new(&layout, tier(), &a, SCORING);
        run.read(first, &[size]);
        let from = run.sequence.truncate(cut).unwrap();
        prop_assert!(from <= cut && from == run.sequence.len());
        if policy.0 == "int4" && window.is_none() {
            // No further than the start of the page.
            prop_assert!(cut - from < 64);
        }
        if first - cut <= 32 {
            // A few tokens never cost more than a page, and nothing where recent rows are exact.
            let page = if policy.0.contains("recent") { 0 } else { 128 };
            prop_assert!(cut - from <= page, "{} back from {first}: {from} are left", first - cut);
        }
        let rest = run.read(tokens, &[size]);
        prop_assert_eq!(bits(&rest), bits(&fresh[from * a.heads() * 16..]));
    }

    /// A fork goes its own way: neither changes the other, and shared pages are counted once.
    #[test]
    fn forks_are_independent(tokens in 10usize..400, at in 1usize..10, seed in any::<u64>()) {
        let at = tokens * at / 10;
        let a = Activations::new(tokens, 2, 2, 16, 16, seed);
        let other = Activations::new(tokens, 2, 2, 16, 16, seed + 1);
        let layout = layout("int4", &a, None, tier());
        let fresh = Run::new(&layout, tier(), &a, SCORING).read(tokens, &[50]);
        let mut run = Run::new(&layout, tier(), &a, SCORING);
        run.read(at, &[33]);
        let before = run.sequence.store().usage();
        let fork = run.sequence.fork().unwrap();
        let pages: usize = [Side::Key, Side::Value].iter().map(|side| fork.side(first_slot(&layout), 0, *side).unwrap().pages().len()).sum();
        let after = run.sequence.store().usage();
        // Sinks and tails are copied, two sides of two heads each.
        prop_assert!(after.pages - before.pages <= 8);
        prop_assert!(after.pages < before.pages + 2 * pages + 9);
        let mut side_way = Run::new(&layout, tier(), &other, SCORING);
        side_way.sequence = fork;
        side_way.read(tokens, &[20]);
        prop_assert_eq!(bits(&run.read(tokens, &[7])), bits(&fresh[at * a.heads() * 16..]));
        let arena = run.sequence.store().clone();
        drop(run);
        drop(side_way);
        prop_assert_eq!((arena.usage().pages, arena.usage().used), (0, 0));
    }

    /// An f16 cache converted to a spec is what that spec would have kept from the start.
    #[test]
    fn a_converted_cache_equals_one_kept_that_way(
        policy in prop::sample::select(vec!["int4", "int8", "k=ch4:p128,v=tq3:p32", "int4;sinks=9", "int4;recent=70", "f16:p32"]),
        window in prop::option::weighted(0.4, 100usize..200),
        (tokens, at) in (2usize..500).prop_flat_map(|n| (Just(n), 1..n)),
        seed in any::<u64>(),
    ) {
        let a = Activations::new(tokens, 2, 2, 16, 16, seed);
        let (from, to) = (layout("f16", &a, window, tier()), layout(policy, &a, window, tier()));
        let fresh = Run::new(&to, tier(), &a, SCORING).read(tokens, &[tokens]);
        let mut run = Run::new(&from, tier(), &a, SCORING);
        run.read(at, &[50]);
        run.sequence = run.sequence.convert(to, Arena::new()).unwrap();
        let rest = run.read(tokens, &[40]);
        let fresh = &fresh[at * a.heads() * 16..];
        if window.is_none() {
            prop_assert_eq!(bits(&rest), bits(fresh));
        } else {
            // The first page may have lost rows that no query sees, but that its scales once saw.
            let wide: Vec<f64> = fresh.iter().map(|x| f64::from(*x)).collect();
            prop_assert!(crate::oracle::distance(&rest, &wide) < 0.6);
        }
    }
}

/// From any spec to any other: what is read afterwards is what the second makes of what the first had kept.
#[test]
fn a_cache_converts_between_specs_page_by_page() {
    let a = Activations::new(330, 2, 2, 48, 48, 21);
    let width = a.heads() * 48;
    for (turn, (from, _)) in POLICIES.into_iter().enumerate().filter(|(turn, _)| taken(*turn)) {
        for (to, _) in POLICIES.into_iter().skip(turn % 2).step_by(2) {
            let (old, new) = (layout(from, &a, None, tier()), layout(to, &a, None, tier()));
            let mut run = Run::new(&old, tier(), &a, SCORING);
            run.read(300, &[300]);
            let held = run.sequence.convert(new.clone(), Arena::new()).unwrap();
            // The same rows, as the first cache gives them back, through a fresh cache of the second kind.
            let exact = layout("f32", &a, None, tier());
            let mut kept = a.clone();
            let decoded = run.sequence.convert(exact, Arena::new()).unwrap();
            for head in 0..2 {
                for (side, rows) in [(Side::Key, &mut kept.keys), (Side::Value, &mut kept.values)] {
                    let store = decoded.side(first_slot(&new), head, side).unwrap();
                    let mut at = 0;
                    let mut take = |page: &[u8], codec: &dyn PageCodec, count: usize| {
                        let mut numbers = vec![0.0; codec.page_tokens() * 48]; // (tokens, dim)
                        codec.decode(page, &mut numbers).unwrap();
                        for row in numbers.chunks_exact(48).take(count) {
                            rows[(2 * at + head) * 48..][..48].copy_from_slice(row);
                            at += 1;
                        }
                    };
                    take(store.sinks().unwrap(), store.codecs().sinks(), 4);
                    (0..4).for_each(|page| take(store.encoded(page).unwrap(), store.codecs().codec(), 64));
                    take(store.exact(4).unwrap(), store.codecs().exact(), 40);
                    assert_eq!(at, 300);
                }
            }
            let mut fresh = Run::new(&new, tier(), &kept, SCORING);
            fresh.read(300, &[300]);
            run.sequence = held;
            let (ours, theirs) = (run.read(330, &[30]), fresh.read(330, &[30]));
            assert_eq!(ours.len(), 30 * width);
            assert_eq!(bits(&ours), bits(&theirs), "from {from} to {to}");
        }
    }
}

/// Windows keep what they can see, and little more.
#[test]
fn pages_that_have_left_the_window_are_dropped() {
    let a = Activations::new(3000, 1, 1, 16, 16, 3);
    let layout = layout("int4", &a, Some(256), tier());
    let mut run = Run::new(&layout, tier(), &a, SCORING);
    let mut most = 0;
    for _ in 0..30 {
        run.chunk(100);
        most = most.max(run.sequence.side(first_slot(&layout), 0, Side::Key).unwrap().pages().len());
    }
    assert!((4..=6).contains(&most), "{most} pages of 64 tokens for a window of 256");
}

/// Attention reads encoded pages from their bytes alone: another byte, another answer; other exact rows of the same
/// page, the same answer.
#[test]
fn only_encoded_bytes_are_read_of_encoded_pages() {
    let a = Activations::new(200, 1, 2, 16, 16, 9);
    let rule = ExactWindow::default();
    let layout = visible::layout(rule, &a, None, (64, 64), tier());
    let mut run = Run::new(&layout, tier(), &a, SCORING);
    let out = run.read(200, &[200]);
    // The distorting codec encodes something else than the rows it was given, so rows and bytes cannot be confused; the
    // same tokens without encoded pages give another answer.
    let exact = visible::layout(ExactWindow { recent: 1000, ..rule }, &a, None, (64, 64), tier());
    let other = Run::new(&exact, tier(), &a, SCORING).read(200, &[200]);
    let width = a.heads() * 16;
    assert_eq!(bits(&out[..68 * width]), bits(&other[..68 * width]), "the first page is exact in both");
    for (token, (one, two)) in out.chunks(width).zip(other.chunks(width)).enumerate().skip(68) {
        assert_ne!(bits(one), bits(two), "token {token} has read exact rows of a page that is encoded");
    }
}

/// Every byte of a page counts.
#[test]
fn a_flipped_byte_of_a_page_changes_the_answer() {
    let a = Activations::new(150, 1, 1, 16, 16, 4);
    let spec: KvSpec = "int4".parse().unwrap();
    let shape = KvShape { kv_heads: 1, key_dim: 16, value_dim: 16, window: None };
    // What the last token gets when one byte of every page of a side is wrong.
    let answer = |wrong: Option<(Side, usize)>| {
        let layout = CacheLayout::build(ExactWindow::default(), &Slots::uniform(1, shape), |_, _, side| {
            let codec = spec.side(side).build_with(side, 16, &Default::default(), tier()).unwrap();
            let codec: Arc<dyn PageCodec> = match wrong {
                Some((other, byte)) if other == side => Arc::new(Distort::bit(codec, byte)),
                _ => Arc::from(codec),
            };
            Ok(Arc::new(SideCodecs::custom(codec, Element::F16, tier())?))
        });
        let out = Run::new(&Arc::new(layout.unwrap()), tier(), &a, SCORING).read(150, &[150]);
        bits(&out[149 * 16..])
    };
    let right = answer(None);
    for side in [Side::Key, Side::Value] {
        let bytes = spec.side(side).build(side, 16).unwrap().page_bytes();
        let tried: Vec<usize> = (0..bytes).step_by(if taken(1) { 1 } else { 29 }).collect();
        let changed = tried.iter().filter(|byte| answer(Some((side, **byte))) != right).count();
        // A code of a token with hardly any weight may be lost in the rounding.
        assert!(changed * 10 >= tried.len() * 9, "{side:?}: {changed} of {} bytes matter", tried.len());
    }
}
