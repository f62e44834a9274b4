//! The same bits, however tokens came and whatever happened in between.

use crate::hybrid::{Hybrid, MIXERS, WIDTH, bits, tokens};
use crate::toy::Toy;
use kvant_cache::snapshot::{Record, write};
use kvant_cache::{Arena, PageStore, Sequence, Snapshot, Store};
use proptest::prelude::*;
use std::sync::Arc;

const POLICIES: [&str; 7] = [
    "int4",
    "int4;state=bf16",
    "int4;recent=70;sinks=9;state=int8",
    "int4;recent=70;sinks=9",
    "k=ch4:p128,v=rot4g32:p128;sinks=32",
    "int8:p32;sinks=0",
    "f16;recent=10",
];

#[test]
fn the_chunked_form_is_the_recurrence() {
    let hybrid = Hybrid::new("f16", None, true);
    let tokens = tokens(300);
    let out = hybrid.read(&mut hybrid.begin(), &tokens, 300, &[300]);
    for (layer, mixer) in MIXERS.into_iter().enumerate() {
        let expected = mixer.oracle(layer, &tokens);
        let at = if layer == 0 { 0 } else { MIXERS[0].value };
        for (token, row) in out.chunks_exact(WIDTH).enumerate() {
            for j in 0..mixer.value {
                let (got, want) = (f64::from(row[at + j]), expected[token * mixer.value + j]);
                assert!(
                    (got - want).abs() < 1e-4 * (1.0 + want.abs()),
                    "layer {layer}, token {token}: {got} {want}"
                );
            }
        }
    }
}

/// What may happen to a sequence.
#[derive(Clone, Debug)]
enum Event {
    Read(usize, usize),
    /// Goes on in a fork; the first reads on elsewhere before it goes away.
    Fork,
    /// Takes back so many tokens.
    Rollback(usize),
    /// Begins a pass and gives it up.
    Abandon(usize),
    /// Goes on from a prefix cut out of it.
    Prefix(usize),
    /// Is saved, and goes on from the file.
    Resume,
}

/// A new store of the same kind.
fn store(on_device: bool) -> Store {
    match on_device {
        true => Store::from(Toy::new(None) as Arc<dyn PageStore>),
        false => Arena::new().into(),
    }
}

fn resumed(sequence: &Sequence) -> Sequence {
    let tokens: Vec<u32> = (0..sequence.len() as u32).collect();
    let record = Record { signature: [3; 32], numerics: [4; 32], policy: "", tokens: &tokens, note: b"" };
    let mut file = Vec::new();
    write(sequence, &record, &mut file).unwrap();
    let saved = Snapshot::from_bytes(file).unwrap();
    saved.sequence(&[3; 32], sequence.layout().clone(), store(!sequence.store().is_host())).unwrap()
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (1usize..300, 1usize..130).prop_map(|(tokens, size)| Event::Read(tokens, size)),
        2 => Just(Event::Fork),
        4 => (0usize..33).prop_map(Event::Rollback),
        1 => (33usize..400).prop_map(Event::Rollback),
        2 => (1usize..200).prop_map(Event::Abandon),
        1 => (0usize..300).prop_map(Event::Prefix),
        2 => Just(Event::Resume),
    ];
    prop::collection::vec(event, 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn nothing_that_happens_changes_a_bit(
        policy in prop::sample::select(&POLICIES[..]),
        window in prop::option::of(20usize..150),
        has_pages in prop::bool::weighted(0.8),
        on_device in prop::bool::weighted(0.3),
        events in events(),
    ) {
        let hybrid = Hybrid::new(policy, window, has_pages);
        let page = if !has_pages { 0 } else if policy.contains("p128") { 128 } else { 64 };
        let all = tokens(3000);
        let other: Vec<u32> = all.iter().map(|token| token + 5).collect();
        let fresh = hybrid.read(&mut hybrid.begin(), &all, all.len(), &[512]);
        // The device of the test keeps states as they are.
        let mut sequence = hybrid.begin_in(store(on_device && !policy.contains("state=")));
        // Rows that were taken back once: the slack is filled up as tokens come.
        let mut longest = 0;
        for event in &events {
            longest = longest.max(sequence.len());
            let from = sequence.len();
            match *event {
                Event::Read(..) => {}
                Event::Fork => {
                    let fork = sequence.fork().unwrap();
                    hybrid.read(&mut sequence, &other, from + 90, &[45]);
                    sequence = fork;
                }
                Event::Rollback(back) => {
                    let to = from.saturating_sub(back);
                    let left = sequence.truncate(to).unwrap();
                    prop_assert!(left <= to && left == sequence.len());
                    if longest - to <= 32 {
                        prop_assert!(to - left <= page, "{back} back from {from}: {left} are left");
                    }
                }
                Event::Abandon(count) => {
                    let mut fork = sequence.fork().unwrap();
                    let pages = fork.store().usage().pages;
                    hybrid.begin_and_give_up(&mut fork, &other, count);
                    prop_assert_eq!(fork.len(), from);
                    prop_assert!(fork.store().usage().pages <= pages);
                    sequence = fork;
                }
                Event::Prefix(back) => {
                    sequence = sequence.prefix(from.saturating_sub(back)).unwrap();
                    longest = usize::MAX;
                }
                Event::Resume => sequence = resumed(&sequence),
            }
            let start = sequence.len();
            let (count, size) = if let Event::Read(count, size) = *event { (count, size) } else { (3, 2) };
            let end = (start + count).min(all.len());
            let out = hybrid.read(&mut sequence, &all, end, &[size]);
            prop_assert_eq!(bits(&out), bits(&fresh[start * WIDTH..end * WIDTH]), "after {:?}", event);
            if matches!(event, Event::Read(..)) && longest != usize::MAX {
                longest = longest.max(sequence.len());
            }
        }
    }
}

#[test]
fn a_device_is_told_of_its_work_and_no_bytes_move() {
    let hybrid = Hybrid::new("int4;sinks=0", None, false);
    let toy = Toy::new(None);
    let mut sequence = hybrid.begin_in(Store::from(Arc::clone(&toy) as Arc<dyn PageStore>));
    let slots = hybrid.layout.slots().len();
    assert_eq!(slots, 2);
    sequence.reserve(1000).unwrap();
    let work = hybrid.advance_on_device(&mut sequence, 1000);
    assert_eq!(toy.traffic(), [0; 3]);
    let pieces: Vec<usize> = work.pieces.iter().map(|piece| piece.tokens).collect();
    assert_eq!(pieces, [vec![64; 15], vec![40]].concat());
    // The first chunk can be gone back to until the pass ends, the last ones afterwards; those between have no pages.
    let rows: Vec<bool> = work.pieces.iter().map(|piece| piece.rows.is_some()).collect();
    assert!(rows[0] && rows[15] && !rows[5]);
    assert!(work.pieces[14].next.is_some() && work.pieces[15].next.is_none());
    assert!(work.pieces[1..].iter().all(|piece| piece.state.is_none()));
    let mut other = hybrid.begin();
    assert!(other.advance_on_device(hybrid.states[0], 3).is_err(), "pages of the host");
}

/// Token by token, the chunk that a page's start lies in was forgotten before the page was encoded.
#[test]
fn chunks_are_kept_back_to_the_start_of_the_page() {
    for policy in POLICIES {
        let hybrid = Hybrid::new(policy, None, true);
        let page = if policy.contains("p128") { 128 } else { 64 };
        let all = tokens(420);
        let mut sequence = hybrid.begin();
        for len in 1..=all.len() {
            hybrid.pass(&mut sequence, &all, 1);
            for back in 0..=32.min(len) {
                let left = sequence.restorable(len - back);
                assert!(len - back - left <= page, "{policy}: {back} back from {len} leaves {left}");
            }
        }
    }
}
