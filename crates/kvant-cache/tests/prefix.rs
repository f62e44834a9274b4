//! The tree of prefixes against a list of everything that was ever remembered.

mod support;

use kvant_cache::{Arena, ArenaError, CacheLayout, PrefixTree, Sequence, WhenFull};
use proptest::prelude::*;
use std::sync::Arc;
use support::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_longest_known_beginning_is_found_bit_for_bit(prompts in prompts(14)) {
        let (layout, arena) = (usual(), Arena::new());
        let mut tree = PrefixTree::new(layout.clone(), arena.clone(), WhenFull::Refuse);
        let mut known = Vec::new();
        for prompt in prompts {
            let expected = longest(&known, &prompt);
            prop_assert_eq!(tree.longest(&prompt), expected);
            let mut sequence = tree.find(&prompt).unwrap();
            prop_assert!(sequence.len() == expected && same(&sequence, &fresh(&layout, &prompt[..expected])));
            read(&mut sequence, &prompt);
            prop_assert!(same(&sequence, &fresh(&layout, &prompt)));
            prop_assert_eq!(tree.insert(&prompt, &sequence).unwrap(), whole(prompt.len()));
            known.push(prompt);
        }
        // Nobody but the tree holds anything now, so it must account for every slot.
        let (usage, held) = (tree.usage(), arena.usage());
        prop_assert_eq!((usage.pages, usage.bytes), (held.pages, held.used));
        let steps = steps(&known);
        let size = |step: &&[u32]| if step.len() == SINKS + PAGE { step.len() } else { PAGE };
        prop_assert_eq!(usage.tokens, steps.iter().map(size).sum::<usize>());
        tree.clear();
        prop_assert_eq!(arena.usage().used, 0);
    }

    /// Under a cap every request is served as long as what is alive fits.
    #[test]
    fn under_a_cap_room_is_made_and_answers_stay_right(prompts in prompts(20)) {
        let layout = usual();
        // Two of the longest prompts fit, and little more.
        let longest_one = fresh(&layout, &vec![0; 260]).footprint().bytes();
        let arena = Arena::with_cap(2 * longest_one + 40_000);
        let mut tree = PrefixTree::new(layout.clone(), arena.clone(), WhenFull::Evict);
        let mut known = Vec::new();
        for prompt in prompts {
            let mut sequence = tree.find(&prompt).unwrap();
            prop_assert!(sequence.len() <= longest(&known, &prompt));
            let missing = prompt.len() - sequence.len();
            tree.reserve(&mut sequence, missing).unwrap();
            read(&mut sequence, &prompt);
            prop_assert!(same(&sequence, &fresh(&layout, &prompt)));
            tree.insert(&prompt, &sequence).unwrap();
            drop(sequence);
            prop_assert_eq!(tree.longest(&prompt), whole(prompt.len()), "what was used last is still there");
            let (usage, held) = (tree.usage(), arena.usage());
            prop_assert_eq!((usage.pages, usage.bytes), (held.pages, held.used));
            known.push(prompt);
        }
        while tree.evict() > 0 {}
        prop_assert_eq!(arena.usage().used, 0);
    }

    /// A prefix is a fork that is cut, without the detour.
    #[test]
    fn a_prefix_is_a_fork_that_is_cut(
        policy in prop::sample::select(vec!["f16:p32;sinks=3", "k=ch4:p32,v=rot4g32:p32;sinks=3;recent=50"]),
        window in prop::sample::select(vec![None, Some(70)]),
        tokens in 0_usize..300,
        len in 0_usize..300,
    ) {
        let layout = layout(policy, window);
        let sequence = fresh(&layout, &vec![1; tokens]);
        let mut fork = sequence.fork().unwrap();
        let left = fork.truncate(len).unwrap();
        let prefix = sequence.prefix(len).unwrap();
        prop_assert_eq!((prefix.len(), sequence.restorable(len)), (left, left));
        prop_assert!(same(&prefix, &fork));
    }
}

fn remember(tree: &mut PrefixTree, layout: &Arc<CacheLayout>, arena: &Arena, tokens: &[u32]) {
    let mut sequence = tree.find(tokens).unwrap();
    if sequence.is_empty() {
        sequence = Sequence::new(layout.clone(), arena.clone());
    }
    read(&mut sequence, tokens);
    tree.insert(tokens, &sequence).unwrap();
}

#[test]
fn the_least_recently_used_goes_first_and_shared_beginnings_last() {
    let (layout, arena) = (usual(), Arena::new());
    let mut tree = PrefixTree::new(layout.clone(), arena.clone(), WhenFull::Evict);
    let [a, b, c] = [1, 2, 3].map(|end| prompt(&[(0, SINKS + 2 * PAGE), (end, PAGE)]));
    for tokens in [&a, &b, &c] {
        remember(&mut tree, &layout, &arena, tokens);
    }
    drop(tree.find(&a).unwrap());
    // A parting and three ends.
    assert_eq!((tree.usage().prefixes, tree.usage().tokens), (4, SINKS + 5 * PAGE));
    let lengths = |tree: &PrefixTree| [&a, &b, &c].map(|tokens| tree.longest(tokens));
    let (start, end) = (SINKS + 2 * PAGE, SINKS + 3 * PAGE);
    assert_eq!(lengths(&tree), [end, end, end]);
    assert!(tree.evict() > 0);
    assert_eq!(lengths(&tree), [end, start, end]);
    assert!(tree.evict() > 0);
    assert_eq!(lengths(&tree), [end, start, start]);
    assert!(tree.evict() > 0);
    assert_eq!(lengths(&tree), [start, start, start]);
    assert!(tree.evict() > 0);
    assert_eq!((lengths(&tree), tree.evict(), arena.usage().used), ([0, 0, 0], 0, 0));
}

#[test]
fn what_a_sequence_uses_is_not_forgotten_and_refusing_forgets_nothing() {
    let layout = usual();
    let tokens = prompt(&[(0, SINKS + 3 * PAGE)]);
    let other = prompt(&[(1, SINKS + 3 * PAGE)]);
    let needed = fresh(&layout, &tokens).footprint().bytes();
    for when_full in [WhenFull::Refuse, WhenFull::Evict] {
        // Both, and the exact rows of one while it is read.
        let arena = Arena::with_cap(6 * needed);
        let mut tree = PrefixTree::new(layout.clone(), arena.clone(), when_full);
        remember(&mut tree, &layout, &arena, &tokens);
        remember(&mut tree, &layout, &arena, &other);
        let alive = tree.find(&tokens).unwrap();
        let mut more = Sequence::new(layout.clone(), arena.clone());
        let refused = tree.reserve(&mut more, 10_000).unwrap_err();
        assert!(matches!(refused, ArenaError::Full { cap, .. } if Some(cap) == arena.cap()), "{refused}");
        assert_eq!(tree.longest(&tokens), tokens.len(), "{when_full:?}");
        assert_eq!(tree.longest(&other), if when_full == WhenFull::Evict { 0 } else { other.len() });
        assert!(same(&alive, &fresh(&layout, &tokens)));
    }
}

#[test]
fn windows_and_recent_rows_are_found_where_they_were_left() {
    let tokens = prompt(&[(0, SINKS + 8 * PAGE + 5)]);
    let cut = SINKS + 8 * PAGE;
    for (policy, window) in
        [("k=ch4:p32,v=rot4g32:p32;sinks=3", Some(60)), ("k=ch4:p32,v=rot4g32:p32;sinks=3;recent=64", None)]
    {
        let (layout, arena) = (layout(policy, window), Arena::new());
        let mut tree = PrefixTree::new(layout.clone(), arena.clone(), WhenFull::Evict);
        remember(&mut tree, &layout, &arena, &tokens);
        let mut found = tree.find(&tokens).unwrap();
        assert_eq!(found.len(), cut, "{policy}");
        read(&mut found, &tokens);
        assert!(same(&found, &fresh(&layout, &tokens)), "{policy}");
        // What was dropped or encoded since cannot be gone back to: nothing is found, and nothing wrong.
        let early = prompt(&[(0, SINKS + 2 * PAGE), (7, 40)]);
        let mut found = tree.find(&early).unwrap();
        read(&mut found, &early);
        assert!(same(&found, &fresh(&layout, &early)), "{policy}");
        remember(&mut tree, &layout, &arena, &early);
        assert_eq!(tree.longest(&tokens), cut);
    }
}

#[test]
fn sequences_of_another_layout_are_not_remembered() {
    let (ours, other) = (usual(), layout("f16:p32;sinks=3", None));
    let mut tree = PrefixTree::new(ours.clone(), Arena::new(), WhenFull::Refuse);
    let tokens = prompt(&[(0, 100)]);
    assert_eq!(tree.insert(&tokens, &fresh(&other, &tokens)).unwrap(), 0);
    assert_eq!(tree.insert(&tokens[..50], &fresh(&ours, &tokens)).unwrap(), 0);
    assert_eq!(tree.insert(&tokens[..20], &fresh(&ours, &tokens[..20])).unwrap(), 0);
    assert_eq!(tree.usage().prefixes, 0);
}
