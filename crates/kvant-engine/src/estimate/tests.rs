//! Estimates against their definition, on a tiny model.

use super::*;
use std::path::Path;

fn llama() -> (Checkpoint, Description) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures/llama");
    let checkpoint = Checkpoint::open(folder).unwrap();
    let description = Description::of(&checkpoint).unwrap();
    (checkpoint, description)
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_the_longest_that_does() {
    let (checkpoint, description) = llama();
    let policy: Policy = "int4".parse().unwrap();
    let peak = |context| {
        let run = RunConfig::answer(&policy, context, 2);
        MemoryEstimate::new(&checkpoint, &description, &run).unwrap().peak()
    };
    let check = |context, available| {
        MemoryEstimate::check(available, &checkpoint, &description, &RunConfig::answer(&policy, context, 2))
            .unwrap()
    };
    let available = peak(5000);
    assert!(check(5000, available).is_ok());
    let error = check(100_000, available).unwrap_err();
    let longest = error.longest.unwrap();
    // By the definition: it fits, and one more token does not.
    assert!(longest >= 5000 && peak(longest) <= available && peak(longest + 1) > available, "{longest}");
    let text = error.to_string();
    assert!(
        text.contains("a context of 100000 tokens does not fit") && text.contains(&longest.to_string()),
        "{text}"
    );
    assert!(text.contains(&bytes(error.estimate.peak())), "{text}");
    let hopeless = check(1, 1 << 20).unwrap_err();
    assert_eq!(hopeless.longest, None);
    assert!(hopeless.to_string().contains("smaller model"), "{hopeless}");
    // Absurd lengths are refused, not added up until numbers overflow.
    assert!(check(usize::MAX, u64::MAX >> 20).unwrap_err().longest.unwrap() > 1 << 20);
}

#[test]
fn parts_add_up_to_the_peak_and_a_window_bounds_the_cache() {
    let (checkpoint, description) = llama();
    let policy: Policy = "int4".parse().unwrap();
    let of = |policy: &Policy, context| {
        MemoryEstimate::new(&checkpoint, &description, &RunConfig::answer(policy, context, 2)).unwrap()
    };
    let estimate = of(&policy, 3000);
    assert_eq!(estimate.weights + estimate.cache + estimate.rest(), estimate.peak());
    assert!(of(&policy, 6000).cache > estimate.cache);
    let windowed = |window| {
        let mut policy = policy.clone();
        policy.rule.streaming = Some(window);
        policy
    };
    let narrow = windowed(512);
    assert_eq!(of(&narrow, 1 << 30).cache, of(&narrow, usize::MAX).cache);
    assert!(of(&narrow, usize::MAX).cache < estimate.cache);
    let peak = |window| of(&windowed(window), usize::MAX).peak();
    let wide = windowed(50_000);
    let run = RunConfig::answer(&wide, usize::MAX, 2);
    let available = peak(2000);
    let error = MemoryEstimate::check(available, &checkpoint, &description, &run).unwrap().unwrap_err();
    let longest = error.longest.unwrap();
    assert_eq!((error.kind, error.tokens), (ContextKind::Window, 50_000));
    assert!(longest >= 2000 && peak(longest) <= available && peak(longest + 1) > available, "{longest}");
}

#[test]
fn halving_finds_what_counting_finds() {
    for bound in 1..40 {
        for limit in 0..45 {
            let counted = (1..=bound).rev().find(|&count| count <= limit);
            assert_eq!(largest(bound, |count| count <= limit), counted, "{bound}, {limit}");
        }
    }
}
