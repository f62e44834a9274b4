//! What comes back.

use crate::talk::{NUMERICS, SIGNATURE, Talk, readable};
use kvant_cache::snapshot::{Record, write};
use kvant_cache::{Arena, CacheLayout, KvShape, Mode, Policy, Sequence, Slots, Snapshot, SnapshotError};
use kvant_codec::Side;
use proptest::prelude::*;
use std::sync::Arc;

const POLICIES: [&str; 7] = [
    "int4",
    "k8v4;state=int8",
    "f16",
    "k8v4;sinks=0",
    "int4;recent=100",
    "f32;recent=70;sinks=7",
    "k=ch4:p128,v=rot4g32:p32;layers 1:f16",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// A loaded sequence reads, grows, goes back and is saved exactly as the one that was saved.
    #[test]
    fn a_loaded_sequence_is_the_one_that_was_saved(
        policy in prop::sample::select(&POLICIES),
        tokens in 0_usize..420,
        back in 0_usize..200,
        more in 1_usize..200,
        window in prop::sample::select(vec![None, Some(60), Some(200)]),
        is_mixed in any::<bool>(),
    ) {
        let latent_pages_differ = policy.contains("p128");
        let talk = match is_mixed && !latent_pages_differ {
            true => Talk::mixed(policy, window),
            false => Talk::usual(policy, window),
        };
        let mut sequence = talk.of(tokens);
        // A sequence that has been longer is saved as well as one that has not.
        sequence.truncate(tokens - back.min(tokens)).unwrap();
        let bytes = talk.bytes(&sequence, b"a note");
        let snapshot = Snapshot::from_bytes(bytes.clone()).unwrap();
        prop_assert_eq!(snapshot.note(), b"a note");
        prop_assert_eq!(snapshot.tokens(), (0..sequence.len() as u32).collect::<Vec<_>>());
        prop_assert_eq!(snapshot.policy(), &talk.policy);
        prop_assert_eq!((snapshot.slots(), snapshot.version()), (&talk.slots, 3));
        let mut loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
        prop_assert!(readable(&loaded) == readable(&sequence));
        prop_assert_eq!(loaded.footprint().bits_total, sequence.footprint().bits_total);
        prop_assert!(talk.bytes(&loaded, b"a note") == bytes, "saved again, it is another file");

        let end = sequence.len() + more;
        talk.read(&mut sequence, end);
        talk.read(&mut loaded, end);
        prop_assert!(readable(&loaded) == readable(&sequence));
        let cut = end.saturating_sub(back);
        prop_assert_eq!(loaded.truncate(cut).unwrap(), sequence.truncate(cut).unwrap());
        talk.read(&mut sequence, end);
        talk.read(&mut loaded, end);
        prop_assert!(talk.bytes(&loaded, b"") == talk.bytes(&sequence, b""));
    }
}

#[test]
fn pages_stay_in_the_file_and_only_tails_are_copied() {
    let talk = Talk::usual("int4", None);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("talk.kvant");
    let tokens: Vec<u32> = (0..300).collect();
    let record =
        Record { signature: SIGNATURE, numerics: NUMERICS, policy: "int4", tokens: &tokens, note: b"" };
    let mut sequence = talk.of(300);
    sequence.save(&path, &record).unwrap();

    let arena = Arena::new();
    let snapshot = Snapshot::open(&path).unwrap();
    let mut loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), arena.clone()).unwrap();
    drop(snapshot);
    // One tail for each of two sides of two heads of two layers.
    assert_eq!(arena.usage().pages, 8);
    assert!(arena.usage().mapped > 8 * 4 * 500);
    let keys = loaded.side(talk.slots.kv(0).unwrap(), 0, Side::Key).unwrap();
    assert!(keys.pages().len() == 4 && keys.pages().all(kvant_cache::Page::is_mapped));
    // Forks share the pages of the file, and what replaces the file does not touch them.
    let fork = loaded.fork().unwrap();
    talk.read(&mut sequence, 350);
    talk.read(&mut loaded, 350);
    let tokens: Vec<u32> = (0..350).collect();
    loaded.save(&path, &Record { tokens: &tokens, ..record }).unwrap();
    assert!(readable(&loaded) == readable(&sequence));
    drop(loaded);
    assert!(readable(&fork) == readable(&talk.of(300)));
    drop(fork);
    assert_eq!((arena.usage().pages, arena.usage().mapped), (0, 0));
    assert_eq!(Snapshot::open(&path).unwrap().tokens().len(), 350);
}

#[test]
fn a_streaming_window_is_saved() {
    let shape = KvShape { kv_heads: 1, key_dim: 16, value_dim: 16, window: None };
    let talk = Talk::new("int4", Slots::uniform(1, shape), Some(100));
    let sequence = talk.of(500);
    assert!(sequence.side(talk.slots.kv(0).unwrap(), 0, Side::Key).unwrap().dropped() > 3);
    let snapshot = Snapshot::from_bytes(talk.bytes(&sequence, b"")).unwrap();
    let loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
    assert!(readable(&loaded) == readable(&sequence));
    let other = Talk::new("int4", Slots::uniform(1, shape), None).layout;
    let error = snapshot.sequence(&SIGNATURE, other, Arena::new()).err().unwrap();
    assert!(error.to_string().contains("windows differ"), "{error}");
}

#[test]
fn a_file_is_loaded_only_into_the_cache_it_was_saved_from() {
    let talk = Talk::usual("int4", None);
    let snapshot = Snapshot::from_bytes(talk.bytes(&talk.of(100), b"")).unwrap();
    let refused = |signature, layout: &Arc<CacheLayout>, word: &str| {
        let error = snapshot.sequence(&signature, layout.clone(), Arena::new()).err().unwrap().to_string();
        assert!(error.contains(word) && error.contains("int4"), "{error}");
    };
    refused([0; 32], &talk.layout, "another model");
    refused(SIGNATURE, &Talk::usual("int4;sinks=5", None).layout, "sinks");
    refused(SIGNATURE, &Talk::usual("int4", Some(9)).layout, "what its layers keep");
    refused(SIGNATURE, &Talk::usual("int8", None).layout, "sizes of its pages");
    let full = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::with_cap(100)).err().unwrap();
    assert!(matches!(full, SnapshotError::Memory(_)), "{full}");
}

/// A change of rounding does not make a file useless: it loads, and says that it is of another.
#[test]
fn a_file_of_other_numerics_loads_and_says_so() {
    let talk = Talk::mixed("int4", None);
    let sequence = talk.of(300);
    let snapshot = Snapshot::from_bytes(talk.bytes(&sequence, b"")).unwrap();
    assert_eq!(snapshot.numerics(), Some(&NUMERICS));
    assert_ne!(snapshot.numerics(), Some(&[0; 32]));
    let loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
    assert!(readable(&loaded) == readable(&sequence));
}

/// A resumed sequence takes back a few tokens as the one that was saved does.
#[test]
fn rollback_slack_is_saved() {
    for policy in ["int4", "int4;recent=100", "f16;recent=70"] {
        let talk = Talk::mixed(policy, None);
        for len in [260, 261, 270, 320] {
            let sequence = talk.of(len);
            let snapshot = Snapshot::from_bytes(talk.bytes(&sequence, b"")).unwrap();
            let loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
            for back in 0..32 {
                let (to, left) = (len - back, loaded.restorable(len - back));
                assert_eq!(left, sequence.restorable(to), "{policy}, {back} back from {len}");
                assert!(to - left <= 64, "{policy}, {back} back from {len}: {left}");
            }
        }
    }
}

#[test]
fn what_cannot_be_loaded_again_is_not_saved() {
    let talk = Talk::usual("int4", None);
    let refused = |sequence: &Sequence, tokens: &[u32], word: &str| {
        let record = Record { signature: SIGNATURE, numerics: NUMERICS, policy: "int4", tokens, note: b"" };
        let error = write(sequence, &record, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    };
    let mut sequence = talk.of(2);
    refused(&sequence, &[1], "number of tokens");
    sequence.append(talk.slots.kv(0).unwrap(), &[0.0; 32], &[0.0; 48]).unwrap();
    refused(&sequence, &[1, 2], "not finished");
    let mut policy: Policy = "int4".parse().unwrap();
    policy.rule.mode = Mode::Strict;
    let shape = KvShape { kv_heads: 1, key_dim: 16, value_dim: 16, window: None };
    let strict =
        Sequence::new(Arc::new(CacheLayout::new(&policy, &Slots::uniform(1, shape)).unwrap()), Arena::new());
    refused(&strict, &[], "strict");
}
