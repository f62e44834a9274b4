//! A file that shrinks while a sequence lies in it: an error, not the end of the process.

use crate::talk::{NUMERICS, SIGNATURE, Talk, readable};
use kvant_cache::snapshot::Record;
use kvant_cache::{Arena, CacheError, CacheLayout, Policy, Sequence, Snapshot, StateErrorKind};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const TOKENS: usize = 1000;

fn record(tokens: &[u32]) -> Record<'_> {
    Record { signature: SIGNATURE, numerics: NUMERICS, policy: "int4", tokens, note: b"" }
}

fn saved(talk: &Talk, folder: &Path) -> (PathBuf, Snapshot) {
    let path = folder.join("talk.kvant");
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    talk.of(TOKENS).save(&path, &record(&tokens)).unwrap();
    let snapshot = Snapshot::open(&path).unwrap();
    (path, snapshot)
}

/// Leaves less than a page of memory of the system's of it, whatever that is.
fn shorten(path: &Path) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
}

fn assert_names(error: &StateErrorKind, path: &Path) {
    assert!(
        matches!(error, StateErrorKind::Cache(CacheError::FileDamaged { path: named }) if named == path),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("truncated") && text.contains("begin anew"), "{text}");
}

fn load(talk: &Talk, snapshot: &Snapshot) -> Sequence {
    snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).unwrap()
}

#[test]
fn a_session_truncated_while_mapped_is_an_error_and_no_signal() {
    let talk = Talk::usual("int4", None);
    let folder = tempfile::tempdir().unwrap();
    let (path, snapshot) = saved(&talk, folder.path());
    let mut loaded = load(&talk, &snapshot);
    let (mut fork, mut other) = (loaded.fork().unwrap(), talk.of(TOKENS));
    // The file shrinks within a pass, whose attention reads zeros.
    loaded.begin(0).unwrap();
    shorten(&path);
    assert!(readable(&loaded) != readable(&other));
    assert_names(&loaded.end().unwrap_err(), &path);
    // Nor does a later pass begin, of any sequence that lies in the file; others do not notice.
    assert_names(&loaded.begin(1).unwrap_err(), &path);
    assert_names(&fork.begin(1).unwrap_err(), &path);
    other.begin(0).unwrap();
    other.end().unwrap();

    // Zeros are not saved, converted or copied for what is gone.
    let tokens: Vec<u32> = (0..TOKENS as u32).collect();
    let kept = folder.path().join("kept.kvant");
    std::fs::write(&kept, b"as it was").unwrap();
    let error = fork.save(&kept, &record(&tokens)).unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
    assert_eq!(std::fs::read(&kept).unwrap(), b"as it was");
    let f16: Policy = "f16".parse().unwrap();
    let f16 = Arc::new(CacheLayout::new(&f16, &talk.slots).unwrap());
    assert!(matches!(fork.convert(f16, Arena::new()), Err(CacheError::FileDamaged { .. })));
    let page =
        fork.side(talk.slots.kv(0).unwrap(), 0, kvant_codec::Side::Key).unwrap().pages().next().unwrap();
    assert!(page.clone().into_mut().unwrap_err().to_string().contains("truncated"));
    assert!(snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).is_err());
}

#[test]
fn a_session_truncated_before_its_sequence_is_made_is_an_error() {
    let talk = Talk::usual("int4", None);
    let folder = tempfile::tempdir().unwrap();
    let (path, snapshot) = saved(&talk, folder.path());
    shorten(&path);
    let error = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new()).err().unwrap().to_string();
    assert!(error.contains("truncated"), "{error}");
}
