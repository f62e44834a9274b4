//! Files of every version that was ever written must keep loading.

use crate::talk::{SIGNATURE, Talk};
use kvant_cache::{Arena, Snapshot};
use kvant_codec::{PageCodec, Side};
use std::path::PathBuf;

/// What the fixture of version 1 was made with; [`Talk::read`] made its rows.
const POLICY: &str = "int4;recent=20;layers 1:f16";
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
    assert!(std::fs::read(&path).unwrap() == talk.bytes(&loaded, NOTE), "it is written as it was read");

    // Its pages still mean the same: they decode to what is read and encoded today.
    let today = talk.of(TOKENS);
    for (entry, head, side) in
        [(0, 0, Side::Key), (0, 1, Side::Value), (1, 0, Side::Key), (1, 1, Side::Value)]
    {
        let store = |sequence: &kvant_cache::Sequence| {
            let store = sequence.side(entry, head, side).unwrap();
            let codec = store.codecs().codec();
            let mut rows = vec![0.0; codec.page_tokens() * codec.dim()];
            codec.decode(store.encoded(0).unwrap(), &mut rows).unwrap();
            let mut exact = rows.clone();
            store.codecs().exact().decode(store.exact(2).unwrap(), &mut exact).unwrap();
            (rows, exact)
        };
        let ((old, old_exact), (new, new_exact)) = (store(&loaded), store(&today));
        assert!(old.iter().zip(&new).all(|(a, b)| (a - b).abs() < 1e-3), "{entry} {head} {side:?}");
        assert_eq!(old_exact, new_exact);
    }
}
