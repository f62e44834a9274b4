//! Conversions against llama.cpp's own converter: `kvant-model/tests/data/gguf` has what it made of every fixture.

#[path = "../../../kvant-model/tests/support/llama_cpp.rs"]
mod files;
mod to_folder;
mod to_gguf;

use files::{converted, difference, fixture, gguf, safetensors};
use kvant_attention::KvCache;
use kvant_cpu::LoadOptions;
use kvant_model::{Checkpoint, Chunk, Pass};
use serde_json::Value;
use std::fs;

fn config(name: &str, file: &str) -> Value {
    kvant_model::config::parse_json(&fs::read(fixture(name).join(file)).unwrap()).unwrap()
}

fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let ids: Vec<u32> = (0..48).map(|i| i * 37 % 251).collect();
    let model = kvant_cpu::load(checkpoint, LoadOptions::AS_STORED).unwrap();
    let mut cache = KvCache::reference(model.slots(), ids.len() + 16).unwrap();
    let chunk = Chunk::new(&ids, 0..ids.len());
    model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data().to_vec()
}
