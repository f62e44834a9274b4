//! Sequences without end: a window that moves, and the sinks before it.

use kvant_cpu::LoadOptions;
use kvant_engine::KvCache;
use kvant_engine::Policy;
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

fn model(name: &str) -> Model {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    kvant_cpu::load(&Checkpoint::open(fixtures.join(name)).unwrap(), LoadOptions::default()).unwrap()
}

fn streaming(text: &str, window: usize) -> Policy {
    let mut policy: Policy = text.parse().unwrap();
    policy.rule.streaming = Some(window);
    policy
}

fn tokens(model: &Model, count: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 7919 + 13) % model.vocabulary()) as u32).collect()
}

/// Bits of all logits, and the bytes held at the end of every chunk.
fn read(model: &Model, policy: Policy, tokens: &[u32], size: usize) -> (Vec<u32>, Vec<u64>) {
    let mut kv = KvCache::new(policy, model.slots(), usize::MAX).unwrap();
    let (mut bits, mut bytes) = (Vec::new(), Vec::new());
    for chunk in tokens.chunks(size) {
        let chunk = Chunk::new(chunk, 0..chunk.len());
        bits.extend(
            model
                .forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()])
                .unwrap()
                .into_logits()
                .data()
                .iter()
                .map(|z| z.to_bits()),
        );
        bytes.push(kv.bytes());
    }
    (bits, bytes)
}

#[test]
fn a_window_that_holds_everything_changes_nothing() {
    for name in ["smollm2", "qwen2_yarn", "gemma3"] {
        let model = model(name);
        let tokens = tokens(&model, 150);
        let plain = read(&model, "int4".parse().unwrap(), &tokens, 150).0;
        assert!(plain == read(&model, streaming("int4", 150), &tokens, 150).0, "{name}");
    }
}

#[test]
fn a_moving_window_gives_the_same_bits_in_any_chunks_and_takes_no_more_memory_after_a_while() {
    let model = model("smollm2");
    let tokens = tokens(&model, 900);
    for spec in ["int4", "f16"] {
        let (whole, _) = read(&model, streaming(spec, 100), &tokens, 900);
        let (parts, bytes) = read(&model, streaming(spec, 100), &tokens, 64);
        assert!(whole == parts, "{spec}");
        assert!(
            parts != read(&model, spec.parse().unwrap(), &tokens, 64).0,
            "{spec}: the window cuts nothing off"
        );
        let (middle, last) = (bytes[bytes.len() / 2], bytes[bytes.len() - 1]);
        assert!(last <= middle + middle / 4, "{spec}: {bytes:?}");
    }
}

/// With rotary positions, moving a text further along must not change what is seen of it. Here the sinks are all alike,
/// so that the window sees the same tokens at both places.
#[test]
fn what_a_window_sees_does_not_depend_on_how_far_along_it_is() {
    let model = model("llama");
    let window = 40;
    let text = tokens(&model, window);
    let after = |filler: usize| {
        let all: Vec<u32> = vec![7; filler].into_iter().chain(text.iter().copied()).collect();
        let bits = read(&model, streaming("f32", window), &all, all.len()).0;
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        logits[logits.len() - model.vocabulary()..].to_vec()
    };
    let (near, far) = (after(200), after(1200));
    for (a, b) in near.iter().zip(&far) {
        assert!((a - b).abs() < 2e-3, "{a} {b}");
    }
}
