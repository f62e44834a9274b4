//! GGUF files that llama.cpp's own converter made of the fixtures (`data/gguf/make.py`), held against the fixtures themselves: what
//! was permuted, transposed, stacked, folded or renamed on the way must give the same logits.

#[path = "../support/expected.rs"]
mod expected;
#[path = "../support/llama_cpp.rs"]
mod llama_cpp;
mod names;
mod peer;
mod twins;
mod variants;

use expected::expected;
use kvant_cpu::{ExactCache, LoadOptions};
use kvant_model::{Checkpoint, Chunk};
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
    let mut cache = ExactCache::<f32>::new(model.slots(), ids.len() + 16);
    let chunk = Chunk { tokens: &ids, wanted: 0..ids.len() };
    model.forward(&[chunk], &mut cache).unwrap().data().to_vec()
}
