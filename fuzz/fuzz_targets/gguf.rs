//! Any bytes as a GGUF file: parse, then read everything the file claims to have.
#![no_main]

use kvant_model::gguf::{Gguf, Value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return };
    let metadata = gguf.metadata();
    for (key, value) in metadata.iter() {
        if let Value::Array(array) = value {
            assert_eq!(array.iter().count(), array.len());
        }
        let _ = (metadata.get::<u32>(key), metadata.get::<f32>(key), metadata.get::<Vec<&str>>(key));
        let _ = (metadata.get::<Vec<f32>>(key), metadata.per_layer::<usize>(key, 2));
    }
    for info in gguf.tensors() {
        let tensor = gguf.tensor(&info.name).expect("a listed tensor can be read");
        assert_eq!(tensor.rows() * tensor.row_bytes(), tensor.bytes().len());
        let _ = (tensor.to_f32(), tensor.to_i64(), tensor.index(0), tensor.narrow(0..1));
    }
});
