//! What does not come back: every byte counts.

use crate::talk::{SIGNATURE, Talk};
use kvant_cache::{Arena, Snapshot, SnapshotError};
use std::io;

fn small() -> (Talk, Vec<u8>) {
    let talk = Talk::usual("k=ch4:p32,v=rot4g32:p32;layers 1:f16:p32;recent=20", None);
    let bytes = talk.bytes(&talk.of(80), b"note");
    (talk, bytes)
}

/// One with slots of every kind, closed chunks and a checkpoint.
fn mixed() -> (Talk, Vec<u8>) {
    let talk = Talk::mixed("k=ch4:p32,v=rot4g32:p32;recent=20;sinks=3;state=int8", None);
    let mut sequence = talk.begin();
    sequence.set_checkpoint_budget(Some(1 << 16));
    sequence.mark(70);
    talk.read(&mut sequence, 150);
    assert_eq!(sequence.checkpoints().collect::<Vec<_>>(), [67, 99, 131]);
    let bytes = talk.bytes(&sequence, b"note");
    (talk, bytes)
}

/// Every byte, or one in seven where `PROPTEST_CASES` asks for haste, as it does under an emulator.
fn stride() -> usize {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256);
    if cases >= 64 { 1 } else { 7 }
}

fn refusal(bytes: Vec<u8>) -> SnapshotError {
    Snapshot::from_bytes(bytes).err().expect("a damaged file is refused")
}

#[test]
fn a_file_cut_off_anywhere_is_refused() {
    for (_, bytes) in [small(), mixed()] {
        every_cut_is_refused(&bytes);
    }
}

fn every_cut_is_refused(bytes: &[u8]) {
    for len in (0..bytes.len()).step_by(stride()) {
        let error = refusal(bytes[..len].to_vec());
        match len {
            0..8 => assert!(matches!(error, SnapshotError::Foreign), "{len}: {error}"),
            _ => assert!(matches!(error, SnapshotError::Length { .. }), "{len}: {error}"),
        }
    }
    let longer = [bytes, &[0]].concat();
    assert!(refusal(longer).to_string().contains("cut off or added to"));
}

#[test]
fn any_other_byte_is_refused() {
    for (_, bytes) in [small(), mixed()] {
        every_flip_is_refused(&bytes);
    }
}

fn every_flip_is_refused(bytes: &[u8]) {
    for at in (0..bytes.len()).step_by(stride()) {
        for flip in [1, 0x80, 0xff] {
            let mut other = bytes.to_vec();
            other[at] ^= flip;
            let error = refusal(other);
            let expected = match at {
                0..8 => matches!(error, SnapshotError::Foreign),
                // Another version may be one that is read, but not as this one's.
                8..12 => matches!(error, SnapshotError::Version { .. } | SnapshotError::Absurd { .. }),
                24..32 => matches!(error, SnapshotError::Length { .. }),
                _ => matches!(error, SnapshotError::Damaged { .. } | SnapshotError::Absurd { .. }),
            };
            assert!(expected, "byte {at} ^ {flip}: {error}");
        }
    }
}

/// Numbers under a right checksum are no more to be believed than those under a wrong one.
#[test]
fn absurd_numbers_are_refused_before_they_are_used() {
    for (talk, bytes) in [small(), mixed()] {
        no_number_is_believed(&talk, &bytes);
    }
}

fn no_number_is_believed(talk: &Talk, bytes: &[u8]) {
    let preamble = u64::from_le_bytes(bytes[16..24].try_into().unwrap()) as usize;
    let resealed = |mut bytes: Vec<u8>| {
        let sum = crc32fast::hash(&bytes[16..preamble]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let numbers = [0, 1, 2, 31, 33, 81, 1 << 16, u64::from(u32::MAX), 1 << 40, u64::MAX / 2, u64::MAX];
    let fields = (16..preamble).step_by(4 * stride());
    let mut accepted = 0;
    for at in fields.filter(|at| !(32..64).contains(at)) {
        for number in numbers {
            for width in [4, 8] {
                let mut other = bytes.to_vec();
                let end = (at + width).min(preamble);
                other[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                // Token ids may be any; what loads must then fit the cache, or say why not.
                if let Ok(snapshot) = Snapshot::from_bytes(resealed(other)) {
                    accepted += 1;
                    let _ = snapshot.sequence(&SIGNATURE, talk.layout.clone(), Arena::new());
                }
            }
        }
    }
    assert!(accepted * stride() > 80, "the seal is right, so what changes no structure loads: {accepted}");
}

#[test]
fn other_files_are_told_apart() {
    let (_, bytes) = small();
    let said = |bytes: &[u8]| refusal(bytes.to_vec()).to_string();
    assert_eq!(said(b"GGUF and so on"), "is not a kvant session file");
    assert_eq!(said(b""), "is not a kvant session file");
    let mut newer = bytes.clone();
    newer[8] = 9;
    assert!(said(&newer).contains("format version 9"), "{}", said(&newer));
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Snapshot::open(folder.path()), Err(SnapshotError::Foreign)));
    match Snapshot::open(&folder.path().join("nothing")) {
        Err(SnapshotError::Io { source, .. }) => assert_eq!(source.kind(), io::ErrorKind::NotFound),
        other => panic!("{:?}", other.err()),
    }
}
