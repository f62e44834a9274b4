//! Alone in its program: a region runs on one thread while another test's is running.

use kvant_model::blocks::Chunk;
use kvant_model::cache::ExactCache;
use kvant_model::{Checkpoint, LoadOptions, Model};
use std::path::Path;

/// Bits of the logits of a prompt and of one token after it.
fn bits(model: &Model, prompt: &[u32]) -> Vec<u32> {
    let mut cache = ExactCache::<f32>::new(model.states(), prompt.len() + 1);
    let mut found = Vec::new();
    for tokens in [prompt, &prompt[..1]] {
        let chunk = Chunk { tokens, cache: &mut cache, wanted: 0..tokens.len() };
        found.extend(model.forward(&mut [chunk]).unwrap().data().iter().map(|z| z.to_bits()));
    }
    found
}

#[test]
fn fixtures_have_the_same_bits_with_any_number_of_threads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for name in ["gemma3", "gpt_neox", "qwen2_moe"] {
        let model = Model::load(&Checkpoint::open(root.join(name)).unwrap(), LoadOptions::default()).unwrap();
        let prompt: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % model.vocabulary() as u32).collect();
        kvant_threads::set_threads(1);
        let one = bits(&model, &prompt);
        for threads in [2, 5, 16] {
            kvant_threads::set_threads(threads);
            assert!(bits(&model, &prompt) == one, "{name} with {threads} threads");
        }
    }
}
