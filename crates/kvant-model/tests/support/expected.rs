//! What the reference computed with a fixture, which may be compressed as `fixtures/shrink.py` does.

use flate2::read::GzDecoder;
use kvant_model::safetensors::Safetensors;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// `expected.safetensors` or `expected.safetensors.gz` of a folder.
pub fn expected(folder: &Path) -> Safetensors {
    let packed = folder.join("expected.safetensors.gz");
    let Ok(file) = File::open(&packed) else {
        let plain = folder.join("expected.safetensors");
        return Safetensors::open(&plain).unwrap_or_else(|e| panic!("{}: {e}", plain.display()));
    };
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap_or_else(|e| panic!("{}: {e}", packed.display()));
    Safetensors::from_bytes(in_floats(bytes)).unwrap_or_else(|e| panic!("{}: {e}", packed.display()))
}

/// The same file with 32-bit floats in place of 32-bit integers, which are multiples of 2⁻¹⁴, the lowest bytes of all of a tensor
/// first.
fn in_floats(mut bytes: Vec<u8>) -> Vec<u8> {
    let whole = Safetensors::from_bytes(bytes.clone()).unwrap();
    for entry in whole.names().filter_map(|name| whole.entry(name)).filter(|entry| entry.dtype == "I32") {
        let planes = bytes[entry.range.clone()].to_vec();
        let count = planes.len() / 4;
        for (index, number) in bytes[entry.range.clone()].chunks_exact_mut(4).enumerate() {
            let multiple = i32::from_le_bytes([0, 1, 2, 3].map(|byte| planes[byte * count + index]));
            number.copy_from_slice(&(multiple as f32 / 16384.0).to_le_bytes());
        }
    }
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for at in 8..header - 5 {
        if &bytes[at..at + 5] == b"\"I32\"" {
            bytes[at + 1] = b'F';
        }
    }
    bytes
}
