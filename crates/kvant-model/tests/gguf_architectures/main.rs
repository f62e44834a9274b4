//! GGUF files that llama.cpp's own converter made of the fixtures (`data/gguf/make.py`), held against the fixtures themselves: what
//! was permuted, transposed, stacked, folded or renamed on the way must give the same logits.

#[path = "../support/expected.rs"]
mod expected;
#[path = "../support/llama_cpp.rs"]
mod llama_cpp;
#[path = "../support/mtp.rs"]
mod mtp;
mod names;
mod peer;
mod twins;
mod variants;

use expected::expected;
use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, Pass};
use llama_cpp::{converted, difference, fixture, gguf, safetensors, tests};
use serde_json::Value;
use std::fs;

fn config(name: &str) -> Value {
    serde_json::from_slice(&fs::read(fixture(name).join("config.json")).unwrap()).unwrap()
}

/// Logits of the fixture's first prompt.
fn logits(name: &str, checkpoint: &Checkpoint) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let expected = expected(&fixture(name));
    let ids = expected.tensor("input_ids").unwrap().unwrap().index(0).unwrap().to_i64().unwrap();
    let ids: Vec<u32> = ids.into_iter().map(|id| id as u32).collect();
    let mut cache = KvCache::reference(model.slots(), ids.len() + 16).unwrap();
    let chunk = Chunk::new(&ids, 0..ids.len());
    model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data().to_vec()
}
