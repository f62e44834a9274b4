//! Checkpoints have a budget, and memory stays within what is estimated.

use crate::hybrid::{Hybrid, tokens};
use kvant_cache::{Arena, Sequence};
use proptest::prelude::*;
use std::sync::Arc;

/// Sinks 4, pages of 64: steps end at 4 + 64·n.
fn positions(sequence: &Sequence) -> Vec<usize> {
    sequence.checkpoints().collect()
}

#[test]
fn checkpoints_are_taken_at_the_last_steps_every_2048_tokens_and_where_marked() {
    let hybrid = Hybrid::new("int4", None, true);
    let all = tokens(5000);
    let mut sequence = hybrid.begin();
    sequence.set_checkpoint_budget(Some(1 << 20));
    sequence.mark(1000);
    hybrid.read(&mut sequence, &all, 4500, &[512]);
    // 964 is the last step before 1000; 2052 and 4100 are the first after 2048 and 4096.
    assert_eq!(positions(&sequence), [964, 2052, 4100, 4420, 4484]);
    // The end of a request: the last step is kept when others come.
    sequence.mark(4500);
    hybrid.read(&mut sequence, &all, 4900, &[1, 77]);
    assert_eq!(positions(&sequence), [964, 2052, 4100, 4484, 4804, 4868]);
    // Far back, the nearest one is where it goes on from; everything later is forgotten.
    assert_eq!(
        (sequence.restorable(4500), sequence.restorable(3000), sequence.restorable(900)),
        (4484, 2052, 0)
    );
    assert_eq!(sequence.truncate(4499).unwrap(), 4484);
    assert_eq!(positions(&sequence), [964, 2052, 4100, 4484]);
    assert_eq!(sequence.fork().unwrap().checkpoints().count(), 4);
    assert_eq!(positions(&sequence.prefix(2100).unwrap()), [964, 2052]);
}

#[test]
fn the_least_recently_used_goes_first() {
    let hybrid = Hybrid::new("int4", None, true);
    let all = tokens(7000);
    let mut sequence = hybrid.begin();
    sequence.set_checkpoint_budget(Some(1 << 20));
    hybrid.read(&mut sequence, &all, 6500, &[512]);
    assert_eq!(positions(&sequence), [2052, 4100, 6148, 6404, 6468]);
    let one = sequence.footprint().checkpoints / 5;
    // The oldest is used, so the next one goes.
    assert_eq!(sequence.prefix(2100).unwrap().len(), 2052);
    sequence.set_checkpoint_budget(Some(4 * one));
    assert_eq!(positions(&sequence), [2052, 6148, 6404, 6468]);
    hybrid.read(&mut sequence, &all, 6700, &[30]);
    assert!(sequence.footprint().checkpoints <= 4 * one);
    assert!(positions(&sequence).contains(&2052) && positions(&sequence).contains(&6660));
    sequence.set_checkpoint_budget(Some(0));
    assert_eq!((positions(&sequence), sequence.footprint().checkpoints), (vec![], 0));
    hybrid.read(&mut sequence, &all, 6800, &[30]);
    assert_eq!(positions(&sequence), []);
}

#[test]
fn by_default_they_take_no_more_than_keys_and_values() {
    let hybrid = Hybrid::new("int4", None, true);
    let all = tokens(5000);
    let mut sequence = hybrid.begin();
    let mut most = 0;
    for end in (50..5000).step_by(150) {
        sequence.mark(end);
        hybrid.read(&mut sequence, &all, end, &[150]);
        let footprint = sequence.footprint();
        assert!(footprint.checkpoints <= footprint.encoded + footprint.exact);
        most = most.max(sequence.checkpoints().count());
    }
    assert!(most > 5, "{most} checkpoints");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A sequence never takes more than the layout says.
    #[test]
    fn a_sequence_stays_within_the_estimate(
        policy in prop::sample::select(vec!["int4;state=int8", "int4;recent=150", "k=ch4:p128,v=rot4g32:p128"]),
        window in prop::option::of(33usize..150),
        has_pages in prop::bool::weighted(0.8),
        len in 0_usize..3000,
        chunk in 1_usize..700,
    ) {
        let hybrid = Hybrid::new(policy, window, has_pages);
        let estimate = hybrid.layout.arena_bytes(len, chunk);
        let arena = Arena::with_cap(estimate);
        let mut sequence = Sequence::new(Arc::clone(&hybrid.layout), arena.clone());
        let all = tokens(len);
        while sequence.len() < len {
            let count = chunk.min(len - sequence.len());
            hybrid.pass(&mut sequence, &all, count);
        }
        prop_assert!(arena.usage().used <= estimate);
        prop_assert!(hybrid.layout.resident_bytes(len, chunk) >= estimate);
    }
}
