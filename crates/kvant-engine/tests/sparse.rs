//! `sparse-v`: what is left out is what the threshold says, and nothing at all when it is tiny.

use kvant_cpu::LoadOptions;
use kvant_engine::{KvCache, Policy};
use kvant_model::{Checkpoint, Chunk, Model, Pass};
use std::path::Path;

const TOKENS: usize = 400;

fn logits(model: &Model, policy: &str, chunks: usize) -> Vec<f32> {
    let mut kv = KvCache::new(policy.parse::<Policy>().unwrap(), model.slots(), TOKENS).unwrap();
    let tokens: Vec<u32> = (0..TOKENS).map(|i| ((i * 7919 + 13) % model.vocabulary()) as u32).collect();
    let mut all = Vec::new();
    for tokens in tokens.chunks(chunks) {
        let chunk = Chunk::new(tokens, 0..tokens.len());
        all.extend_from_slice(
            model.forward(Pass::new(&[chunk]), &mut [kv.sequence_mut()]).unwrap().into_logits().data(),
        );
    }
    all
}

#[test]
fn a_tiny_threshold_changes_no_bit_and_a_large_one_more_the_larger_it_is() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures");
    for name in ["llama", "gemma3"] {
        let model = kvant_cpu::load(&Checkpoint::open(fixtures.join(name)).unwrap(), LoadOptions::default());
        let model = model.unwrap();
        for spec in ["f16", "int4"] {
            let plain = logits(&model, spec, TOKENS);
            let with = |tau: &str| logits(&model, &format!("{spec};sparse-v={tau}"), TOKENS);
            assert!(with("1e-12") == plain, "{name}, {spec}: a tiny threshold");
            let far = |other: &[f32]| -> f32 { plain.iter().zip(other).map(|(a, b)| (a - b).powi(2)).sum() };
            let (some, most) = (with("0.02"), with("0.9"));
            assert!(
                far(&some) > 0.0 && far(&some) < far(&most),
                "{name}, {spec}: {} {}",
                far(&some),
                far(&most)
            );
            // Left out by the page and the query, so however the text was cut.
            assert!(
                some == logits(&model, &format!("{spec};sparse-v=0.02"), 37),
                "{name}, {spec}: in chunks"
            );
        }
    }
}
