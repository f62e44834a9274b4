//! What llama.cpp's converter made of the fixtures (`data/gguf`), and what it made it of.

use flate2::read::GzDecoder;
use kvant_model::Checkpoint;
use kvant_model::gguf::Gguf;
use kvant_model::safetensors::Safetensors;
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// What the converter's inputs kept of a number: sign and exponent, and seven bits of the mantissa in vectors.
const KEPT_OF_MATRICES: u32 = 0xFF80_0000;
const KEPT_OF_VECTORS: u32 = 0xFFFF_0000;

/// The folder of these tests, also from other crates.
pub fn tests() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../kvant-model/tests"))
}

/// The fixtures that were converted, by name.
pub fn converted() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(tests().join("data/gguf"))
        .unwrap()
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_suffix(".gguf.gz").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 47, "only {} files", names.len());
    names
}

/// A file as the converter wrote it.
pub fn gguf(name: &str) -> Gguf {
    let path = tests().join(format!("data/gguf/{name}.gguf.gz"));
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .read_to_end(&mut bytes)
        .unwrap();
    Gguf::from_bytes(bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The folder of a fixture.
pub fn fixture(name: &str) -> PathBuf {
    tests().join("fixtures").join(name)
}

/// The fixture with the weights that the converter was given.
pub fn safetensors(name: &str, config: Value) -> Checkpoint {
    Checkpoint::from_safetensors(Safetensors::from_bytes(kept_bytes(name)).unwrap(), config)
}

/// The file of these weights.
pub fn kept_bytes(name: &str) -> Vec<u8> {
    let mut bytes = fs::read(fixture(name).join("model.safetensors")).unwrap();
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
    bytes
}

/// The largest difference.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    if a.iter().chain(b).all(|x| x.is_finite()) { worst } else { f32::INFINITY }
}
