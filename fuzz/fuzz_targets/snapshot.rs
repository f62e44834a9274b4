//! Any bytes as a saved sequence, as they are and with lengths and checksum put right: loaded or refused, never believed.
#![no_main]

use kvant_cache::snapshot::{Record, write};
use kvant_cache::{Arena, CacheLayout, KvShape, LatentShape, Policy, RecurrentShape, Slots, Snapshot};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

/// The cache that the seeds were saved from.
static LAYOUT: LazyLock<Arc<CacheLayout>> = LazyLock::new(|| {
    let policy: Policy = "k=ch4:p32,v=rot4g32:p32;recent=20".parse().expect("a policy");
    Arc::new(CacheLayout::new(&policy, &slots()).expect("a layout"))
});

/// A slot of every kind.
fn slots() -> Slots {
    let mut slots = Slots::new();
    let owner = slots.keys_values(0, KvShape { kv_heads: 1, key_dim: 8, value_dim: 8, window: Some(70) });
    slots.view(1, owner);
    slots.latent(2, LatentShape { kv_heads: 1, latent_dim: 8, rope_dim: 2, window: None });
    slots.recurrent(3, RecurrentShape { state: 3, row: 2 });
    slots
}

/// What is loaded of a file, saved again.
fn resaved(bytes: &[u8]) -> Option<Vec<u8>> {
    let snapshot = Snapshot::from_bytes(bytes.to_vec()).ok()?;
    let sequence = snapshot.sequence(snapshot.signature(), LAYOUT.clone(), Arena::new()).ok()?;
    let record = Record {
        signature: *snapshot.signature(),
        numerics: snapshot.numerics().copied().unwrap_or_default(),
        policy: snapshot.policy(),
        tokens: snapshot.tokens(),
        note: snapshot.note(),
    };
    let mut again = Vec::new();
    write(&sequence, &record, &mut again).expect("what was loaded can be saved");
    Some(again)
}

fn load(bytes: Vec<u8>) {
    // A file can have more than its loader keeps; what the loader has saved comes back as it is.
    let Some(again) = resaved(&bytes) else { return };
    assert!(resaved(&again).as_ref() == Some(&again), "it is saved as it was");
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
