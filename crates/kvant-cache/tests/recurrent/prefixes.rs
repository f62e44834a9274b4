//! Prefix hits of models with recurrent state start at the nearest checkpoint.

use crate::hybrid::{Hybrid, WIDTH, bits, tokens};
use kvant_cache::{Arena, DiskTier, PrefixTree, Sequence, WhenFull};
use std::sync::Arc;

fn tree(hybrid: &Hybrid, arena: &Arena) -> PrefixTree {
    PrefixTree::new(Arc::clone(&hybrid.layout), arena.clone(), WhenFull::Evict)
}

fn begin(hybrid: &Hybrid, arena: &Arena) -> Sequence {
    let mut sequence = Sequence::new(Arc::clone(&hybrid.layout), arena.clone());
    sequence.set_checkpoint_budget(Some(1 << 20));
    sequence
}

#[test]
fn a_hit_starts_at_the_nearest_checkpoint_and_goes_on_bit_for_bit() {
    let hybrid = Hybrid::new("int4", None, true);
    let arena = Arena::new();
    let mut tree = tree(&hybrid, &arena);
    let first = tokens(3000);
    let mut sequence = begin(&hybrid, &arena);
    sequence.mark(700);
    hybrid.read(&mut sequence, &first, 3000, &[512]);
    assert_eq!(tree.insert(&first, &sequence).unwrap(), 2948);
    // Another prompt parts from it at 2500: pages lead up to 2500, the state to 2052.
    let mut second = first.clone();
    second[2500] += 1;
    let mut found = tree.find(&second).unwrap();
    assert_eq!((found.len(), tree.longest(&second)), (2052, 2052));
    let rest = hybrid.read(&mut found, &second, 2700, &[100]);
    let fresh = hybrid.read(&mut hybrid.begin(), &second, 2700, &[512]);
    assert_eq!(bits(&rest), bits(&fresh[2052 * WIDTH..]));
    // And one at 800, where a turn ended before.
    let mut third = first.clone();
    third[800] += 1;
    assert_eq!(tree.find(&third).unwrap().len(), 644);
    // Two pages alone are less than any checkpoint.
    assert_eq!(tree.find(&first[..300]).unwrap().len(), 0);
    // The whole of it is found up to its last step.
    let whole = tree.find(&first).unwrap();
    assert_eq!(whole.len(), tree.longest(&first));
    assert!(whole.len() > 2900);
}

#[test]
fn another_sequence_may_have_the_checkpoint() {
    let hybrid = Hybrid::new("int4", None, true);
    let arena = Arena::new();
    let mut tree = tree(&hybrid, &arena);
    let first = tokens(900);
    let mut second = first.clone();
    second[600] += 1;
    for (tokens, mark) in [(&first, None), (&second, Some(400))] {
        let mut sequence = begin(&hybrid, &arena);
        mark.into_iter().for_each(|mark| sequence.mark(mark));
        hybrid.read(&mut sequence, tokens, 900, &[512]);
        tree.insert(tokens, &sequence).unwrap();
    }
    let mut third = first.clone();
    third[500] += 1;
    assert_eq!(tree.find(&third).unwrap().len(), 388);
}

#[test]
fn forgetting_prefixes_frees_their_states() {
    for has_pages in [true, false] {
        let hybrid = Hybrid::new("int4", None, has_pages);
        let arena = Arena::new();
        let mut tree = tree(&hybrid, &arena);
        let all = tokens(1000);
        let mut sequence = begin(&hybrid, &arena);
        hybrid.read(&mut sequence, &all, 1000, &[512]);
        assert!(tree.insert(&all, &sequence).unwrap() > 900);
        drop(sequence);
        let held = arena.usage().used;
        assert!(held > 0 && tree.usage().bytes == held, "{held} bytes, {:?}", tree.usage());
        while tree.evict() > 0 {}
        assert_eq!((arena.usage().used, tree.usage().prefixes), (0, 0), "pages: {has_pages}");
    }
}

/// Files of a folder lead to the steps that have a state, and are gone on from bit for bit.
#[test]
fn a_restart_finds_the_nearest_state_on_the_disk() {
    for has_pages in [true, false] {
        let hybrid = Hybrid::new("int4", None, has_pages);
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let layout = Arc::clone(&hybrid.layout);
            DiskTier::open(folder.path(), 1 << 30, layout, [5; 32], [6; 32], "int4").unwrap()
        };
        let all = tokens(1300);
        let mut sequence = begin(&hybrid, &Arena::new());
        sequence.mark(700);
        hybrid.read(&mut sequence, &all, 1200, &[512]);
        let last = open().save(&all, &sequence, || true).unwrap();
        let tier = open();
        assert_eq!((tier.longest(&all), tier.unusable_files()), (last, None));
        // What parts at 800 goes on from the step that was marked.
        let mut other = all.clone();
        other[800] += 1;
        let marked = if has_pages { 644 } else { 640 };
        for (tokens, start) in [(&all, last), (&other, marked)] {
            let found = tier.longest(tokens);
            assert_eq!(found, start, "pages: {has_pages}");
            let loaded = tier.load(&tokens[..found], hybrid.begin());
            let mut loaded = loaded.sequence.unwrap_or_else(|| panic!("{:?}", loaded.refused));
            assert_eq!(loaded.len(), found);
            let rest = hybrid.read(&mut loaded, tokens, 1300, &[90]);
            let fresh = hybrid.read(&mut hybrid.begin(), tokens, 1300, &[512]);
            assert_eq!(bits(&rest), bits(&fresh[found * WIDTH..]), "pages: {has_pages}");
        }
        // A base that is in memory already is continued.
        let mut base = hybrid.begin();
        hybrid.read(&mut base, &all, marked, &[100]);
        let loaded = tier.load(&all[..last], base).sequence.unwrap();
        assert_eq!(loaded.len(), last);
        assert!(loaded.restorable(700) == marked);
    }
}
