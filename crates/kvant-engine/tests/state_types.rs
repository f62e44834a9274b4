//! Recurrent state that is stored narrower: near the f32 one, and the same bits however the text was cut.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy, StateType};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::{Path, PathBuf};

const TOKENS: usize = 200;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name)
}

fn logits(model: &Model, policy: &str, chunks: usize) -> (Vec<f32>, usize) {
    let mut kv = KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), TOKENS).unwrap();
    let tokens: Vec<u32> = (0..TOKENS).map(|i| ((i * 7919 + 13) % model.vocabulary()) as u32).collect();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunks) {
        let chunk = Chunk::new(tokens, 0..tokens.len());
        all.extend_from_slice(
            model.forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()]).unwrap().into_logits().data(),
        );
    }
    (all, kv.footprint().recurrent)
}

#[test]
fn narrower_states_are_smaller_near_and_the_same_in_any_chunks() {
    for name in ["qwen3_next", "falcon_h1", "lfm2"] {
        let checkpoint = Checkpoint::open(fixture(name)).unwrap();
        let model = kvant_cpu::load(&checkpoint, LoadOptions::default()).unwrap();
        let (plain, bytes) = logits(&model, "f16", TOKENS);
        let size = plain.iter().map(|x| x * x).sum::<f32>().sqrt();
        for (state, bound) in [(StateType::Bf16, 0.03), (StateType::Int8, 0.1)] {
            let policy = format!("f16;state={state}");
            let (narrow, fewer) = logits(&model, &policy, TOKENS);
            let far = plain.iter().zip(&narrow).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
            assert!(far > 0.0 && far < bound * size, "{name}, {state}: {} of all", far / size);
            assert!(fewer < bytes, "{name}, {state}: {fewer} bytes, {bytes} of f32");
            assert!(logits(&model, &policy, 37) == (narrow, fewer), "{name}, {state}: in chunks");
        }
    }
}
