//! A model goes on from a saved cache with the very bits of one that was never interrupted.

use kvant_cache::snapshot::Record;
use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy, Snapshot};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

/// Logits after each of these tokens, as bits.
fn read(model: &Model, kv: &mut KvCache, tokens: &[u32]) -> Vec<u32> {
    let logits = model
        .forward(Pass::new(&[Chunk::new(tokens, 0..tokens.len())]), &mut [kv.sequence_mut()])
        .unwrap()
        .into_logits();
    logits.data().iter().map(|x| x.to_bits()).collect()
}

#[test]
fn logits_are_bit_equal_after_saving_and_resuming() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    let folder = tempfile::tempdir().unwrap();
    for (fixture, policies) in [
        (
            "qwen2",
            &["int4", "f16", "f32", "k8v4;recent=70;sinks=1", "k=ch4:p128,v=rot4g32;layers 1:int8"][..],
        ),
        ("gemma3", &["int4"]),
        ("phi3_longrope", &["int4"]),
    ] {
        let checkpoint = Checkpoint::open(fixtures.join(fixture)).unwrap();
        let model = kvant_cpu::load(&checkpoint, LoadOptions::default()).unwrap();
        for policy in policies {
            let parsed: Policy = policy.parse().unwrap();
            let signature =
                kvant_engine::signature(&checkpoint, &LoadOptions::default(), &parsed, 400).unwrap();
            let tokens: Vec<u32> = (0..300).map(|i| (i * 7919 + 13) % model.vocabulary() as u32).collect();
            let mut whole = KvCache::new(&parsed, model.slots(), 400).unwrap();
            let mut held = KvCache::new(&parsed, model.slots(), 400).unwrap();
            let mut at = 0;
            for (number, count) in [3, 70, 1, 126, 100].into_iter().enumerate() {
                let next = &tokens[at..at + count];
                let expected = read(&model, &mut whole, next);
                assert!(read(&model, &mut held, next) == expected, "{fixture}, {policy}, part {number}");
                at += count;
                let path = folder.path().join("saved");
                let record = Record {
                    signature,
                    numerics: kvant_engine::numerics(),
                    policy,
                    tokens: &tokens[..at],
                    note: b"",
                };
                held.sequence().save(&path, &record).unwrap();
                let mut resumed = KvCache::new(&parsed, model.slots(), 400).unwrap();
                resumed.restore(&Snapshot::open(&path).unwrap(), &signature).unwrap();
                held = resumed;
            }
        }
    }
}
