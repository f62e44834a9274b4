//! Any bytes as a plan, as they are and with length and checksum put right: loaded or refused, never believed.
#![no_main]

use kvant_cache::{CacheLayout, KvShape, Plan, Slots};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

fn load(bytes: &[u8]) {
    let Ok(plan) = Plan::from_bytes(bytes) else { return };
    let again = Plan::from_bytes(&plan.to_bytes()).expect("what was loaded can be loaded again");
    assert_eq!(again.slots().len(), plan.slots().len());
    let plan = Arc::new(plan);
    let policy = plan.with(plan.policy());
    let shape = KvShape { kv_heads: 1, key_dim: 16, value_dim: 8, window: None };
    // Whether its codecs can be built is the plan's luck; that nothing worse happens is not.
    drop(CacheLayout::new(&policy, &Slots::uniform(2, shape)));
}

fuzz_target!(|bytes: &[u8]| {
    load(bytes);
    if bytes.len() >= 24 {
        let mut sealed = bytes.to_vec();
        sealed[16..24].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        let sum = crc32fast::hash(&sealed[16..]);
        sealed[12..16].copy_from_slice(&sum.to_le_bytes());
        load(&sealed);
    }
});
