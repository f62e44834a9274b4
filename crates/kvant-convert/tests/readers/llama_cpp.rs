//! Converted files, computed by llama.cpp: the Python that `KVANT_PYTHON` names has llama-cpp-python. `cargo xtask test llama-cpp`
//! makes one. `KVANT_MODELS` lists models to convert besides the one that is made here.

use crate::bytes;
use kvant_attention::KvCache;
use kvant_convert::{Conversion, Format, Weights};
use kvant_cpu::LoadOptions;
use kvant_model::synth::{self, Shape, WeightType};
use kvant_model::{Checkpoint, Chunk, Pass};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

const TYPES: [&str; 6] = ["q4_k_m", "q6_k", "iq4_xs", "iq4_nl", "q2_k", "q3_k"];

/// Rows of whole super-blocks, which the fixtures are too narrow for.
const SHAPE: Shape = Shape {
    layers: 2,
    hidden: 512,
    heads: 8,
    kv_heads: 4,
    head_dim: 64,
    ffn: 1024,
    vocabulary: 1024,
    tied: false,
    rope_base: 10_000.0,
    context: 256,
};

/// Models to convert: one of random weights, and those that are named.
fn sources(place: &Path) -> Vec<PathBuf> {
    let own = place.join("source.gguf");
    let model = synth::model(&SHAPE, WeightType::F16, 7).unwrap();
    fs::write(&own, model.to_bytes().unwrap()).unwrap();
    let named = std::env::var_os("KVANT_MODELS");
    let named = named.iter().flat_map(std::env::split_paths);
    std::iter::once(own).chain(named).collect()
}

/// (tokens, vocabulary): what kvant computes, with f32 activations.
fn logits(checkpoint: &Checkpoint, ids: &[u32]) -> Vec<f32> {
    let model = kvant_cpu::load(checkpoint, LoadOptions::AS_STORED).unwrap();
    let mut cache = KvCache::reference(model.slots(), ids.len()).unwrap();
    let chunk = Chunk::new(ids, 0..ids.len());
    model.forward(Pass::new(&[chunk]), &mut [cache.sequence_mut()]).unwrap().into_logits().data().to_vec()
}

#[test]
fn llama_cpp_computes_what_kvant_computes() {
    let python = std::env::var("KVANT_PYTHON").expect("run by `cargo xtask test llama-cpp`");
    let place = tempfile::tempdir().unwrap();
    let ids: Vec<u32> = (0..48).map(|i| 3 + i * 37 % 251).collect();
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    for (number, source) in sources(place.path()).iter().enumerate() {
        let checkpoint = Checkpoint::open(source).unwrap();
        for name in TYPES {
            let path = place.path().join(format!("{number}-{name}.gguf"));
            let weights: Weights = name.parse().unwrap();
            let conversion = Conversion::new(&checkpoint, weights, Format::Gguf, None).unwrap();
            conversion.write(&path, &mut |_, _| ControlFlow::Continue(())).unwrap();
            let converted = Checkpoint::open(&path).unwrap();
            let expected = path.with_added_extension("logits");
            fs::write(&expected, bytes(&logits(&converted, &ids))).unwrap();
            let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/compute.py");
            let run =
                Command::new(&python).arg(script).arg(&path).arg(&expected).args(&list).output().unwrap();
            let said = String::from_utf8_lossy(&run.stdout);
            let complained = String::from_utf8_lossy(&run.stderr);
            println!("{} as {name}: {}", source.display(), said.trim());
            assert!(run.status.success(), "{} as {name}: {said}{complained}", source.display());
            // Files of large models do not all fit beside each other.
            fs::remove_file(&path).unwrap();
        }
    }
}
