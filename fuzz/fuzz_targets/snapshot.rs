//! Any bytes as a saved sequence, as they are and with lengths and checksum put right: loaded or refused, never believed.
#![no_main]

use kvant_cache::snapshot::{Record, write};
use kvant_cache::{Arena, CacheLayout, EntryShape, Policy, Snapshot};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

/// The cache that the seeds were saved from.
static LAYOUT: LazyLock<Arc<CacheLayout>> = LazyLock::new(|| {
    let policy: Policy = "k=ch4:p32,v=rot4g32:p32;recent=20".parse().expect("a policy");
    let shape = EntryShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: Some(70) };
    Arc::new(CacheLayout::new(&policy, &[shape; 2]).expect("a layout"))
});

fn load(bytes: Vec<u8>) {
    let Ok(snapshot) = Snapshot::from_bytes(bytes.clone()) else { return };
    let Ok(sequence) = snapshot.sequence(snapshot.signature(), LAYOUT.clone(), Arena::new()) else { return };
    let (tokens, note) = (snapshot.tokens(), snapshot.note());
    let record = Record { signature: *snapshot.signature(), policy: snapshot.policy(), tokens, note };
    let mut again = Vec::new();
    write(&sequence, &record, &mut again).expect("what was loaded can be saved");
    assert!(again == bytes, "it is saved as it was");
}

fuzz_target!(|bytes: &[u8]| {
    load(bytes.to_vec());
    if let Some(preamble) = bytes.get(16..24) {
        let mut sealed = bytes.to_vec();
        let end = u64::from_le_bytes(preamble.try_into().expect("eight bytes")).clamp(16, bytes.len() as u64);
        if let Some(length) = sealed.get_mut(24..32) {
            length.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        }
        let sum = crc32fast::hash(&sealed[16..end as usize]);
        sealed[12..16].copy_from_slice(&sum.to_le_bytes());
        load(sealed);
    }
});
