//! Any bytes as a safetensors file: parse, then read every tensor.
#![no_main]

use kvant_model::safetensors::Safetensors;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = Safetensors::from_bytes(bytes.to_vec()) else { return };
    for name in file.names() {
        if let Ok(Some(tensor)) = file.tensor(name) {
            assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.bytes().len());
            let _ = (tensor.to_f32(), tensor.to_i64(), tensor.index(0), tensor.narrow(0..1));
        }
    }
});
