//! Which rows of block tables sequences have, and which pages have to be entered.

use kvant_cache::{Arena, CacheLayout, KvShape, Sequence, Slots};
use kvant_device::BlockTables;
use std::sync::Arc;

#[test]
fn sequences_keep_their_seats_until_all_are_taken() {
    const MOST: usize = 64;
    let mut seats = BlockTables::new(0, MOST);
    assert_eq!(seats.of(&[10, 11, 12]), [0, 1, 2]);
    assert_eq!(seats.of(&[12, 10]), [2, 0]);
    assert_eq!(seats.of(&[13, 12]), [3, 2]);
    let many: Vec<u64> = (100..100 + MOST as u64 - 4).collect();
    assert_eq!(seats.of(&many), (4..MOST).collect::<Vec<_>>());
    // 11 has not been seen for the longest time, then 10.
    assert_eq!(seats.of(&[1000, 1001, 12]), [1, 0, 2]);
    // A pass of more sequences than that gets more seats.
    let more: Vec<u64> = (2000..2000 + MOST as u64 + 3).collect();
    let mut found = seats.of(&more);
    found.sort_unstable();
    assert_eq!(found, (0..MOST + 3).collect::<Vec<_>>());
}

#[test]
fn a_rollback_enters_the_pages_from_the_cut_on_and_no_others() {
    let shape = KvShape { kv_heads: 1, key_dim: 64, value_dim: 64, window: None };
    let slots = Slots::uniform(1, shape);
    let layout = Arc::new(CacheLayout::new(&"int4".parse().unwrap(), &slots).unwrap());
    let slot = slots.kv_slots().next().unwrap();
    let rows = vec![0.5; 1000 * 64];
    let mut sequence = Sequence::new(layout, Arena::new());
    let grow = |sequence: &mut Sequence, tokens: usize| {
        sequence.append(slot, &rows[..tokens * 64], &rows[..tokens * 64]).unwrap();
        sequence.advance(tokens).unwrap();
    };
    grow(&mut sequence, 1000);
    let (mut seats, tokens) = (BlockTables::new(1, 2), [64, 64]);
    let seat = seats.of(&[sequence.lineage()])[0];
    assert_eq!(seats.entered(seat, slot, &sequence, tokens), [0, 0]);
    // 4 sinks, then 15 pages of 64 tokens.
    seats.enter(seat, slot, &sequence, [15, 15]);
    assert_eq!(sequence.truncate(997).unwrap(), 997);
    grow(&mut sequence, 2);
    assert_eq!(seats.of(&[sequence.lineage()]), [seat]);
    assert_eq!(seats.entered(seat, slot, &sequence, tokens), [15, 15]);
    let left = sequence.truncate(930).unwrap();
    grow(&mut sequence, 90);
    let kept = (left - 4) / 64;
    assert_eq!(seats.of(&[sequence.lineage()]), [seat]);
    assert_eq!(seats.entered(seat, slot, &sequence, tokens), [kept, kept]);
    seats.enter(seat, slot, &sequence, [15, 15]);
    assert_eq!(seats.entered(seat, slot, &sequence, tokens), [15, 15]);
    // A copy is another sequence.
    let fork = sequence.fork().unwrap();
    let other = seats.of(&[fork.lineage()])[0];
    assert_ne!(other, seat);
    assert_eq!(seats.entered(other, slot, &fork, tokens), [0, 0]);
}
