//! Conversions against llama.cpp's own converter: `kvant-model/tests/data/gguf` has what it made of every fixture.

mod to_folder;
mod to_gguf;

use flate2::read::GzDecoder;
use kvant_cpu::{ExactCache, LoadOptions};
use kvant_model::gguf::Gguf;
use kvant_model::safetensors::Safetensors;
use kvant_model::{Checkpoint, Chunk};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// What the converter's inputs kept of a number: sign and exponent, and seven bits of the mantissa in vectors.
const KEPT_OF_MATRICES: u32 = 0xFF80_0000;
const KEPT_OF_VECTORS: u32 = 0xFFFF_0000;

fn data(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests")).join(path)
}

/// The fixtures that llama.cpp converted, by name.
fn converted() -> Vec<String> {
    let entries = fs::read_dir(data("data/gguf")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> =
        names.filter_map(|name| name.strip_suffix(".gguf.gz").map(str::to_owned)).collect();
    names.sort();
    assert!(names.len() >= 47, "only {} files", names.len());
    names
}

/// A file as llama.cpp's converter wrote it.
fn gguf(name: &str) -> Gguf {
    let mut bytes = Vec::new();
    let file = File::open(data(&format!("data/gguf/{name}.gguf.gz"))).unwrap();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    Gguf::from_bytes(bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn config(name: &str, file: &str) -> Value {
    kvant_model::config::parse_json(&fs::read(data(&format!("fixtures/{name}/{file}"))).unwrap()).unwrap()
}

/// The fixture with the weights that llama.cpp's converter was given.
fn safetensors(name: &str, config: Value) -> Checkpoint {
    let mut bytes = fs::read(data(&format!("fixtures/{name}/model.safetensors"))).unwrap();
    let whole = Safetensors::from_bytes(bytes.clone()).unwrap();
    for tensor in whole.names() {
        let entry = whole.entry(tensor).unwrap();
        let kept = if entry.shape.len() > 1 { KEPT_OF_MATRICES } else { KEPT_OF_VECTORS };
        // A bf16 number is the first half of an f32 one.
        let (kept, width) = match entry.dtype.as_str() {
            "F32" => (kept.to_le_bytes().to_vec(), 4),
            "BF16" => (kept.to_le_bytes()[2..].to_vec(), 2),
            other => panic!("{name}: {tensor} is {other}"),
        };
        for number in bytes[entry.range.clone()].chunks_exact_mut(width) {
            number.iter_mut().zip(&kept).for_each(|(byte, kept)| *byte &= kept);
        }
    }
    Checkpoint::from_safetensors(Safetensors::from_bytes(bytes).unwrap(), config)
}

fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let ids: Vec<u32> = (0..48).map(|i| i * 37 % 251).collect();
    let model = kvant_cpu::load(checkpoint, LoadOptions::AS_STORED).unwrap();
    let mut cache = ExactCache::<f32>::new(model.slots(), ids.len() + 16);
    let chunk = Chunk { tokens: &ids, wanted: 0..ids.len() };
    model.forward(&[chunk], &mut cache).unwrap().data().to_vec()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if a.iter().chain(b).all(|x| x.is_finite()) { worst } else { f32::INFINITY }
}
