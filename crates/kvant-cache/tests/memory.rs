//! What a layout foretells about memory holds.

use kvant_cache::{Arena, ArenaError, CacheLayout, KvShape, Policy, Sequence, Slots};
use proptest::prelude::*;
use std::sync::Arc;

const POLICIES: [&str; 5] =
    ["int4", "f16;sinks=0", "k=ch4:p128,v=rot4g32:p32", "int4;recent=150", "f32:p32;sinks=9;recent=40"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A sequence never takes more than was foretold, and a long one not much less.
    #[test]
    fn a_sequence_stays_within_what_was_foretold(
        policy in prop::sample::select(&POLICIES),
        window in prop::sample::select(vec![None, Some(33), Some(150)]),
        len in 0_usize..900,
        chunk in 1_usize..300,
    ) {
        let policy: Policy = policy.parse().unwrap();
        let shape = |window| KvShape { kv_heads: 1, key_dim: 16, value_dim: 32, window };
        let slots: Slots = [shape(None), shape(window)].into_iter().collect();
        let layout = Arc::new(CacheLayout::new(&policy, &slots).unwrap());
        let foretold = layout.arena_bytes(len, chunk);
        let arena = Arena::with_cap(foretold);
        let mut sequence = Sequence::new(layout, arena.clone());
        let mut most = 0;
        while sequence.len() < len {
            let count = chunk.min(len - sequence.len());
            sequence.reserve(count).unwrap();
            most = most.max(arena.usage().used);
            for slot in slots.kv_slots() {
                sequence.append(slot, &vec![0.5; count * 16], &vec![0.5; count * 32]).unwrap();
            }
            most = most.max(arena.usage().used);
            sequence.advance(count).unwrap();
        }
        prop_assert!(most <= foretold);
        // Pages that are cut by chunks and windows count as whole ones: up to six of the largest, on each side.
        prop_assert!(foretold - most <= 4 * 6 * 128 * 32 * 2, "{foretold} foretold, {most} taken");
    }
}

/// Without a cap pages were taken one by one until the machine had no memory left.
#[test]
fn more_tokens_than_there_can_be_memory_for_are_refused_before_any_is_taken() {
    let slots = Slots::uniform(3, KvShape { kv_heads: 2, key_dim: 16, value_dim: 32, window: Some(70) });
    for policy in POLICIES {
        let layout = Arc::new(CacheLayout::new(&policy.parse::<Policy>().unwrap(), &slots).unwrap());
        let arena = Arena::new();
        let mut sequence = Sequence::new(layout, arena.clone());
        for tokens in [usize::MAX, usize::MAX - 2, 1 << 45] {
            let error = sequence.reserve(tokens).unwrap_err();
            assert!(matches!(error, ArenaError::Refused { .. }), "{error}");
            assert_eq!(arena.usage().reserved, 0, "{policy}: {tokens} tokens");
        }
    }
}
