//! Files of every version that was ever written must keep loading.

use crate::talk::{NUMERICS, SIGNATURE, Talk, readable};
use kvant_cache::{Arena, Snapshot};
use kvant_codec::{PageCodec, Side};
use std::path::PathBuf;

/// What the fixture of version 1 was made with; [`Talk::read`] made its rows.
const POLICY: &str = "int4;recent=20;layers 1:f16";
/// The same with the rules by which `int4` chose scales then.
const RULES: &str = "k=ch4:asym,v=rot4g32:max;recent=20;layers 1:f16";
const TOKENS: usize = 150;
const NOTE: &[u8] = b"{\"turns\":[]}";

#[test]
fn version_1_loads() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-1.kvant");
    let talk = Talk::usual(POLICY, None);
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!((snapshot.policy(), snapshot.note()), (talk.policy.as_str(), NOTE));
    assert_eq!(snapshot.tokens(), (0..TOKENS as u32).collect::<Vec<_>>());
    let loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
    assert_eq!((snapshot.version(), snapshot.numerics(), snapshot.slots()), (1, None, &talk.slots));
    // Every page is the bytes of the file.
    let bytes = std::fs::read(&path).unwrap();
    let pages = readable(&loaded).into_iter().flat_map(|(_, pages)| pages).flatten();
    assert!(pages.into_iter().all(|page| bytes.windows(page.len()).any(|window| window == page)));
    // Written again, it is the same sequence in a file of today.
    let again = Snapshot::from_bytes(talk.bytes(&loaded, NOTE)).unwrap();
    assert_eq!((again.version(), again.note()), (3, NOTE));
    let again = again.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
    assert!(readable(&again) == readable(&loaded));

    // Its pages still mean the same: they decode to what is read today and encoded by the rules of then.
    let today = Talk::usual(RULES, None).of(TOKENS);
    for (slot, head, side) in [(0, 0, Side::Key), (0, 1, Side::Value), (1, 0, Side::Key), (1, 1, Side::Value)]
    {
        let store = |sequence: &kvant_cache::Sequence| {
            let store = sequence.side(talk.slots.kv(slot).unwrap(), head, side).unwrap();
            let codec = store.codecs().codec();
            let mut rows = vec![0.0; codec.page_tokens() * codec.dim()];
            codec.decode(store.encoded(0).unwrap(), &mut rows).unwrap();
            let mut exact = rows.clone();
            store.codecs().exact().decode(store.exact(2).unwrap(), &mut exact).unwrap();
            (rows, exact)
        };
        let ((old, old_exact), (new, new_exact)) = (store(&loaded), store(&today));
        assert!(old.iter().zip(&new).all(|(a, b)| (a - b).abs() < 1e-3), "{slot} {head} {side:?}");
        assert_eq!(old_exact, new_exact);
    }
}

/// What the fixture of version 3 was made with: slots of every kind.
const MIXED_POLICY: &str = "int4;recent=20;layers 3:f16";
const MIXED_TOKENS: usize = 200;

/// A sequence with closed chunks of recurrent state and checkpoints.
fn mixed(talk: &Talk) -> kvant_cache::Sequence {
    let mut sequence = talk.begin();
    sequence.set_checkpoint_budget(Some(1 << 20));
    sequence.mark(100);
    talk.read(&mut sequence, MIXED_TOKENS);
    sequence
}

#[test]
fn version_3_loads() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-3.kvant");
    let talk = Talk::mixed(MIXED_POLICY, Some(70));
    let snapshot = Snapshot::open(&path).unwrap();
    assert_eq!((snapshot.policy(), snapshot.note()), (talk.policy.as_str(), NOTE));
    assert_eq!((snapshot.version(), snapshot.numerics()), (3, Some(&NUMERICS)));
    let loaded = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap();
    assert_eq!(loaded.checkpoints().collect::<Vec<_>>(), [68, 132, 196]);
    assert!(std::fs::read(&path).unwrap() == talk.bytes(&loaded, NOTE), "it is written as it was read");
    // From before there was a choice of numbers for its states: they are f32, and go nowhere else.
    let narrow = Talk::mixed(&format!("{MIXED_POLICY};state=bf16"), Some(70));
    assert!(snapshot.sequence(&SIGNATURE, narrow.layout.clone(), Arena::new()).is_err());
    // Rows that are exact are those that are read today.
    let (old, new) = (readable(&loaded), readable(&mixed(&talk)));
    assert!(old.iter().zip(&new).all(|(old, new)| old.0 == new.0 && old.1.len() == new.1.len()));
}
